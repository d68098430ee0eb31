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

// host is a machine of the rack, and its node once it is enrolled.
type host struct {
	*sim.Machine
	r    *rig
	t    testing.TB
	node string
	tls  obj
}

// add puts a machine into the rack.
func (r *rig) add(t testing.TB, spec sim.MachineSpec) *host {
	t.Helper()
	m, err := r.rack.Add(spec)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{Machine: m, r: r, t: t, tls: obj{"mode": "pin"}}
	t.Cleanup(func() {
		if t.Failed() {
			h.show()
		}
		r.rack.Remove(m.ID())
	})
	return h
}

// show logs what the machine was asked and what its node's operations came to.
func (h *host) show() {
	for _, q := range h.Requests() {
		h.t.Logf("%s %s %s -> %d %s %v", q.At.Format("15:04:05.000"), q.Method, q.Path, q.Status, q.Body, q.Rules)
	}
	if h.node == "" {
		return
	}
	var page fleet.OperationsPage
	if err := h.r.call(h.t, "operations/list", obj{"nodeId": h.node}, &page); err != nil {
		h.t.Log(err)
	}
	for _, o := range page.Items {
		h.t.Logf("%s %s: error %+v, left behind %q, steps %+v", o.Verb, o.State, o.Error, o.LeftBehind, o.Steps)
	}
}

// faults puts a fault file on the machine.
func (h *host) faults(f *sim.FaultFile) {
	h.t.Helper()
	if err := h.SetFaults(f); err != nil {
		h.t.Fatal(err)
	}
}

// enroll enrolls the machine as unused and returns the ended operation.
func (h *host) enroll(more obj) fleet.Operation {
	h.t.Helper()
	in := obj{"siteId": h.r.site, "name": strings.ToLower(h.ID()), "inUse": false,
		"bmc": obj{"address": h.Address(), "username": h.Username(), "password": h.Password(), "tls": h.tls}}
	for k, v := range more {
		in[k] = v
	}
	var out fleet.MetalOperationOut
	if err := h.r.call(h.t, "metal/enroll", in, &out); err != nil {
		h.t.Fatalf("enroll: %v", err)
	}
	h.node = out.Node.ID
	return h.await(out.Operation.ID)
}

// begin starts a verb and returns its operation as it was accepted.
func (h *host) begin(verb string, more obj) fleet.Operation {
	h.t.Helper()
	in := obj{"nodeId": h.node}
	for k, v := range more {
		in[k] = v
	}
	var out fleet.MetalOperationOut
	if err := h.r.call(h.t, "metal/"+verb, in, &out); err != nil {
		h.t.Fatalf("%s: %v", verb, err)
	}
	return *out.Operation
}

// do runs a verb to its end.
func (h *host) do(verb string, more obj) fleet.Operation {
	h.t.Helper()
	return h.await(h.begin(verb, more).ID)
}

// operation reads an operation.
func (h *host) operation(id string) fleet.Operation {
	h.t.Helper()
	var out fleet.OperationOut
	if err := h.r.call(h.t, "operations/get", obj{"operationId": id}, &out); err != nil {
		h.t.Fatal(err)
	}
	return out.Operation
}

// await waits until an operation, and those that its chain adds, has ended or
// is parked.
func (h *host) await(id string) fleet.Operation {
	h.t.Helper()
	return h.until(id, func(o fleet.Operation) bool {
		return o.State == fleet.OpFailed || o.EndedAt != nil
	})
}

// until waits until an operation is as wanted; of a chain, the last.
func (h *host) until(id string, wanted func(fleet.Operation) bool) fleet.Operation {
	h.t.Helper()
	deadline := time.Now().Add(rigPatience)
	for {
		o := h.operation(id)
		switch {
		case wanted(o) && o.Next == "":
			return o
		case o.Next != "":
			id = o.Next
		case time.Now().After(deadline):
			h.t.Fatalf("%s of %s is %s for too long: %+v", o.Verb, h.ID(), o.State, o.Steps)
		default:
			if err := h.r.call(h.t, "operations/wait", obj{"operationId": id, "timeoutSeconds": 1}, nil); err != nil {
				h.t.Fatal(err)
			}
		}
	}
}

// poll looks until something is so.
func (h *host) poll(what string, so func() bool) {
	h.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(rigPatience); !so(); <-tick.C {
		if time.Now().After(deadline) {
			h.t.Fatalf("%s: %s never came", h.ID(), what)
		}
	}
}

// metal is the node's metal view.
func (h *host) metal() fleet.MetalNode {
	h.t.Helper()
	var out fleet.MetalOut
	if err := h.r.call(h.t, "metal/get", obj{"nodeId": h.node}, &out); err != nil {
		h.t.Fatal(err)
	}
	return out.Node
}

// condition is a condition of the node, "" where it has none of that type.
func (h *host) condition(kind string) fleet.ConditionStatus {
	h.t.Helper()
	var out fleet.NodeOut
	if err := h.r.call(h.t, "nodes/get", obj{"nodeId": h.node}, &out); err != nil {
		h.t.Fatal(err)
	}
	for _, c := range out.Node.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return ""
}

// told is the data of an operation's event of a type.
func (h *host) told(operation, kind string) string {
	h.t.Helper()
	var data string
	err := h.r.store.Pool().QueryRow(context.Background(), `SELECT data::text FROM events WHERE node_id = $1 AND type = $2 AND data->>'operationId' = $3`,
		h.node, kind, operation).Scan(&data)
	if err != nil {
		h.t.Fatalf("event %s: %v", kind, err)
	}
	return data
}

// heard says whether the node has an event of a type.
func (h *host) heard(kind string) bool {
	h.t.Helper()
	var heard bool
	if err := h.r.store.Pool().QueryRow(context.Background(), `SELECT EXISTS (SELECT FROM events WHERE node_id = $1 AND type = $2)`, h.node, kind).Scan(&heard); err != nil {
		h.t.Fatal(err)
	}
	return heard
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
