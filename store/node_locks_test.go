package store_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/store"
)

// waiting waits until so many connections of the database wait for a lock, or
// until done is closed.
func (w *capacityWorld) waiting(n int, done <-chan struct{}) {
	w.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; {
		var waits int
		err := w.Pool().QueryRow(w.t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waits)
		if err != nil {
			w.t.Fatal(err)
		}
		if waits >= n {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%d wait for a lock, want %d", waits, n)
		}
		select {
		case <-done:
			return
		case <-tick.C:
		}
	}
}

// told are the types of a node's events in their order.
func (w *capacityWorld) told(node, prefix string) []string {
	w.t.Helper()
	rows, err := w.Pool().Query(w.t.Context(), `SELECT type FROM events WHERE node_id = $1 AND starts_with(type, $2) ORDER BY tx, seq`, node, prefix)
	if err != nil {
		w.t.Fatal(err)
	}
	types, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	return types
}

// The events of those who share a node's lock are in order with the events of
// those who change the node, however many wait for one another: each tells the
// node's version as it found it.
func TestSharersAndChangersInOrder(t *testing.T) {
	t.Parallel()
	w := newCapacityWorld(t)
	w.begin()
	node := w.ids(`SELECT id FROM nodes WHERE pool_id = $1`)[0]
	tell := func(ctx context.Context, tx pgx.Tx) error {
		var version int64
		if err := tx.QueryRow(ctx, `SELECT version FROM nodes WHERE id = $1`, node).Scan(&version); err != nil {
			return err
		}
		return store.AddEvents(ctx, tx, store.EventIn{Type: fmt.Sprintf("test.%06d", version), NodeID: node, TenantID: "acme", Actor: "dev:ann"})
	}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			for range 20 {
				err := w.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
					if i%2 == 0 {
						if err := store.ShareNode(ctx, tx, node); err != nil {
							return err
						}
						return tell(ctx, tx)
					}
					if err := store.LockNode(ctx, tx, node); err != nil {
						return err
					}
					if _, err := store.CordonNode(ctx, tx, node, nil); err != nil {
						return err
					}
					return tell(ctx, tx)
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := w.told(node, "test."); len(got) != 240 || !slices.IsSorted(got) {
		t.Errorf("%d events, in this order of versions: %v", len(got), got)
	}
}

// A placement does not overtake a verb that waits for the node: those that come
// one after the other would keep it waiting.
func TestPlacementLetsVerbsPass(t *testing.T) {
	t.Parallel()
	w := newCapacityWorld(t)
	w.begin()
	node := w.ids(`SELECT id FROM nodes WHERE pool_id = $1`)[0]
	var wg sync.WaitGroup
	err := w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if err := store.ShareNode(ctx, tx, node); err != nil {
			return err
		}
		wg.Go(func() {
			err := w.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
				if err := store.LockNode(ctx, tx, node); err != nil {
					return err
				}
				return store.AddEvents(ctx, tx, store.EventIn{Type: "allocation.not-yet", NodeID: node, TenantID: "acme", Actor: "dev:ann"})
			})
			if err != nil {
				t.Error(err)
			}
		})
		w.waiting(1, nil)
		placed := make(chan struct{})
		wg.Go(func() {
			defer close(placed)
			if err := w.allocate("acme", "", 1, nil); err != nil {
				t.Error(err)
			}
		})
		w.waiting(2, placed)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if diff := cmp.Diff([]string{"allocation.not-yet", "allocation.started"}, w.told(node, "allocation.")); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
