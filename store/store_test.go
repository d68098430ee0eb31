package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/storetest"
)

// A fresh database has an epoch and the tables of the first migration.
func TestMigrated(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	rows, err := pool.Query(t.Context(), `SELECT epoch FROM cluster_epoch`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0] != 1 {
		t.Errorf("epochs = %v, want [1]", got)
	}
}

// What the database refuses for its content is an error that whoever repeats
// things can tell from one that may pass, and that names nothing of ours.
func TestRefusedRecordIsFinal(t *testing.T) {
	t.Parallel()
	s := store.New(storetest.New(t), store.Options{})
	err := s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO sites (id, tenant_id, name, spec) VALUES ('s', 'nobody', 'n', '{}')`)
		return err
	})
	var known *fleet.Error
	if !errors.As(err, &known) || known.Reason != fleet.ReasonRejected {
		t.Fatalf("err = %v, want one with reason %s", err, fleet.ReasonRejected)
	}
	if strings.Contains(known.Detail, "sites") {
		t.Errorf("the detail names a table: %s", known.Detail)
	}
}
