package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/bettercompute/compute/api"
	"github.com/bettercompute/compute/authz"
	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/open"
	"github.com/bettercompute/compute/devidp"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/gate"
	"github.com/bettercompute/compute/gateway"
	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/localstack/temporaltest"
	"github.com/bettercompute/compute/sim"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/seal"
	"github.com/bettercompute/compute/store/storetest"
	"github.com/bettercompute/compute/worker"
)

// rigScale is how much faster the rack and all waits of a rig run.
const rigScale = 30

// rigPatience bounds the wait for one operation; reaching it is a failure.
const rigPatience = 4 * time.Minute

// rig is a whole stack in the test's own process: API, gateway and worker over a
// real Postgres and a real Temporal, and a simulated rack. Many tests share one.
type rig struct {
	t         testing.TB
	databases string // its connection URL
	store     *store.Store
	keyset    string // the keyset's file
	bootKey   string // the boot key's file
	temporal  client.Client
	address   string // Temporal's
	namespace string
	queue     string
	rack      *sim.Rack
	images    string // where the rack serves images
	url       string // the API's
	token     string
	site      string
	gate      *gate.Gate
	ca        string // the fingerprint by which machines know the gateway
	log       *rigLog
}

// rigLog is what the rig's parts log, read while it is written.
type rigLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *rigLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *rigLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, queue: store.NewID("queue"), log: &rigLog{}, databases: storetest.URL(t) + "?pool_max_conns=20"}
	dir := t.TempDir()
	r.keyset = filepath.Join(dir, "keyset.json")
	if _, err := seal.Create(r.keyset); err != nil {
		t.Fatal(err)
	}
	keys, err := seal.Load(r.keyset)
	if err != nil {
		t.Fatal(err)
	}
	r.bootKey = filepath.Join(dir, "boot.key")
	bootKey, err := store.CreateBootKey(r.bootKey)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewJSONHandler(r.log, nil))
	node, boot := listenRig(t), listenRig(t)
	r.store, err = store.Open(t.Context(), r.databases, store.Options{Seal: keys, BootKey: bootKey, TimeScale: rigScale,
		BootURL: "http://" + boot.Addr().String(), GatewayURL: "https://" + node.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.store.Close)
	r.serveGateway(node, boot, log)
	r.serveAPI(dir, log)
	if r.rack, err = sim.NewRack(sim.Options{TimeScale: rigScale, Seed: 7, Control: "127.0.0.1:0", Log: log}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.rack.Close() })
	r.images = r.rack.ControlURL() + "/images/"
	r.connect()
	var site fleet.SiteOut
	r.ok("sites/create", obj{"name": "lab", "allowedNetworks": []string{"127.0.0.0/8"}}, &site)
	r.site = site.Site.ID
	return r
}

func listenRig(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (r *rig) serveGateway(node, boot net.Listener, log *slog.Logger) {
	r.t.Helper()
	ca, err := identity.NewCA("test")
	if err != nil {
		r.t.Fatal(err)
	}
	r.ca = ca.Fingerprint()
	between, err := ca.NewIntermediate("nodes")
	if err != nil {
		r.t.Fatal(err)
	}
	nodes, err := identity.NewIssuer(between, ca.Cert, "compute.example")
	if err != nil {
		r.t.Fatal(err)
	}
	g, err := gateway.New(gateway.Config{Store: r.store, CA: ca, Nodes: nodes, Log: log})
	if err != nil {
		r.t.Fatal(err)
	}
	r.run(func(ctx context.Context) error { return g.Serve(ctx, node, boot) })
}

func (r *rig) serveAPI(dir string, log *slog.Logger) {
	r.t.Helper()
	var issuer *devidp.Issuer
	idp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { issuer.Handler().ServeHTTP(w, q) }))
	r.t.Cleanup(idp.Close)
	var err error
	if issuer, err = devidp.New(idp.URL, filepath.Join(dir, "issuer.pem")); err != nil {
		r.t.Fatal(err)
	}
	policies, err := authz.New("")
	if err != nil {
		r.t.Fatal(err)
	}
	srv, err := api.New(api.Options{Store: r.store, Authz: policies, Log: log, RequestKey: []byte("k"), CallsPerSecond: 1e6,
		Issuers: []api.Issuer{{Alias: "dev", URL: idp.URL, Audience: devidp.Audience}}})
	if err != nil {
		r.t.Fatal(err)
	}
	web := httptest.NewServer(srv.Handler())
	r.t.Cleanup(web.Close)
	r.url = web.URL + "/api/compute/"
	if _, err := r.store.CreateTenant(context.Background(), "acme", "dev:owner"); err != nil {
		r.t.Fatal(err)
	}
	if r.token, err = issuer.Mint(devidp.Token{Subject: "owner", TTL: 12 * time.Hour}); err != nil {
		r.t.Fatal(err)
	}
}

