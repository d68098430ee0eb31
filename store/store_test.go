package store_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

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
