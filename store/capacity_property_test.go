package store_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/storetest"
)

const (
	worldGPUs  = 8
	worldQuota = 5
)

// capacityWorld is a pool of one node of 8 GPUs, owned by acme and offered to
// globex with a quota of 5.
type capacityWorld struct {
	t *testing.T
	*store.Store
	pool string
}

func newCapacityWorld(t *testing.T) *capacityWorld {
	t.Helper()
	w := &capacityWorld{t: t, Store: store.New(storetest.New(t), store.Options{})}
	for _, sql := range []string{`INSERT INTO tenants (id) VALUES ('acme'), ('globex')`, `INSERT INTO sites (id, tenant_id, name, spec) VALUES ('site', 'acme', 'lab', '{}')`} {
		w.exec(sql)
	}
	return w
}

func (w *capacityWorld) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.Pool().Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// tx runs fn in a transaction and returns the refusal, if it was one.
func (w *capacityWorld) tx(fn func(ctx context.Context, tx pgx.Tx) error) error {
	w.t.Helper()
	err := w.InTx(w.t.Context(), fn)
	if err != nil && !errors.Is(err, store.ErrPlaceAgain) && fleet.CodeOf(err) == fleet.CodeInternal {
		w.t.Fatal(err)
	}
	return err
}

// begin makes the pool of one run.
func (w *capacityWorld) begin() {
	w.pool = store.NewID(fleet.KindPool)
	if err := w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if err := store.InsertPool(ctx, tx, store.NewPool{ID: w.pool, TenantID: "acme", SiteID: "site", Name: w.pool, GPUModel: "H100 SXM5", SharingMode: "exclusive"}); err != nil {
			return err
		}
		return store.SetOffer(ctx, tx, w.pool, "globex", worldQuota)
	}); err != nil {
		w.t.Fatal(err)
	}
	storetest.Deployed(w.t, w.Store, storetest.Machine{TenantID: "acme", SiteID: "site", PoolID: w.pool, GPUs: worldGPUs})
}

// allocate places as allocations/create does.
func (w *capacityWorld) allocate(tenant, reservation string, gpus int, ttl *time.Duration) error {
	p := &store.Placement{ID: store.NewID(fleet.KindAllocation), PoolID: w.pool, TenantID: tenant, Owner: "acme", Holder: "job", CreatedBy: "dev:" + tenant,
		GPUs: gpus, TTL: ttl, ReservationID: reservation}
	for {
		err := w.tx(func(ctx context.Context, tx pgx.Tx) error {
			if err := p.LockPool(ctx, tx); err != nil {
				return err
			}
			for _, step := range []func() error{
				func() error { return p.FindReservation(ctx, tx, nil) }, func() error { return p.Quota(ctx, tx) },
				func() error { return p.Take(ctx, tx) }, func() error { return p.Claim(ctx, tx) },
			} {
				if err := step(); err != nil {
					return err
				}
			}
			return nil
		})
		if !errors.Is(err, store.ErrPlaceAgain) {
			return err
		}
	}
}

func (w *capacityWorld) reserve(tenant string, gpus int, from, length time.Duration) error {
	n := store.NewReservation{ID: store.NewID(fleet.KindReservation), TenantID: tenant, PoolID: w.pool, Owner: "acme", CreatedBy: "dev:" + tenant, GPUs: gpus,
		From: time.Now().Add(from), To: time.Now().Add(from + length)}
	if tenant != "acme" {
		quota := worldQuota
		n.Quota = &quota
	}
	return w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if err := store.LockPool(ctx, tx, w.pool, true); err != nil {
			return err
		}
		return store.InsertReservation(ctx, tx, n)
	})
}

func (w *capacityWorld) release(id string) {
	_ = w.tx(func(ctx context.Context, tx pgx.Tx) error {
		a, err := store.LockAllocation(ctx, tx, id)
		if err != nil {
			return err
		}
		if err := store.EndAllocation(ctx, tx, a, fleet.AllocationReleased, store.Ending{Actor: "dev:x"}); err != nil {
			return err
		}
		return store.GiveBack(ctx, tx, a)
	})
}

