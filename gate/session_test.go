package gate_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/store"
)

// sweepLease takes the read lease of node_a as a sweep does.
func (b *bundle) sweepLease() store.Lease {
	b.t.Helper()
	lease, _, err := b.store.TakeLease(b.t.Context(), store.LeaseAsk{NodeID: "node_a", Holder: "sweep", Reads: 1, Life: time.Hour})
	if err != nil || lease == nil {
		b.t.Fatalf("read lease: %v, %v", lease, err)
	}
	return *lease
}

// One that comes while another logs in waits, and uses the same session: the
// other's end does not take it away.
func TestOneSessionForTwo(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	access, err := b.store.LoadBMCAccess(t.Context(), "node_a")
	if err != nil {
		t.Fatal(err)
	}
	b.driver.loggingIn, b.driver.mayLogIn = make(chan struct{}, 2), make(chan struct{})
	sweepDone := make(chan func())
	go func() {
		lease := b.sweepLease()
		_, release, err := b.newGate("sweep").OpenLeased(t.Context(), access, lease, time.Now().Add(time.Hour))
		if err != nil {
			t.Error(err)
		}
		sweepDone <- func() { release(t.Context()) }
	}()
	<-b.driver.loggingIn
	opened := make(chan func())
	go func() {
		_, release, err := b.gate.Open(t.Context(), "op_1", "node_a", true)
		if err != nil {
			t.Error(err)
		}
		opened <- func() { release(t.Context()) }
	}()
	close(b.driver.mayLogIn)
	endSweep, endChange := <-sweepDone, <-opened
	endSweep()
	if b.driver.logins != 1 || b.driver.logouts != 0 {
		t.Errorf("%d logins, %d logouts while another uses the session", b.driver.logins, b.driver.logouts)
	}
	endChange()
	if err := b.gate.EndSessions(t.Context(), "node_a"); err != nil || b.driver.logouts != 1 {
		t.Errorf("%v, %d logouts at the end", err, b.driver.logouts)
	}
}

