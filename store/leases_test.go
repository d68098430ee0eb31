package store_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/storetest"
)

// addNode writes the rows that a lease hangs on.
func addNode(t *testing.T, pool *pgxpool.Pool, id string) {
	t.Helper()
	for _, sql := range []string{
		`INSERT INTO tenants (id) VALUES ('acme') ON CONFLICT DO NOTHING`,
		`INSERT INTO sites (id, tenant_id, name, spec) VALUES ('site_1', 'acme', 'one', '{"name": "one", "allowedNetworks": ["127.0.0.0/8"]}') ON CONFLICT DO NOTHING`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pool.Exec(t.Context(), `INSERT INTO nodes (id, tenant_id, site_id, provision_state) VALUES ($1, 'acme', 'site_1', 'ready')`, id); err != nil {
		t.Fatal(err)
	}
}

// However many workers ask at once, one holds the change slot of a BMC.
func TestLeaseIsExclusive(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool, store.Options{})
	addNode(t, pool, "node_a")
	var holders atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			l, _, err := s.TakeLease(context.Background(), store.LeaseAsk{NodeID: "node_a", Holder: "w", Change: true, Life: time.Hour})
			if err != nil {
				t.Error(err)
			}
			if l != nil {
				holders.Add(1)
			}
		})
	}
	wg.Wait()
	if holders.Load() != 1 {
		t.Errorf("%d holders of the change slot, want 1", holders.Load())
	}
}

// Who takes over an expired lease is told so, and the old holder's token is
// worth nothing from then on.
func TestLeaseTakeover(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool, store.Options{})
	addNode(t, pool, "node_a")
	old, _, err := s.TakeLease(t.Context(), store.LeaseAsk{NodeID: "node_a", Holder: "stalled", Change: true})
	if err != nil || old == nil {
		t.Fatalf("first lease: %v, %v", old, err)
	}
	if old.TakenOver {
		t.Error("the first lease is said to be taken over")
	}
	early, _, err := s.TakeLease(t.Context(), store.LeaseAsk{NodeID: "node_a", Holder: "early", Change: true, Life: time.Hour, Grace: time.Hour})
	if err != nil || early != nil {
		t.Fatalf("lease taken over within the grace of a request: %v, %v", early, err)
	}
	taken, _, err := s.TakeLease(t.Context(), store.LeaseAsk{NodeID: "node_a", Holder: "next", Change: true, Life: time.Hour})
	if err != nil || taken == nil {
		t.Fatalf("second lease: %v, %v", taken, err)
	}
	if !taken.TakenOver {
		t.Error("the takeover of an expired lease was not told")
	}
	if ok, _, err := s.CheckLease(t.Context(), *old, 0, ""); err != nil || ok {
		t.Errorf("the stalled holder's lease is still good (%v, %v)", ok, err)
	}
	if err := s.ReleaseLease(t.Context(), *old); err != nil {
		t.Fatal(err)
	}
	if ok, _, err := s.CheckLease(t.Context(), *taken, time.Minute, ""); err != nil || !ok {
		t.Errorf("the stalled holder's late release took the lease away (%v, %v)", ok, err)
	}
	none, wait, err := s.TakeLease(t.Context(), store.LeaseAsk{NodeID: "node_a", Holder: "third", Change: true, Life: time.Hour})
	if err != nil || none != nil || wait <= 0 {
		t.Errorf("third lease = %v, wait %v, err %v; want none and a wait", none, wait, err)
	}
}
