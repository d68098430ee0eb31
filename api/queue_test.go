package api_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/storetest"
)

// waits is an allocations/create with wait that must be queued.
func (r *rig) waits(subject string, input obj) fleet.Allocation {
	r.t.Helper()
	input["wait"] = true
	a := r.mustTake(subject, input)
	if a.State != fleet.AllocationQueued || a.NodeID != "" || len(a.Devices) != 0 || a.Queue == nil {
		r.t.Fatalf("a full pool with wait: %+v", a)
	}
	return a
}

// reconcile is a round of the worker's reconciler.
func (r *rig) reconcile() {
	r.t.Helper()
	if _, err := r.store.Reconcile(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// stateOf reads the state of an allocation.
func (r *rig) stateOf(id string) fleet.AllocationState {
	r.t.Helper()
	return fleet.AllocationState(r.text(`SELECT state FROM allocations WHERE id = $1`, id))
}

// The queue of a pool is in strict order: what is small does not pass what is
// large, neither from behind nor as a newcomer.
func TestQueueOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	r.deployed(pool, 4)
	a, b := r.mustTake("owner", take("acme", pool, 2)), r.mustTake("owner", take("acme", pool, 1))
	large := r.waits("owner", take("acme", pool, 3, "ttlSeconds", 600))
	small := r.waits("operator", take("acme", pool, 1, "queueTimeoutSeconds", 900))
	if large.Queue.Position != 1 || small.Queue.Position != 2 || small.Queue.WaitsFor != "capacity" || small.Queue.Until.Sub(small.CreatedAt.Time) != 15*time.Minute {
		t.Errorf("places: %+v, %+v", large.Queue, small.Queue)
	}
	if got := large.Queue.Until.Sub(large.CreatedAt.Time); got != 24*time.Hour {
		t.Errorf("without a timeout it waits for %s", got)
	}
	p := r.refused("owner", "allocations/create", take("acme", pool, 1), fleet.CodeUnavailable, "no-capacity")
	if !strings.Contains(p.Detail, "2 allocation(s) wait before it") {
		t.Errorf("the refusal does not say who is before: %s", p.Detail)
	}
	r.release("owner", "acme", b.ID)
	r.reconcile()
	if r.stateOf(large.ID) != fleet.AllocationQueued || r.stateOf(small.ID) != fleet.AllocationQueued {
		t.Error("with two free, something passed the one that waits for three")
	}
	r.release("owner", "acme", a.ID)
	r.reconcile()
	got := r.allocation("owner", "acme", large.ID)
	if got.State != fleet.AllocationActive || len(got.Devices) != 3 || got.Queue != nil || got.ExpiresAt == nil {
		t.Errorf("the first of the queue: %+v", got)
	}
	if left := time.Until(got.ExpiresAt.Time); left < 9*time.Minute || left > 10*time.Minute {
		t.Errorf("its ten minutes count from when it was placed; %s are left", left)
	}
	if r.stateOf(small.ID) != fleet.AllocationActive {
		t.Error("the second had room and was not placed")
	}
	r.sound()
}

// What waits for its own tenant's quota lets other tenants pass, and not its own.
func TestQueueAndQuota(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	r.deployed(pool, 4)
	r.offer(pool, 2)
	all := r.mustTake("owner", take("acme", pool, 4))
	first := r.waits("owner2", take("globex", pool, 2))
	second := r.waits("owner2", take("globex", pool, 1))
	other := r.waits("owner", take("acme", pool, 1))
	// Meanwhile the owner cuts the quota: the first cannot have its two.
	r.offer(pool, 1)
	r.release("owner", "acme", all.ID)
	r.reconcile()
	if r.stateOf(other.ID) != fleet.AllocationActive {
		t.Error("who waits for its quota held up another tenant")
	}
	if r.stateOf(second.ID) != fleet.AllocationQueued {
		t.Error("a tenant overtook itself")
	}
	if got := r.allocation("owner2", "globex", first.ID); got.State != fleet.AllocationQueued || got.Queue.WaitsFor != "quota" {
		t.Errorf("the one without quota: %+v", got.Queue)
	}
	r.mustTake("owner", take("acme", pool, 1)) // a newcomer of another tenant passes too
	r.offer(pool, 3)
	if _, err := r.store.PlaceAllQueued(t.Context()); err != nil { // the poll
		t.Fatal(err)
	}
	if r.stateOf(first.ID) != fleet.AllocationActive || r.stateOf(second.ID) != fleet.AllocationQueued {
		t.Errorf("with the quota back: %s, %s", r.stateOf(first.ID), r.stateOf(second.ID))
	}
	r.sound()
}

// What frees room wakes the queue: an uncordon, a node that is back in session, a
// node that joins the pool, a condition that clears.
func TestQueueIsWoken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	node := r.deployed(pool, 2)
	r.reconcile()
	woken := func(name string, frees func()) {
		a := r.waits("owner", take("acme", pool, 2))
		r.reconcile()
		if r.stateOf(a.ID) != fleet.AllocationQueued {
			t.Fatalf("%s: placed without room", name)
		}
		frees()
		r.reconcile()
		if r.stateOf(a.ID) != fleet.AllocationActive {
			t.Errorf("%s did not wake the queue", name)
		}
		r.release("owner", "acme", a.ID)
	}
	r.ok("owner", "nodes/cordon", on(node), nil)
	woken("uncordon", func() { r.ok("owner", "nodes/uncordon", on(node), nil) })
	r.ok("owner", "nodes/taint", on(node, "add", []string{"slow"}), nil)
	woken("a taint less", func() { r.ok("owner", "nodes/taint", on(node, "remove", []string{"slow"}), nil) })
	if err := r.store.CloseSession(t.Context(), node, 1); err != nil {
		t.Fatal(err)
	}
	woken("a session", func() { storetest.Connect(t, r.store, node) })
	unhealthy := fleet.Condition{Type: "HardwareHealthy", Status: fleet.ConditionFalse}
	if err := r.store.SetCondition(t.Context(), node, unhealthy); err != nil {
		t.Fatal(err)
	}
	woken("a condition", func() {
		if err := r.store.SetCondition(t.Context(), node, fleet.Condition{Type: "HardwareHealthy", Status: fleet.ConditionTrue}); err != nil {
			t.Fatal(err)
		}
	})
	r.ok("owner", "pools/removeNode", on(node, "poolId", pool), nil)
	woken("a node more", func() { r.ok("owner", "pools/addNode", on(node, "poolId", pool), nil) })
	r.sound()
}

