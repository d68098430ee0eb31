package store_test

import (
	"context"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/storetest"
)

// A reader sees no event of a transaction that began after one that is still
// running: when that commits late, it is read in its place and not skipped. The
// horizon is the cluster's, so this needs one of its own.
func TestEventHorizon(t *testing.T) {
	t.Parallel()
	pool, _ := storetest.Cluster(t)
	event := func(tx pgx.Tx, typ string) {
		t.Helper()
		if err := store.AddEvents(t.Context(), tx, store.EventIn{Type: typ, NodeID: "node_a", TenantID: "acme", Actor: "system"}); err != nil {
			t.Fatal(err)
		}
	}
	read := func() []string {
		t.Helper()
		list, err := store.NodeEvents(t.Context(), pool, store.EventFilter{NodeID: "node_a", TenantID: "acme", Own: true, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		streamed, err := store.TenantEvents(t.Context(), pool, store.StreamFilter{TenantID: "acme", Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		types, of := []string{}, []string{}
		for _, e := range list {
			types = append(types, e.Type)
		}
		for _, e := range streamed {
			of = append(of, e.Type)
		}
		if !slices.Equal(types, of) {
			t.Errorf("the node's events are %v, in its tenant's stream are %v", types, of)
		}
		return types
	}
	slow, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	event(slow, "node.first")
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { event(tx, "node.second"); return nil }); err != nil {
		t.Fatal(err)
	}
	if got := read(); len(got) != 0 {
		t.Errorf("read %v while an earlier transaction runs, want nothing", got)
	}
	if err := slow.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := read(); len(got) != 2 || got[0] != "node.first" || got[1] != "node.second" {
		t.Errorf("read %v after both committed, want both in order", got)
	}

	// Numbers that a rollback leaves unused stop no reader.
	undone, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	event(undone, "node.undone")
	if err := undone.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := read(); len(got) != 2 {
		t.Errorf("read %v after a rollback, want the two that were committed", got)
	}

	// A dispatcher that waits for Temporal holds no reader up.
	s := store.New(pool, store.Options{})
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return store.AddDispatch(t.Context(), tx, store.DispatchIn{Kind: store.DispatchSignal, OperationID: "op_1", Signal: "wake"})
	}); err != nil {
		t.Fatal(err)
	}
	n, err := s.Deliver(t.Context(), 1, func(ctx context.Context, _ store.Dispatch) error {
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { event(tx, "node.third"); return nil }); err != nil {
			return err
		}
		if got := read(); len(got) != 3 {
			t.Errorf("read %v while a row is being delivered, want the third too", got)
		}
		return nil
	})
	if err != nil || n != 1 {
		t.Errorf("delivered %d (%v), want 1", n, err)
	}
}
