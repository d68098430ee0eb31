package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/gateway"
	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/seal"
	"github.com/bettercompute/compute/store/storetest"
)

// logBuffer is a log that tests read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// rig is a gateway over real TLS and Postgres, and a node with a running
// deploy.
type rig struct {
	*store.Store
	t        *testing.T
	ca       *identity.CA
	issuer   *identity.Issuer
	log      *logBuffer
	Node, Op string
	Site     string
}

func newRig(t *testing.T, configure ...func(*gateway.Config)) *rig {
	t.Helper()
	ca, err := identity.NewCA("test CA")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	node, boot := listen(t), listen(t)
	s := store.New(storetest.New(t), store.Options{Seal: keys, BootKey: []byte(strings.Repeat("k", 32)),
		BootURL: "http://" + boot.Addr().String(), GatewayURL: "https://" + node.Addr().String()})
	r := &rig{Store: s, t: t, ca: ca, log: &logBuffer{}, Node: store.NewID(fleet.KindNode), Op: store.NewID(fleet.KindOperation)}
	between, err := ca.NewIntermediate("nodes")
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := identity.NewIssuer(between, ca.Cert, "compute.example")
	if err != nil {
		t.Fatal(err)
	}
	r.issuer = issuer
	cfg := gateway.Config{Store: s, CA: ca, Nodes: issuer, Poll: 50 * time.Millisecond, Log: slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, f := range configure {
		f(&cfg)
	}
	r.run(cfg, node, boot)
	r.begin()
	return r
}

// run runs a gateway until the test ends.
func (r *rig) run(cfg gateway.Config, node, boot net.Listener) {
	r.t.Helper()
	g, err := gateway.New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- g.Serve(ctx, node, boot) }()
	r.t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			r.t.Errorf("Serve: %v", err)
		}
	})
}

// another runs one more gateway of the same control plane and returns its URL.
func (r *rig) another() string {
	r.t.Helper()
	node := listen(r.t)
	r.run(gateway.Config{Store: r.Store, CA: r.ca, Nodes: r.issuer, Poll: 50 * time.Millisecond, Log: r.slog()}, node, listen(r.t))
	return "https://" + node.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// begin makes the node and its running deploy.
func (r *rig) begin() {
	r.t.Helper()
	ctx, site := r.t.Context(), store.NewID(fleet.KindSite)
	r.Site = site
	err := r.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		for _, sql := range []string{
			`INSERT INTO tenants (id) VALUES ('acme')`,
			`INSERT INTO sites (id, tenant_id, name, spec) VALUES ('` + site + `', 'acme', 'lab', '{"tokenOnlyJoin": true}')`,
			`INSERT INTO nodes (id, tenant_id, site_id, provision_state) VALUES ('` + r.Node + `', 'acme', '` + site + `', 'deploying')`,
		} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return r.InsertOperation(ctx, tx, store.NewOperation{ID: r.Op, NodeID: r.Node, TenantID: "acme", Verb: fleet.VerbDeploy, Lane: store.LaneProvision,
			Input: map[string]any{}, Secrets: map[string]string{fleet.SecretUserData: "hush-user-data"}, RequestedBy: "dev:owner"})
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.BeginOperation(ctx, r.Op, "run-1"); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) arm(number int) fleet.Boot {
	r.t.Helper()
	b, err := r.ArmBoot(r.t.Context(), r.Op, number)
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

// agentConfig runs an agent at test speed.
func (r *rig) agentConfig(b fleet.Boot) agent.Config {
	return agent.Config{BootConfigURL: r.BootURL + "/boot/" + b.ID + "/config", Heartbeat: 20 * time.Millisecond,
		ProgressEvery: 5 * time.Millisecond, RetryPause: 20 * time.Millisecond, Log: slog.New(slog.NewJSONHandler(r.log, nil))}
}

// startAgent runs an agent until the test ends; its end is in the channel.
func (r *rig) startAgent(b fleet.Boot, h agent.Host) <-chan error {
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	r.t.Cleanup(stop)
	go func() { ended <- agent.Run(ctx, r.agentConfig(b), h) }()
	return ended
}

func (r *rig) send(key, typ string, args any, secrets map[string]string) string {
	r.t.Helper()
	id, err := r.SendCommand(r.t.Context(), r.Op, fleet.CommandIn{Key: key, Type: typ, Args: args, Secrets: secrets, Expires: time.Hour})
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

// await waits until a condition holds; the test's own deadline is the bound.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-t.Context().Done():
			t.Fatalf("never came: %s", what)
		case <-tick.C:
		}
	}
}

