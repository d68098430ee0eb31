package gateway_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// memberHost is a host that joins.
type memberHost struct {
	uuid string
	// macs are the host's; nil is one.
	macs []string

	mu      sync.Mutex
	specs   []fleet.NodeSpec
	failing bool
	// applying, when not nil, is called with each NodeSpec.
	applying func(fleet.NodeSpec)
	removed  bool
	// began, when not nil, gets a value when an acceptance begins, which then
	// waits for its context.
	began chan struct{}
	runs  int
}

func (h *memberHost) Hardware(context.Context) (fleet.Hardware, error) {
	macs := h.macs
	if macs == nil {
		macs = []string{"00:1b:21:00:00:01"}
	}
	return fleet.Hardware{UUID: h.uuid, MACs: macs}, nil
}

func (h *memberHost) Inventory(context.Context) (fleet.Inventory, error) {
	return fleet.Inventory{UUID: h.uuid}, nil
}

func (h *memberHost) Acceptance(ctx context.Context) (fleet.AcceptanceFacts, error) {
	h.mu.Lock()
	h.runs++
	h.mu.Unlock()
	if h.began != nil {
		h.began <- struct{}{}
		<-ctx.Done()
		return fleet.AcceptanceFacts{}, ctx.Err()
	}
	return fleet.AcceptanceFacts{Kernel: "6.12.0", DiskFreeBytes: 1 << 40}, nil
}

func (h *memberHost) ApplySpec(_ context.Context, spec fleet.NodeSpec) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.applying != nil {
		h.applying(spec)
	}
	if h.failing {
		return "sshd_config line 3: TrustedUserCAKeys", errors.New("sshd refused it")
	}
	h.specs = append(h.specs, spec)
	return "", nil
}

func (h *memberHost) RemoveSpec(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removed = true
	return nil
}

// joinToken makes a join token of the site.
func (r *rig) joinToken(uses int) string {
	r.t.Helper()
	secret := "join-" + rand.Text()
	sum := sha256.Sum256([]byte(secret))
	if _, err := r.Pool().Exec(r.t.Context(), `INSERT INTO join_tokens (id, tenant_id, site_id, hash, max_uses, expires_at, created_by)
		VALUES ($1, 'acme', $2, $3, $4, now() + interval '1 hour', 'dev:owner')`, store.NewID(fleet.KindJoinToken), r.Site, sum[:], uses); err != nil {
		r.t.Fatal(err)
	}
	return secret
}

func (r *rig) slog() *slog.Logger { return slog.New(slog.NewJSONHandler(r.log, nil)) }

// joined joins a host and returns its state's folder.
func (r *rig) joined(h *memberHost) (agent.State, agent.Identity) {
	r.t.Helper()
	state := agent.State{Dir: r.t.TempDir()}
	id, err := agent.Join(r.t.Context(), agent.JoinConfig{GatewayURL: r.GatewayURL, CAFingerprint: r.ca.Fingerprint(), Token: r.joinToken(1), State: state,
		Log: r.slog(), RetryPause: 10 * time.Millisecond}, h)
	if err != nil {
		r.t.Fatal(err)
	}
	return state, id
}