// A queued allocation ends without a node: released it is cancelled, and so it is
// when its pool is archived or no longer offered; when it has waited for as long
// as it was to, it expires.
func TestQueuedEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	r.offer(pool, 4)
	a, b, c := r.waits("owner", take("acme", pool, 1)), r.waits("owner2", take("globex", pool, 1)), r.waits("owner", take("acme", pool, 1, "queueTimeoutSeconds", 60))
	if got := r.release("owner", "acme", a.ID); got.State != fleet.AllocationCancelled || got.EndedAt == nil || got.Queue != nil {
		t.Errorf("released while queued: %+v", got)
	}
	r.ok("owner", "pools/unoffer", in("acme", "poolId", pool, "toTenantId", "globex"), nil)
	if n, err := r.store.ExpireAllocations(t.Context()); n != 0 || err != nil {
		t.Fatalf("expired early: %d, %v", n, err)
	}
	r.exec(`UPDATE allocations SET queue_until = now() WHERE id = $1`, c.ID)
	if n, err := r.store.ExpireAllocations(t.Context()); n != 1 || err != nil {
		t.Fatalf("expired %d, %v", n, err)
	}
	d := r.waits("owner", take("acme", pool, 1))
	r.ok("owner", "pools/archive", in("acme", "poolId", pool, "version", r.poolOf("owner", "acme", pool).Version), nil)
	got := []fleet.AllocationState{r.stateOf(a.ID), r.stateOf(b.ID), r.stateOf(c.ID), r.stateOf(d.ID)}
	want := []fleet.AllocationState{fleet.AllocationCancelled, fleet.AllocationCancelled, fleet.AllocationExpired, fleet.AllocationCancelled}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	r.refused("owner", "allocations/create", take("acme", pool, 1), fleet.CodeInvalidState, "pool-archived")
	r.refused("owner", "reservations/create", reserve("acme", pool, 1, 0, time.Hour), fleet.CodeInvalidState, "pool-archived")
}

// An allocation expires when its time is over and never before, and frees what it
// held.
func TestExpiry(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	node := r.deployed(pool, 2)
	r.offer(pool, 2)
	a := r.mustTake("owner2", take("globex", pool, 2, "ttlSeconds", 3600))
	r.reconcile()
	if n, err := r.store.ExpireAllocations(t.Context()); n != 0 || err != nil {
		t.Fatalf("expired early: %d, %v", n, err)
	}
	r.exec(`UPDATE allocations SET expires_at = now() WHERE id = $1`, a.ID)
	if got := r.allocation("owner2", "globex", a.ID); got.State != fleet.AllocationActive {
		t.Errorf("expired without the sweep: %s", got.State)
	}
	waiting := r.waits("owner", take("acme", pool, 2))
	if err := r.store.SweepCapacity(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.allocation("owner2", "globex", a.ID); got.State != fleet.AllocationExpired || got.EndedAt == nil {
		t.Errorf("after the sweep: %+v", got)
	}
	if r.stateOf(waiting.ID) != fleet.AllocationActive {
		t.Error("what waited was not placed by the same sweep")
	}
	if n := r.count(`SELECT count(*) FROM reconcile_wanted WHERE node_id = $1`, node); n != 1 {
		t.Error("the expiry asked for no reconciler")
	}
	r.sound()
}

// One that is cancelled while the queue goes through its pool is not placed.
func TestCancelledWhileItsTurnCame(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	a := r.waits("owner", take("acme", pool, 1))
	r.deployed(pool, 2)
	done := make(chan int, 1)
	err := r.store.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if err := store.LockPool(ctx, tx, pool, true); err != nil {
			return err
		}
		go func() {
			n, err := r.store.PlaceQueued(t.Context(), pool)
			if err != nil {
				t.Error(err)
			}
			done <- n
		}()
		r.lockWaits(1)
		held, err := store.LockAllocation(ctx, tx, a.ID)
		if err != nil {
			return err
		}
		return store.EndAllocation(ctx, tx, held, fleet.AllocationCancelled, store.Ending{Actor: "dev:owner"})
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := <-done; n != 0 || r.stateOf(a.ID) != fleet.AllocationCancelled {
		t.Errorf("%d placed, it is %s", n, r.stateOf(a.ID))
	}
	r.sound()
}

// What is under a reservation waits behind its like alone: who queues without one
// does not keep it from what is set aside for it.
func TestReservationPassesTheQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	r.deployed(pool, 2)
	res := r.mustReserve("owner", reserve("acme", pool, 1, -time.Minute, time.Hour))
	r.waits("owner", take("acme", pool, 2))
	if a := r.mustTake("owner", take("acme", pool, 1, "reservationId", res.ID)); a.State != fleet.AllocationActive {
		t.Errorf("under the reservation: %s", a.State)
	}
	r.sound()
}
