package api_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
)

// reserve is the input of reservations/create, from and to given from now on.
func reserve(tenant, pool string, gpus int, from, to time.Duration) obj {
	now := time.Now().UTC()
	return in(tenant, "poolId", pool, "gpus", gpus, "from", now.Add(from).Format(time.RFC3339Nano), "to", now.Add(to).Format(time.RFC3339Nano))
}

// mustReserve is a reservations/create that must succeed.
func (r *rig) mustReserve(subject string, input obj) fleet.Reservation {
	r.t.Helper()
	var out fleet.ReservationOut
	r.ok(subject, "reservations/create", input, &out)
	return out.Reservation
}

// What a reservation sets aside is kept from allocations that would still hold it
// when it begins, and only from those.
func TestReservationIsKept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	r.deployed(pool, 4)
	res := r.mustReserve("operator", reserve("acme", pool, 3, time.Hour, 2*time.Hour))
	if res.State != fleet.ReservationOpen || res.GPUs != 3 || res.Used != 0 {
		t.Errorf("reserved %+v", res)
	}
	p := r.refused("owner", "allocations/create", take("acme", pool, 2), fleet.CodeUnavailable, "no-capacity")
	if !strings.Contains(p.Detail, "3 are set aside by reservations") {
		t.Errorf("the refusal does not say what is set aside: %s", p.Detail)
	}
	r.refused("owner", "allocations/create", take("acme", pool, 2, "ttlSeconds", 7200), fleet.CodeUnavailable, "no-capacity")
	r.refused("owner", "allocations/create", take("acme", pool, 0), fleet.CodeUnavailable, "no-capacity")
	short := r.mustTake("owner", take("acme", pool, 4, "ttlSeconds", 1800))
	r.release("owner", "acme", short.ID)
	one := r.mustTake("owner", take("acme", pool, 1))
	r.refused("owner", "allocations/create", take("acme", pool, 1), fleet.CodeUnavailable, "no-capacity")
	r.refused("owner", "allocations/create", take("acme", pool, 1, "reservationId", res.ID), fleet.CodeInvalidState, "reservation-not-begun")

	// It begins.
	r.exec(`UPDATE reservations SET starts_at = now() - interval '1 second' WHERE id = $1`, res.ID)
	r.refused("owner", "allocations/create", take("acme", pool, 1, "ttlSeconds", 60), fleet.CodeUnavailable, "no-capacity")
	r.refused("owner", "allocations/create", take("acme", pool, 1, "reservationId", res.ID, "ttlSeconds", 86400), fleet.CodeInvalidInput, "")
	r.refused("owner", "allocations/create", take("acme", pool, 4, "reservationId", res.ID), fleet.CodeInvalidInput, "")
	r.refused("owner", "allocations/create", take("acme", r.pool(r.site, "another"), 1, "reservationId", res.ID), fleet.CodeNotFound, "")
	a := r.mustTake("owner", take("acme", pool, 2, "reservationId", res.ID))
	if a.ReservationID != res.ID || a.ExpiresAt == nil || !a.ExpiresAt.Equal(res.To.Time) {
		t.Errorf("under the reservation until %s: %+v", res.To, a)
	}
	r.refused("owner", "allocations/create", take("acme", pool, 2, "reservationId", res.ID), fleet.CodeInvalidState, "reservation-used")
	r.mustTake("owner", take("acme", pool, 1, "reservationId", res.ID, "ttlSeconds", 60))
	r.sound()
	p = r.refused("owner", "reservations/cancel", in("acme", "reservationId", res.ID), fleet.CodeInvalidState, "allocations-live")
	if !strings.Contains(p.Detail, a.ID) {
		t.Errorf("the refusal does not name the allocation: %s", p.Detail)
	}
	r.release("owner", "acme", one.ID)
	r.release("owner", "acme", a.ID)
	r.refused("owner", "allocations/create", take("acme", pool, 2, "ttlSeconds", 60), fleet.CodeUnavailable, "no-capacity") // 1 free, 2 still set aside
	r.mustTake("owner", take("acme", pool, 1, "ttlSeconds", 60))
	r.sound()
}