// serve runs a joined host's agent; stop ends it and returns how it ended.
func (r *rig) serve(state agent.State, h *memberHost, configure ...func(*agent.ServeConfig)) (stop func() error) {
	cfg := agent.ServeConfig{State: state, Host: h, Log: r.slog(), Heartbeat: 20 * time.Millisecond, ProgressEvery: 5 * time.Millisecond, RetryPause: 10 * time.Millisecond}
	for _, f := range configure {
		f(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- agent.Serve(ctx, cfg) }()
	var once sync.Once
	var err error
	stop = func() error {
		once.Do(func() { cancel(); err = <-ended })
		return err
	}
	r.t.Cleanup(func() { _ = stop() })
	return stop
}

func (r *rig) node(id string) fleet.Node {
	r.t.Helper()
	n, err := store.LoadNode(r.t.Context(), r.Pool(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) awaitEpoch(nodeID string, epoch int64) {
	r.t.Helper()
	await(r.t, "session "+strconv.FormatInt(epoch, 10), func() bool {
		s := r.node(nodeID).Session
		return s != nil && s.Epoch >= epoch && s.DisconnectedAt == nil
	})
}

func condition(n fleet.Node, typ string) fleet.ConditionStatus {
	for _, c := range n.Conditions {
		if c.Type == typ {
			return c.Status
		}
	}
	return ""
}

// revoke revokes a node's identity as nodes/revokeIdentity does.
func (r *rig) revoke(nodeID string) {
	r.t.Helper()
	err := r.InTx(r.t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if err := store.LockNode(ctx, tx, nodeID); err != nil {
			return err
		}
		_, _, err := store.RevokeNodeIdentity(ctx, tx, nodeID, "test")
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// A machine joins, has a session, and applies its NodeSpec; a second start of its
// agent is a later epoch; when it leaves, nothing of it is on the host and the
// node stays.
func TestMemberLife(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &memberHost{uuid: "4c4c4544-0051-3910-8053-b4c04f4e3934"}
	state, id := r.joined(h)
	stop := r.serve(state, h)
	r.awaitEpoch(id.NodeID, 1)
	if n := r.node(id.NodeID); condition(n, "Connected") != fleet.ConditionTrue || !strings.HasPrefix(n.Session.Gateway, "gw-") {
		t.Errorf("node = %+v", n)
	}
	if _, err := r.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "the spec applied", func() bool {
		var applied *int64
		if err := r.Pool().QueryRow(t.Context(), `SELECT applied FROM node_specs WHERE node_id = $1`, id.NodeID).Scan(&applied); err != nil {
			t.Fatal(err)
		}
		return applied != nil && *applied == 1
	})
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("agent ended with %v", err)
	}
	again := r.serve(state, h)
	r.awaitEpoch(id.NodeID, 2)
	if err := again(); !errors.Is(err, context.Canceled) {
		t.Errorf("agent ended with %v", err)
	}
	if err := agent.Leave(t.Context(), state, h, r.slog()); err != nil {
		t.Fatal(err)
	}
	if n := r.node(id.NodeID); condition(n, "Connected") != fleet.ConditionFalse || n.Session.DisconnectedAt == nil {
		t.Errorf("after leaving: %+v", n)
	}
	if left, err := os.ReadDir(state.Dir); err != nil || len(left) > 0 || !h.removed {
		t.Errorf("left on the host: %v, %v, spec removed = %v", left, err, h.removed)
	}
	if err := agent.Serve(t.Context(), agent.ServeConfig{State: state, Host: h, Log: r.slog()}); !errors.Is(err, agent.ErrNotJoined) {
		t.Errorf("after leaving the agent runs: %v", err)
	}
	for _, secret := range []string{"join-", "PRIVATE KEY"} {
		if strings.Contains(r.log.String(), secret) {
			t.Errorf("the log shows %q", secret)
		}
	}
}

// Revoked, a session is closed on its gateway and the machine comes back only by
// joining again, as the same node of the next generation.
func TestRevocationEndsSession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &memberHost{uuid: "4c4c4544-0051-3910-8053-b4c04f4e3934"}
	state, id := r.joined(h)
	cfg := agent.ServeConfig{State: state, Host: h, Log: r.slog(), RetryPause: 10 * time.Millisecond}
	ended := make(chan error, 1)
	go func() { ended <- agent.Serve(context.Background(), cfg) }()
	r.awaitEpoch(id.NodeID, 1)
	r.revoke(id.NodeID)
	if err := <-ended; !errors.Is(err, agent.ErrRevoked) {
		t.Errorf("agent ended with %v, want %v", err, agent.ErrRevoked)
	}
	if n := r.node(id.NodeID); condition(n, "Connected") != "" {
		t.Errorf("Connected is still there: %+v", n.Conditions)
	}
	next, err := agent.Join(t.Context(), agent.JoinConfig{GatewayURL: r.GatewayURL, CAFingerprint: r.ca.Fingerprint(), Token: r.joinToken(1), State: state, Log: r.slog()}, h)
	if err != nil {
		t.Fatal(err)
	}
	if next.NodeID != id.NodeID || next.Generation <= id.Generation {
		t.Errorf("joined again as %+v, before %+v", next, id)
	}
}

// A command is run once, also when the agent is killed while it runs: then it is
// told as interrupted.
func TestMemberCommands(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &memberHost{uuid: "4c4c4544-0051-3910-8053-b4c04f4e3934", began: make(chan struct{}, 1)}
	state, id := r.joined(h)
	op := r.node(id.NodeID).Operations.Provision
	if _, err := r.BeginOperation(t.Context(), op, "run-1"); err != nil {
		t.Fatal(err)
	}
	stop := r.serve(state, h)
	send := func(key string) string {
		cmd, err := r.SendNodeCommand(t.Context(), op, fleet.CommandIn{Key: key, Type: agent.TypeAccept, Args: struct{}{}, Expires: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	first := send("first")
	<-h.began
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Fatalf("agent ended with %v", err)
	}
	h.began = nil
	r.serve(state, h)
	if c := r.awaitCommand(first); c.State != store.CommandFailed || !strings.Contains(c.Error, "not run again") {
		t.Errorf("interrupted: %+v", c)
	}
	if h.runs != 1 {
		t.Errorf("the command ran %d times, want once", h.runs)
	}
	c := r.awaitCommand(send("second"))
	var facts fleet.AcceptanceFacts
	if err := json.Unmarshal(c.Data, &facts); err != nil {
		t.Fatal(err)
	}
	if c.State != store.CommandSucceeded || facts.GatewayError != "" || facts.ClockOffsetSeconds == nil || facts.Kernel != "6.12.0" {
		t.Errorf("%+v, facts %+v", c, facts)
	}
}

// Certificates are renewed before they end, with the same key, and the session
// goes on with the new one.
func TestRenewal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &memberHost{uuid: "4c4c4544-0051-3910-8053-b4c04f4e3934"}
	state, id := r.joined(h)
	due := time.Now()
	r.serve(state, h, func(c *agent.ServeConfig) {
		c.RenewAt = func(_, notAfter time.Time) time.Time {
			if at := due; !at.IsZero() {
				due = time.Time{}
				return at
			}
			return notAfter
		}
	})
	r.awaitEpoch(id.NodeID, 1)
	rows, err := r.Pool().Query(t.Context(), `SELECT key_hash, generation FROM certificates WHERE node_id = $1 AND revoked_at IS NULL`, id.NodeID)
	if err != nil {
		t.Fatal(err)
	}
	type cert struct {
		Key        []byte
		Generation int64
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[cert])
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || !bytes.Equal(got[0].Key, got[1].Key) || got[0].Generation != got[1].Generation {
		t.Errorf("certificates %+v, want two of one key and generation", got)
	}
}

// A host whose clock is ahead, so that each certificate seems due, renews once and
// is served.
func TestRenewalWithTheClockAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &memberHost{uuid: "4c4c4544-0051-3910-8053-b4c04f4e3934"}
	state, id := r.joined(h)
	if _, err := r.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A certificate begins an hour before it is issued.
	r.serve(state, h, func(c *agent.ServeConfig) {
		c.RenewAt = func(from, _ time.Time) time.Time { return from.Add(30 * time.Minute) }
	})
	certs := func() int { return r.count(`SELECT count(*) FROM certificates WHERE node_id = $1`, id.NodeID) }
	await(t, "its NodeSpec, or one renewal after the other", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.specs) > 0 || certs() > 3
	})
	if n := certs(); n != 2 {
		t.Errorf("%d certificates, want the one of the join and one renewed", n)
	}
}