func (r *rig) awaitCommand(id string) fleet.Command {
	r.t.Helper()
	var c fleet.Command
	await(r.t, "the end of command "+id, func() bool {
		var err error
		if c, err = r.Command(r.t.Context(), id); err != nil {
			r.t.Fatal(err)
		}
		return c.State != store.CommandPending && c.State != store.CommandDelivered
	})
	return c
}

// host is a machine with two disks that notes what was asked of it.
type host struct {
	mu     sync.Mutex
	writes int
	docs   agent.ConfigDrive
	// blocked, when not nil, makes WriteImage wait for its context.
	blocked chan struct{}
}

func (h *host) Hardware(context.Context) (fleet.Hardware, error) {
	return fleet.Hardware{Serial: "S1"}, nil
}

func (h *host) Inventory(context.Context) (fleet.Inventory, error) {
	return fleet.Inventory{Serial: "S1", Vendor: "Vendor\x00", Disks: []fleet.Disk{{Serial: "D1", SizeBytes: 64 << 30, Type: "nvme"}, {Serial: "D2", SizeBytes: 32 << 30, Type: "ssd"}}}, nil
}

func (h *host) Test(_ context.Context, name string, _ agent.Progress) (agent.TestResult, error) {
	return agent.TestResult{OK: name != "nic", Detail: "link down"}, nil
}

func (h *host) WriteImage(ctx context.Context, _ fleet.Disk, image agent.WriteImage, progress agent.Progress) (agent.Written, error) {
	h.mu.Lock()
	h.writes++
	h.mu.Unlock()
	progress(50, "half of it")
	if h.blocked != nil {
		close(h.blocked)
		<-ctx.Done()
		return agent.Written{}, context.Cause(ctx)
	}
	return agent.Written{SHA256: strings.TrimPrefix(image.Checksum, "sha256:"), Bytes: image.Size}, nil
}

func (h *host) ConfigDrive(_ context.Context, d fleet.Disk, docs agent.ConfigDrive) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.docs = docs
	h.docs.Disk = d.Serial
	return nil
}

func (h *host) Erase(_ context.Context, serial, _ string, _ agent.Progress) error {
	if serial == "D9" {
		return errors.Join(errors.New("no such disk"), agent.ErrNoAnswer)
	}
	return nil
}

func (h *host) Rescue(context.Context, []string) error { return nil }

func (h *host) Finish(context.Context) error { return nil }

// get asks the plain listener.
func (r *rig) get(path string, header ...string) (*http.Response, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.BootURL+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp, string(b)
}

// post asks the TLS listener as a machine would.
func (r *rig) post(path, session string, body any) (int, map[string]any) {
	r.t.Helper()
	raw, ok := body.(string)
	if !ok {
		b, err := json.Marshal(body)
		if err != nil {
			r.t.Fatal(err)
		}
		raw = string(b)
	}
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.GatewayURL+path, strings.NewReader(raw))
	if err != nil {
		r.t.Fatal(err)
	}
	if session != "" {
		req.Header.Set("Authorization", "Bearer "+session)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: identity.PinnedTLS(r.ca.Fingerprint(), "127.0.0.1"), ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.ProtoMajor != 2 {
		r.t.Errorf("%s was answered over %s, want HTTP/2", path, resp.Proto)
	}
	var out map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil && !errors.Is(err, io.EOF) {
		r.t.Fatal(err)
	}
	return resp.StatusCode, out
}

func (r *rig) config(b fleet.Boot) agent.BootConfig {
	r.t.Helper()
	_, body := r.get("/boot/" + b.ID + "/config")
	c, err := agent.ParseBootConfig([]byte(body))
	if err != nil {
		r.t.Fatal(err)
	}
	return *c
}