// A reservation fits into the pool beside what is held and reserved in its time,
// and is bounded by the pool's policy.
func TestReservationFits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	r.deployed(pool, 4)
	r.mustTake("owner", take("acme", pool, 1))
	r.mustTake("owner", take("acme", pool, 1, "ttlSeconds", 600))
	r.refused("owner", "reservations/create", reserve("acme", pool, 3, 0, time.Hour), fleet.CodeUnavailable, "no-capacity")
	first := r.mustReserve("owner", reserve("acme", pool, 3, time.Hour, 2*time.Hour))
	r.refused("owner", "reservations/create", reserve("acme", pool, 1, 90*time.Minute, 3*time.Hour), fleet.CodeUnavailable, "no-capacity")
	r.mustReserve("owner", reserve("acme", pool, 3, 2*time.Hour, 3*time.Hour))
	r.refused("owner", "reservations/create", reserve("acme", pool, 1, 2*time.Hour, time.Hour), fleet.CodeInvalidInput, "")
	r.refused("owner", "reservations/create", reserve("acme", pool, 1, -2*time.Hour, -time.Hour), fleet.CodeInvalidInput, "")
	r.refused("viewer", "reservations/create", reserve("acme", pool, 1, 4*time.Hour, 5*time.Hour), fleet.CodeAccessDenied, "not-permitted")
	p := r.refused("owner", "pools/archive", in("acme", "poolId", pool, "version", 1), fleet.CodeInvalidState, "pool-in-use")
	if !strings.Contains(p.Detail, first.ID) {
		t.Errorf("the refusal does not name the reservation: %s", p.Detail)
	}
	var out fleet.ReservationOut
	for range 2 {
		r.ok("operator", "reservations/cancel", in("acme", "reservationId", first.ID), &out)
		if out.Reservation.State != fleet.ReservationCancelled {
			t.Errorf("cancelled: %+v", out.Reservation)
		}
	}
	r.mustReserve("owner", reserve("acme", pool, 1, 90*time.Minute, 100*time.Minute))
	r.ok("owner", "pools/update", in("acme", "poolId", pool, "version", 1, "policy", obj{"maxReservationHours": 1}), nil)
	p = r.refused("owner", "reservations/create", reserve("acme", pool, 1, 4*time.Hour, 6*time.Hour), fleet.CodeInvalidInput, "")
	if !strings.Contains(p.Detail, "at most 1 hours") {
		t.Errorf("the refusal does not name the policy: %s", p.Detail)
	}
	var page fleet.ReservationsPage
	for filter, want := range map[string]int{"open": 2, "cancelled": 1, "ended": 0} {
		r.ok("viewer", "reservations/list", in("acme", "state", filter, "poolId", pool), &page)
		if len(page.Items) != want {
			t.Errorf("%d reservations in state %s, want %d", len(page.Items), filter, want)
		}
	}
}