// pass lets time pass: everything is that much nearer, and the sweep comes.
func (w *capacityWorld) pass(d time.Duration) {
	w.exec(`UPDATE allocations SET expires_at = expires_at - $1::interval WHERE state = 'active'`, d)
	w.exec(`UPDATE reservations SET starts_at = starts_at - $1::interval, ends_at = ends_at - $1::interval WHERE state = 'open'`, d)
	if err := w.SweepCapacity(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *capacityWorld) ids(sql string) []string {
	w.t.Helper()
	rows, err := w.Pool().Query(w.t.Context(), sql, w.pool)
	if err != nil {
		w.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	return ids
}

// check is what must hold after every step: what is reserved and not yet taken is
// free when its time has come, nobody passes a quota at any moment to come, and
// the books agree.
func (w *capacityWorld) check(t *rapid.T) {
	for _, broken := range storetest.CapacityFaults(w.t, w.Store) {
		t.Errorf("broken: %s", broken)
	}
	var free, due int
	err := w.Pool().QueryRow(w.t.Context(), `SELECT (SELECT count(*) FROM devices d JOIN nodes n ON n.id = d.node_id WHERE n.pool_id = $1 AND d.allocation_id IS NULL),
		(SELECT coalesce(sum(gpus - used), 0) FROM reservations WHERE pool_id = $1 AND state = 'open' AND starts_at <= now() AND ends_at > now())`, w.pool).Scan(&free, &due)
	if err != nil {
		w.t.Fatal(err)
	}
	if free < due {
		t.Errorf("%d GPUs are reserved for now and not taken, %d are free", due, free)
	}
	for tenant, most := range map[string]int{"globex": worldQuota, "": worldGPUs} {
		peak, err := store.LoadPeak(w.t.Context(), w.Pool(), w.pool, tenant, time.Now(), nil)
		if err != nil {
			w.t.Fatal(err)
		}
		if peak > most {
			t.Errorf("tenant %q holds or reserved %d at some moment, more than %d", tenant, peak, most)
		}
	}
}

// Whatever is allocated, reserved, released and cancelled in whatever order while
// time passes: reservations are held, quotas kept, and no GPU has two holders.
func TestCapacityHolds(t *testing.T) {
	t.Parallel()
	w := newCapacityWorld(t)
	tenants := rapid.SampledFrom([]string{"acme", "globex"})
	rapid.Check(t, func(t *rapid.T) {
		w.begin()
		for range rapid.IntRange(5, 12).Draw(t, "steps") {
			switch rapid.IntRange(0, 7).Draw(t, "what") {
			case 0, 1, 2:
				hours := rapid.IntRange(0, 4).Draw(t, "ttl")
				ttl := time.Duration(hours) * time.Hour
				ask := &ttl
				if hours == 0 {
					ask = nil
				}
				_ = w.allocate(tenants.Draw(t, "tenant"), "", rapid.IntRange(1, 4).Draw(t, "gpus"), ask)
			case 3:
				for _, id := range w.ids(`SELECT id FROM reservations WHERE pool_id = $1 AND state = 'open' AND starts_at <= now() AND used < gpus`) {
					r, err := store.LoadReservation(w.t.Context(), w.Pool(), id)
					if err != nil {
						w.t.Fatal(err)
					}
					// What is reserved can be had to the last GPU.
					if err := w.allocate(r.TenantID, id, r.GPUs-r.Used, nil); err != nil {
						t.Errorf("%d GPUs left of reservation %s cannot be had: %v", r.GPUs-r.Used, id, err)
					}
				}
			case 4, 5:
				_ = w.reserve(tenants.Draw(t, "tenant"), rapid.IntRange(1, 4).Draw(t, "gpus"),
					time.Duration(rapid.IntRange(0, 3).Draw(t, "from"))*time.Hour, time.Duration(rapid.IntRange(1, 3).Draw(t, "length"))*time.Hour)
			case 6:
				if live := w.ids(`SELECT id FROM allocations WHERE pool_id = $1 AND state = 'active' ORDER BY id`); len(live) > 0 {
					w.release(live[rapid.IntRange(0, len(live)-1).Draw(t, "which")])
				}
			case 7:
				w.pass(time.Duration(rapid.IntRange(10, 90).Draw(t, "minutes")) * time.Minute)
			}
			w.check(t)
		}
	})
}