// connect connects to Temporal.
func (r *rig) connect() {
	r.t.Helper()
	r.address, r.namespace = temporaltest.Server(r.t)
	var err error
	r.temporal, _, err = worker.Connect(context.Background(), worker.Connection{Address: r.address, Namespace: r.namespace, Log: slog.New(slog.NewJSONHandler(r.log, nil))})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(r.temporal.Close)
	r.forgetWorkflows()
}

// forgetWorkflows deletes what former tests left in the namespace: workflows of
// operations that the rig's database does not know raise an alarm.
func (r *rig) forgetWorkflows() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), rigPatience)
	defer cancel()
	for {
		list, err := r.temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{Namespace: r.namespace, Query: "WorkflowId STARTS_WITH 'op/'"})
		if err != nil {
			r.t.Fatal(err)
		}
		if len(list.GetExecutions()) == 0 {
			return
		}
		for _, e := range list.GetExecutions() {
			_, err := r.temporal.WorkflowService().DeleteWorkflowExecution(ctx, &workflowservice.DeleteWorkflowExecutionRequest{Namespace: r.namespace, WorkflowExecution: e.GetExecution()})
			var gone *serviceerror.NotFound // already, and the list lags
			if err != nil && !errors.As(err, &gone) {
				r.t.Fatal(err)
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// startWorker runs a worker until the test ends, or the returned function is
// called, and returns how it ended.
func (r *rig) startWorker(change ...func(*worker.Worker)) (stop func()) {
	r.t.Helper()
	log := slog.New(slog.NewJSONHandler(r.log, nil))
	name := store.NewID("worker")
	g := &gate.Gate{Store: r.store, Holder: name, Waits: scaledWaits(rigScale), Log: log, Reads: 1, IdleAfter: 2 * time.Minute,
		OpenBMC: func(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Client, error) {
			return open.Open(ctx, target, opts)
		}}
	w := &worker.Worker{Store: r.store, Client: r.temporal, Namespace: r.namespace, Log: log, Process: name, TaskQueue: r.queue,
		PowerEvery: 10 * time.Minute, SweepEvery: 10 * time.Second, Gate: g}
	for _, c := range change {
		c(w)
	}
	r.gate = w.Gate
	return r.run(w.Run)
}

// run runs something until the test ends or the returned function is called.
func (r *rig) run(f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f(ctx); err != nil {
			r.t.Errorf("a part of the rig ended: %v", err)
		}
	}()
	stop = func() { cancel(); <-done }
	r.t.Cleanup(stop)
	return stop
}

type obj = map[string]any

// call calls the API as the owner of the tenant, who is named in every input.
func (r *rig) call(t testing.TB, method string, in obj, out any) *fleet.Error {
	t.Helper()
	body := obj{"tenantId": "acme"}
	for k, v := range in {
		body[k] = v
	}
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, r.url+method, bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+r.token)
	group, name, _ := strings.Cut(method, "/")
	if m, ok := fleet.FindMethod(group, name); ok && m.Kind == fleet.KindMutation { // so that the answer is kept too
		req.Header.Set("Idempotency-Key", store.NewID("key"))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		var p struct {
			Code           fleet.Code
			Reason, Detail string
		}
		if err := json.Unmarshal(answer, &p); err != nil {
			t.Fatalf("%s answered %s %s", method, resp.Status, answer)
		}
		return &fleet.Error{Code: p.Code, Reason: p.Reason, Detail: p.Detail}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		t.Fatalf("%s answered %s: %v", method, answer, err)
	}
	return nil
}

// ok is a call that must succeed.
func (r *rig) ok(method string, in obj, out any) {
	r.t.Helper()
	if err := r.call(r.t, method, in, out); err != nil {
		r.t.Fatalf("%s: %v", method, err)
	}
}

// deployIn is the input of a deploy of the rack's small image.
func (r *rig) deployIn(t testing.TB, more obj) obj {
	t.Helper()
	in := obj{"image": obj{"url": r.images + "small.raw", "format": "raw", "checksum": "sha256:" + r.sum(t, "small.raw")}}
	for k, v := range more {
		in[k] = v
	}
	return in
}

// sum is the checksum of an image of the rack.
func (r *rig) sum(t testing.TB, name string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, r.images+name+".sha256", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v", name, resp.Status, err)
	}
	return strings.Fields(string(raw))[0]
}
