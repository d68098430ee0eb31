package gate_test

import (
	"testing"
	"time"

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