// A certificate that was renewed serves though the disk is full; the one that is
// kept there is the former one, which renews after a restart.
func TestRenewalOnAFullDisk(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &memberHost{uuid: "4c4c4544-0051-3910-8053-b4c04f4e3934"}
	state, id := r.joined(h)
	kept := filepath.Join(state.Dir, "cert.pem")
	before, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", kept+".new"); err != nil {
		t.Fatal(err)
	}
	first := true
	due := func(c *agent.ServeConfig) {
		c.RenewAt = func(from, notAfter time.Time) time.Time {
			if first {
				first = false
				return from
			}
			return notAfter
		}
	}
	stop := r.serve(state, h, due)
	r.awaitEpoch(id.NodeID, 1)
	if n := r.count(`SELECT count(*) FROM certificates WHERE node_id = $1`, id.NodeID); n != 2 {
		t.Errorf("%d certificates, want the one of the join and one renewed", n)
	}
	if after, err := os.ReadFile(kept); err != nil || !bytes.Equal(after, before) || !r.logged("the renewed certificate could not be kept") {
		t.Errorf("the certificate on the disk: %v", err)
	}
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("agent ended with %v", err)
	}
	first = true
	r.serve(state, h, due)
	r.awaitEpoch(id.NodeID, 2)
}

// A machine that is silent is lost after a while, and only when a gateway was
// there to hear it; it is back with its next session.
func TestSilence(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &memberHost{uuid: "4c4c4544-0051-3910-8053-b4c04f4e3934"}
	state, id := r.joined(h)
	stop := r.serve(state, h)
	r.awaitEpoch(id.NodeID, 1)
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	lose := func(want int) {
		t.Helper()
		if _, err := r.Pool().Exec(t.Context(), `UPDATE sessions SET last_seen_at = now() - interval '91 seconds'`); err != nil {
			t.Fatal(err)
		}
		if got, err := r.LoseSessions(t.Context()); err != nil || got != want {
			t.Errorf("lost %d, %v; want %d", got, err, want)
		}
	}
	lose(0) // the gateway has not served for long
	if _, err := r.Pool().Exec(t.Context(), `UPDATE gateways SET since = now() - interval '1 hour'`); err != nil {
		t.Fatal(err)
	}
	lose(1)
	n := r.node(id.NodeID)
	if condition(n, "Connected") != fleet.ConditionFalse || len(n.NoScheduleReasons) != 1 || n.NoScheduleReasons[0] != fleet.ReasonUnreachable {
		t.Errorf("lost: %v %v", n.Conditions, n.NoScheduleReasons)
	}
	r.serve(state, h)
	r.awaitEpoch(id.NodeID, 2)
	if n := r.node(id.NodeID); condition(n, "Connected") != fleet.ConditionTrue || len(n.NoScheduleReasons) != 0 {
		t.Errorf("back: %v %v", n.Conditions, n.NoScheduleReasons)
	}
	if _, err := os.Stat(filepath.Join(state.Dir, "key.pem")); err != nil {
		t.Error(err)
	}
}
