package gate_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/gate"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/seal"
	"github.com/bettercompute/compute/store/storetest"
)

// driver stands in for a BMC driver: it knows the password that works, logs in
// as drivers do, and asks before its one changing request.
type driver struct {
	password string
	logins   int
	logouts  int
	ip       string
	// loggingIn is told of each login, which then waits for mayLogIn; nil is no
	// wait.
	loggingIn, mayLogIn chan struct{}
	// asks is how long the BMC asks to be left alone, toldQuiet what an opening
	// was told of it.
	asks, toldQuiet time.Duration
	// refuses is what an opening gets; nil opens.
	refuses error
}

func (d *driver) open(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Client, error) {
	if err := opts.AllowAddress(d.ip); err != nil {
		return nil, &bmc.Error{Kind: bmc.KindNotAllowed, Doing: "dial", Cause: err.Error()}
	}
	if d.refuses != nil {
		return nil, d.refuses
	}
	c := &conversation{driver: d, opts: opts, quirks: target.Quirks}
	d.toldQuiet = time.Until(opts.NotBefore())
	if d.asks > 0 {
		opts.Hinted(time.Now().Add(d.asks))
	}
	if opts.Session != nil {
		uri, _, err := opts.Session.Load(ctx)
		if err != nil || uri != "" {
			return c, err
		}
	}
	d.logins++
	if d.loggingIn != nil {
		d.loggingIn <- struct{}{}
		<-d.mayLogIn
	}
	if target.Password != d.password {
		return nil, &bmc.Error{Kind: bmc.KindAuth, Doing: "log in", Cause: "401"}
	}
	if opts.Session != nil {
		return c, opts.Session.Save(ctx, "/sessions/1", "token")
	}
	return c, nil
}

// conversation is a client of which the tests use three methods.
type conversation struct {
	bmc.Client
	driver *driver
	opts   bmc.Options
	quirks []string
}