// A look at a BMC at rest that made its session logs out, where nobody else came
// to use it.
func TestLookLogsOut(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	access, err := b.store.LoadBMCAccess(t.Context(), "node_a")
	if err != nil {
		t.Fatal(err)
	}
	_, release, err := b.gate.OpenLeased(t.Context(), access, b.sweepLease(), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	release(t.Context())
	if uri, _, err := b.store.LoadBMCSession(t.Context(), "node_a"); err != nil || uri != "" || b.driver.logouts != 1 {
		t.Errorf("session %q is kept (%v), %d logouts", uri, err, b.driver.logouts)
	}
}

// What a BMC asked one worker to wait for, another one obeys too, and no hint
// keeps it away for more than an hour.
func TestQuietForAll(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	for _, c := range []struct{ asked, least, most time.Duration }{{time.Minute, 50 * time.Second, time.Minute}, {24 * time.Hour, 59 * time.Minute, time.Hour}} {
		b.exec(`UPDATE bmcs SET quiet_until = NULL`)
		b.driver.asks = c.asked
		_, release, err := b.newGate("w1").Open(t.Context(), "op_1", "node_a", true)
		if err != nil {
			t.Fatal(err)
		}
		release(t.Context())
		b.driver.asks = 0
		_, release, err = b.newGate("w2").Open(t.Context(), "op_1", "node_a", true)
		if err != nil {
			t.Fatal(err)
		}
		release(t.Context())
		if left := b.driver.toldQuiet; left > c.most || left < c.least-30*time.Second {
			t.Errorf("asked for %v, the other worker is told %v", c.asked, left)
		}
	}
}

// A session whose BMC asks to wait stays known, for the sweep to end; one of a BMC
// that is gone does not.
func TestSessionThatCannotEndNow(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	_, release, err := b.gate.Open(t.Context(), "op_1", "node_a", true)
	if err != nil {
		t.Fatal(err)
	}
	release(t.Context())
	for _, c := range []struct {
		kind bmc.Kind
		kept bool
	}{{bmc.KindBusy, true}, {bmc.KindUnreachable, false}} {
		b.driver.refuses = &bmc.Error{Kind: c.kind, Doing: "reach it", Cause: "503"}
		if err := b.gate.EndSessions(t.Context(), "node_a"); bmc.KindOf(err) != c.kind {
			t.Errorf("%s: %v", c.kind, err)
		}
		if uri, _, err := b.store.LoadBMCSession(t.Context(), "node_a"); err != nil || (uri != "") != c.kept {
			t.Errorf("%s: session %q is kept, %v", c.kind, uri, err)
		}
	}
}

// A session that nobody used for a while is ended by the sweep, but not under an
// operation, whose end does.
func TestIdleSessionEnds(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	b.gate.IdleAfter = time.Minute
	_, release, err := b.gate.Open(t.Context(), "op_1", "node_a", true)
	if err != nil {
		t.Fatal(err)
	}
	release(t.Context())
	sweep := func(when string, logouts int) {
		t.Helper()
		if _, err := b.gate.EndIdle(t.Context()); err != nil || b.driver.logouts != logouts {
			t.Errorf("%s: %v, %d logouts, want %d", when, err, b.driver.logouts, logouts)
		}
	}
	b.exec(`UPDATE bmc_sessions SET used_at = now() - interval '1 hour'`)
	sweep("under an operation", 0)
	b.exec(`UPDATE operations SET state = 'succeeded', ended_at = now()`)
	b.exec(`UPDATE bmc_sessions SET used_at = now()`)
	sweep("used just now", 0)
	b.exec(`UPDATE bmc_sessions SET used_at = now() - interval '1 hour'`)
	sweep("idle", 1)
	if uri, _, err := b.store.LoadBMCSession(t.Context(), "node_a"); err != nil || uri != "" {
		t.Errorf("session %q is kept, %v", uri, err)
	}
}

// leftSessions counts the sessions that wait to be ended on BMCs.
func (b *bundle) leftSessions() (n int) {
	b.t.Helper()
	if err := b.pool.QueryRow(b.t.Context(), `SELECT count(*) FROM left_sessions`).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// The session that an operation used is ended on its BMC also where the node has
// no such BMC any more. A BMC that asks to wait is asked again later, one that is
// gone is not.
func TestLeftSessionEnds(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(ctx context.Context, b *bundle, tx pgx.Tx) error{
		"deleted": func(ctx context.Context, _ *bundle, tx pgx.Tx) error {
			return store.DeleteNode(ctx, tx, store.Deletion{NodeID: "node_a", Actor: "dev:owner"})
		},
		"moved": func(ctx context.Context, b *bundle, tx pgx.Tx) error {
			access, err := b.store.LoadBMCAccess(ctx, "node_a")
			access.Address.Host = "10.1.2.4"
			if err != nil {
				return err
			}
			return store.UpdateBMC(ctx, tx, access.BMCRecord)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBundle(t)
			_, release, err := b.gate.Open(t.Context(), "op_1", "node_a", true)
			if err != nil {
				t.Fatal(err)
			}
			release(t.Context())
			if err := b.store.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { return leave(ctx, b, tx) }); err != nil {
				t.Fatal(err)
			}
			b.driver.refuses = &bmc.Error{Kind: bmc.KindBusy, Doing: "reach it", Cause: "503"}
			if _, err := b.gate.EndLeft(t.Context()); err != nil || b.leftSessions() != 1 || b.driver.logouts != 0 {
				t.Fatalf("a BMC that asks to wait: %v, %d sessions left, %d logouts", err, b.leftSessions(), b.driver.logouts)
			}
			b.driver.refuses = nil
			if n, err := b.gate.EndLeft(t.Context()); err != nil || n != 0 {
				t.Errorf("%d asked again at once, %v", n, err)
			}
			b.exec(`UPDATE left_sessions SET due = now()`)
			if n, err := b.gate.EndLeft(t.Context()); err != nil || n != 1 {
				t.Fatalf("%d ended, %v", n, err)
			}
			if b.leftSessions() != 0 || b.driver.logouts != 1 || b.driver.logins != 1 {
				t.Errorf("%d sessions left, %d logouts, %d logins", b.leftSessions(), b.driver.logouts, b.driver.logins)
			}
		})
	}
}

// A BMC that does not answer keeps no row for ever: the session ends there by
// itself.
func TestLeftSessionIsGivenUp(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	_, release, err := b.gate.Open(t.Context(), "op_1", "node_a", true)
	if err != nil {
		t.Fatal(err)
	}
	release(t.Context())
	err = b.store.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		return store.DeleteNode(ctx, tx, store.Deletion{NodeID: "node_a", Actor: "dev:owner"})
	})
	if err != nil {
		t.Fatal(err)
	}
	b.driver.refuses = &bmc.Error{Kind: bmc.KindUnreachable, Doing: "reach it", Cause: "no answer"}
	if _, err := b.gate.EndLeft(t.Context()); err != nil || b.leftSessions() != 0 {
		t.Errorf("%v, %d sessions left", err, b.leftSessions())
	}
}