// A reservation counts against the tenant's quota over its time, and what is
// allocated under it does not count again.
func TestReservationAndQuota(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	for range 4 {
		r.deployed(pool, 4)
	}
	r.offer(pool, 4)
	res := r.mustReserve("owner2", reserve("globex", pool, 3, time.Hour, 2*time.Hour))
	r.refused("owner2", "reservations/create", reserve("globex", pool, 2, 90*time.Minute, 3*time.Hour), fleet.CodeInvalidState, "quota-exceeded")
	r.refused("owner2", "allocations/create", take("globex", pool, 2), fleet.CodeInvalidState, "quota-exceeded")
	r.refused("owner2", "allocations/create", take("globex", pool, 0), fleet.CodeInvalidState, "quota-exceeded") // four
	short := r.mustTake("owner2", take("globex", pool, 4, "ttlSeconds", 600))                                    // ends before the reservation begins
	if got := r.poolOf("owner2", "globex", pool); *got.Used != 4 {
		t.Errorf("used %d, want 4", *got.Used)
	}
	r.refused("owner", "pools/offer", in("acme", "poolId", pool, "toTenantId", "globex", "quota", obj{"gpus": 2}), fleet.CodeInvalidState, "quota-below-use")
	r.release("owner2", "globex", short.ID)
	r.refused("owner", "pools/offer", in("acme", "poolId", pool, "toTenantId", "globex", "quota", obj{"gpus": 2}), fleet.CodeInvalidState, "quota-below-use")
	r.refused("owner", "pools/unoffer", in("acme", "poolId", pool, "toTenantId", "globex"), fleet.CodeInvalidState, "tenant-holds")

	r.exec(`UPDATE reservations SET starts_at = now() - interval '1 second' WHERE id = $1`, res.ID)
	if got := r.poolOf("owner2", "globex", pool); *got.Used != 3 {
		t.Errorf("used while the reservation is in force: %d, want 3", *got.Used)
	}
	under := r.mustTake("owner2", take("globex", pool, 3, "reservationId", res.ID))
	if got := r.poolOf("owner2", "globex", pool); *got.Used != 3 {
		t.Errorf("used with all of the reservation allocated: %d, want 3", *got.Used)
	}
	last := r.mustTake("owner2", take("globex", pool, 1))
	r.refused("owner2", "allocations/create", take("globex", pool, 1), fleet.CodeInvalidState, "quota-exceeded")
	r.release("owner2", "globex", last.ID)
	r.refused("owner", "allocations/create", take("acme", pool, 1, "reservationId", res.ID), fleet.CodeNotFound, "")
	r.refused("owner2", "reservations/get", in("globex", "reservationId", "resv_01j00000000000000000000000"), fleet.CodeNotFound, "")
	if _, err := r.store.CreateTenant(t.Context(), "initech", "dev:owner3"); err != nil {
		t.Fatal(err)
	}
	r.refused("owner3", "reservations/get", in("initech", "reservationId", res.ID), fleet.CodeNotFound, "")
	r.refused("owner3", "reservations/cancel", in("initech", "reservationId", res.ID), fleet.CodeNotFound, "")
	r.ok("viewer", "reservations/get", in("acme", "reservationId", res.ID), nil) // the pool's owner
	r.sound()

	// Its time is over: what is under it expires, then it ends.
	queued := r.mustTake("owner2", take("globex", pool, 1, "wait", true, "nodeSelector", obj{"rack": "none"}))
	r.exec(`UPDATE allocations SET reservation_id = $1 WHERE id = $2`, res.ID, queued.ID)
	r.exec(`UPDATE reservations SET starts_at = now() - interval '2 minutes', ends_at = now() - interval '1 minute' WHERE id = $1`, res.ID)
	r.exec(`UPDATE allocations SET expires_at = now() - interval '1 minute' WHERE id = $1`, under.ID)
	if err := r.store.SweepCapacity(t.Context()); err != nil {
		t.Fatal(err)
	}
	var out fleet.ReservationOut
	r.ok("owner2", "reservations/get", in("globex", "reservationId", res.ID), &out)
	got := []any{out.Reservation.State, out.Reservation.Used, r.allocation("owner2", "globex", under.ID).State, r.allocation("owner2", "globex", queued.ID).State}
	if diff := cmp.Diff([]any{fleet.ReservationEnded, 0, fleet.AllocationExpired, fleet.AllocationCancelled}, got); diff != "" {
		t.Errorf("after its time (-want +got):\n%s", diff)
	}
	r.refused("owner2", "allocations/create", take("globex", pool, 1, "reservationId", res.ID), fleet.CodeInvalidState, "reservation-over")
	r.sound()
}

// What waited under a reservation ends with it, however long it was to be held.
func TestQueuedUnderReservationEndsWithIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	r.exec(`INSERT INTO reservations (id, tenant_id, pool_id, gpus, starts_at, ends_at, created_by)
		VALUES ('resv_01j00000000000000000000000', 'acme', $1, 1, now() - interval '1 minute', now() + interval '1 hour', 'dev:owner')`, pool)
	a := r.waits("owner", take("acme", pool, 1, "reservationId", "resv_01j00000000000000000000000", "ttlSeconds", 3000))
	r.exec(`UPDATE reservations SET ends_at = now() + interval '10 minutes'`)
	r.deployed(pool, 1)
	if n, err := r.store.PlaceQueued(t.Context(), pool); n != 1 || err != nil {
		t.Fatalf("%d placed, %v", n, err)
	}
	if n := r.count(`SELECT count(*) FROM allocations a JOIN reservations v ON v.id = a.reservation_id WHERE a.id = $1 AND a.expires_at = v.ends_at`, a.ID); n != 1 {
		t.Errorf("it ends at %s", r.allocation("owner", "acme", a.ID).ExpiresAt)
	}
	r.sound()
}