func (c *conversation) Power(ctx context.Context) (bmc.PowerState, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

func (c *conversation) SetBoot(ctx context.Context, _ bmc.BootOverride) error {
	c.opts.Learned(append(c.quirks, "learned"))
	return c.opts.BeforeChange(ctx)
}

func (c *conversation) Close(ctx context.Context) error {
	if c.opts.Session != nil && c.opts.Session.Keep() {
		return nil
	}
	c.driver.logouts++
	if c.opts.Session != nil {
		return c.opts.Session.Save(ctx, "", "")
	}
	return nil
}

type bundle struct {
	t      *testing.T
	pool   *pgxpool.Pool
	store  *store.Store
	driver *driver
	gate   *gate.Gate
}

// newBundle has node_a with a BMC and a live power operation op_1.
func newBundle(t *testing.T) *bundle {
	t.Helper()
	pool := storetest.New(t)
	keys, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	s := store.New(pool, store.Options{Seal: keys})
	b := &bundle{t: t, pool: pool, store: s, driver: &driver{password: "hunter2", ip: "10.1.2.3"}}
	b.gate = b.newGate("w1")
	b.exec(`INSERT INTO tenants (id) VALUES ('acme')`)
	b.exec(`INSERT INTO sites (id, tenant_id, name, spec) VALUES ('site_1', 'acme', 'one', '{"name": "one", "allowedNetworks": ["10.1.0.0/16"]}')`)
	b.exec(`INSERT INTO nodes (id, tenant_id, site_id, provision_state) VALUES ('node_a', 'acme', 'site_1', 'ready')`)
	sealed, err := s.SealBMCPassword("node_a", "hunter2")
	if err != nil {
		t.Fatal(err)
	}
	b.exec(`INSERT INTO bmcs (node_id, site_id, address, driver, username, password, tls_mode) VALUES ('node_a', 'site_1', 'https://10.1.2.3', 'redfish', 'admin', $1, 'insecure')`, sealed)
	b.begin("op_1", "power")
	return b
}

func (b *bundle) newGate(holder string) *gate.Gate {
	return &gate.Gate{Store: b.store, Holder: holder, OpenBMC: b.driver.open, Log: slog.New(slog.DiscardHandler),
		Waits: bmc.Waits{Request: time.Minute, Busy: time.Second}}
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.pool.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bundle) begin(id string, verb fleet.Verb) {
	b.t.Helper()
	err := b.store.InTx(b.t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		return b.store.InsertOperation(ctx, tx, store.NewOperation{ID: id, NodeID: "node_a", TenantID: "acme", Verb: verb, Lane: store.LaneProvision,
			Input: map[string]any{}, RequestedBy: "dev:owner"})
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// One change at a time: the second holder is told busy with a delay, and gets
// its turn after the release. Reading goes on beside it.
func TestOneChange(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	_, release, err := b.gate.Open(t.Context(), "op_1", "node_a", true)
	if err != nil {
		t.Fatal(err)
	}
	other := b.newGate("w2")
	_, _, err = other.Open(t.Context(), "op_1", "node_a", true)
	var busy *bmc.Error
	if !errors.As(err, &busy) || busy.Kind != bmc.KindBusy || busy.RetryAfter <= 0 {
		t.Errorf("second change: err = %v, want busy with a delay", err)
	}
	_, done, err := other.Open(t.Context(), "op_1", "node_a", false)
	if err != nil {
		t.Fatalf("reading beside a change: %v", err)
	}
	done(t.Context())
	release(t.Context())
	if _, release, err = other.Open(t.Context(), "op_1", "node_a", true); err != nil {
		t.Fatalf("change after the release: %v", err)
	}
	release(t.Context())
	if b.driver.logins != 1 || b.driver.logouts != 0 {
		t.Errorf("%d logins and %d logouts, want the one session handed on", b.driver.logins, b.driver.logouts)
	}
	if err := other.EndSessions(t.Context(), "node_a"); err != nil || b.driver.logouts != 1 {
		t.Errorf("end of the session: %v, %d logouts", err, b.driver.logouts)
	}
}

// An operation that lost its node neither opens it for a change nor sends one
// from a conversation it has.
func TestFenceBeforeChange(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	client, release, err := b.gate.Open(t.Context(), "op_1", "node_a", true)
	if err != nil {
		t.Fatal(err)
	}
	defer release(t.Context())
	if err := client.SetBoot(t.Context(), bmc.BootOverride{}); err != nil {
		t.Fatalf("change while the fence is held: %v", err)
	}
	b.exec(`UPDATE nodes SET provision_op = 'op_2'`)
	if err := client.SetBoot(t.Context(), bmc.BootOverride{}); fleet.ReasonOf(err) != store.ReasonSuperseded {
		t.Errorf("change after the fence was lost: %v, want superseded", err)
	}
	if _, _, err := b.newGate("w2").Open(t.Context(), "op_1", "node_a", true); fleet.ReasonOf(err) != store.ReasonSuperseded {
		t.Errorf("opening after the fence was lost: %v, want superseded", err)
	}
}

// A lease that another worker took over stops the next change, and reading
// gives no right to change.
func TestLostLease(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	client, release, err := b.gate.Open(t.Context(), "op_1", "node_a", true)
	if err != nil {
		t.Fatal(err)
	}
	defer release(t.Context())
	b.exec(`UPDATE bmc_leases SET token = token + 1, holder = 'w2'`)
	if err := client.SetBoot(t.Context(), bmc.BootOverride{}); bmc.KindOf(err) != bmc.KindBusy {
		t.Errorf("change under a lost lease: %v, want busy", err)
	}
	reader, done, err := b.gate.Open(t.Context(), "op_1", "node_a", false)
	if err != nil {
		t.Fatal(err)
	}
	defer done(t.Context())
	if err := reader.SetBoot(t.Context(), bmc.BootOverride{}); err == nil {
		t.Error("a conversation opened for reading could change")
	}
}

// Requests end before the lease does: a holder whose lease was taken is
// cancelled, busy.
func TestRequestEndsWithLease(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	b.gate.Waits.Request = 200 * time.Millisecond
	client, release, err := b.gate.Open(t.Context(), "op_1", "node_a", false)
	if err != nil {
		t.Fatal(err)
	}
	defer release(t.Context())
	b.exec(`UPDATE bmc_leases SET token = token + 1`)
	if _, err := client.Power(t.Context()); bmc.KindOf(err) != bmc.KindBusy {
		t.Errorf("request under a lost lease ended with %v, want busy", err)
	}
}

// An address outside the site's networks is refused in the dial.
func TestAllowedNetworks(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	b.driver.ip = "10.2.0.1"
	if _, _, err := b.gate.Open(t.Context(), "op_1", "node_a", false); bmc.KindOf(err) != bmc.KindNotAllowed {
		t.Errorf("err = %v, want address-not-allowed", err)
	}
	if b.driver.logins != 0 {
		t.Error("a login was sent")
	}
}

// A rotation that was cut off after it set the password does not lock us out:
// the staged one is tried once and recorded.
func TestStagedPassword(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	if err := b.store.StageCredentials(t.Context(), "op_1"); err != nil {
		t.Fatal(err)
	}
	staged, err := b.store.StagedPassword(t.Context(), "op_1")
	if err != nil {
		t.Fatal(err)
	}
	b.driver.password = staged
	if _, _, err := b.gate.Open(t.Context(), "op_1", "node_a", true); bmc.KindOf(err) != bmc.KindAuth {
		t.Errorf("the rotation itself got %v, want the refusal it must judge", err)
	}
	if err := b.store.FailOperation(t.Context(), "op_1", fleet.OperationFailure{Code: "timeout"}); err != nil {
		t.Fatal(err)
	}
	b.begin("op_2", "power")
	_, release, err := b.gate.Open(t.Context(), "op_2", "node_a", true)
	if err != nil {
		t.Fatalf("open after a rotation that was cut off: %v", err)
	}
	release(t.Context())
	access, err := b.store.LoadBMCAccess(t.Context(), "node_a")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := b.store.OpenBMCPassword("node_a", access.Password); err != nil || got != staged || access.Staged != nil {
		t.Errorf("the staged password was not recorded (%v)", err)
	}
}

// What one client learned of a BMC the next one is told, until the BMC is
// another one.
func TestLearned(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	client, release, err := b.gate.Open(t.Context(), "op_1", "node_a", true)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.SetBoot(t.Context(), bmc.BootOverride{}); err != nil {
		t.Fatal(err)
	}
	release(t.Context())
	access, err := b.store.LoadBMCAccess(t.Context(), "node_a")
	if err != nil || len(access.Quirks) != 1 || access.Quirks[0] != "learned" {
		t.Fatalf("kept %q, %v", access.Quirks, err)
	}
	node, err := store.LoadMetal(t.Context(), b.pool, "node_a")
	if err != nil || len(node.BMC.Quirks) != 1 {
		t.Errorf("shown %+v, %v", node.BMC, err)
	}
	moved := access.BMCRecord
	moved.Address.Host = "127.0.0.77"
	if err := b.store.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { return store.UpdateBMC(ctx, tx, moved) }); err != nil {
		t.Fatal(err)
	}
	if err := b.store.RecordQuirks(t.Context(), "node_a", access.Address.String(), []string{"of the old one"}); err != nil {
		t.Fatal(err)
	}
	if access, err = b.store.LoadBMCAccess(t.Context(), "node_a"); err != nil || len(access.Quirks) != 0 || access.Found != "" {
		t.Errorf("another BMC has %q, driver %q, %v", access.Quirks, access.Found, err)
	}
}
