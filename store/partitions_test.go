package store_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// partitionsOf names a table's partitions that hold rows.
func partitionsOf(t *testing.T, pool *pgxpool.Pool, table string) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT DISTINCT tableoid::regclass::text FROM `+table+` ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// A migrated database has partitions for what is to come; rows that landed in
// the default one are moved to one of their time, by however many processes at
// once, and stay readable in their order; what is past retention goes, and who
// held a cursor there is told.
func TestPartitions(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	var clock time.Time
	if err := o.pool.QueryRow(t.Context(), `SELECT now()`).Scan(&clock); err != nil {
		t.Fatal(err)
	}
	days := []int{200, 95, 60, 0, -365}
	for i, ago := range days {
		at := clock.AddDate(0, 0, -ago)
		o.exec(`INSERT INTO events (tx, type, node_id, tenant_id, audience, actor, at) VALUES ($1, $2, 'node_a', 'acme', '{acme}', 'system', $3)`,
			i+1, fmt.Sprintf("node.e%d", i), at)
	}
	for _, ago := range []int{500, 300, 0} {
		o.exec(`INSERT INTO audit (tenant_id, identity, method, outcome, request_id, at) VALUES ('acme', 'i', 'm', 'OK', 'r', $1)`, clock.AddDate(0, 0, -ago))
	}
	if got := partitionsOf(t, o.pool, "events"); len(got) != 2 || got[0] != "events_default" {
		t.Errorf("rows lie in %v, want the one of now in a partition that migration made", got)
	}
	read := func(tx uint64) []string {
		t.Helper()
		list, err := store.NodeEvents(t.Context(), o.pool, store.EventFilter{NodeID: "node_a", TenantID: "acme", Own: true, Limit: 10, Tx: tx})
		if err != nil {
			t.Fatal(err)
		}
		var types []string
		for _, e := range list {
			types = append(types, e.Type)
		}
		return types
	}
	if gap, _, err := store.EventsGap(t.Context(), o.pool, 0, 0); err != nil || gap {
		t.Errorf("gap before anything was removed: %v, %v", gap, err)
	}
	keepAtOnce(t, o.Store)
	if got := read(0); !slices.Equal(got, []string{"node.e2", "node.e3", "node.e4"}) {
		t.Errorf("kept %v, want what is younger than 90 days in order", got)
	}
	for _, table := range []string{"events", "audit"} {
		if got := partitionsOf(t, o.pool, table); slices.Contains(got, table+"_default") {
			t.Errorf("rows of %s lie in %v, want none in the default partition", table, got)
		}
	}
	var audits int
	if err := o.pool.QueryRow(t.Context(), `SELECT count(*) FROM audit WHERE tenant_id = 'acme'`).Scan(&audits); err != nil || audits != 2 {
		t.Errorf("%d audit rows are left (%v), want 2", audits, err)
	}
	for _, c := range []struct {
		tx, seq uint64
		gap     bool
	}{{0, 0, true}, {1, 99, true}, {2, 1 << 62, false}, {3, 0, false}} {
		gap, kept, err := store.EventsGap(t.Context(), o.pool, c.tx, c.seq)
		if err != nil || gap != c.gap || kept == "0:0" {
			t.Errorf("gap after %d:%d = %v from %s (%v), want %v", c.tx, c.seq, gap, kept, err, c.gap)
		}
	}
	if err := o.KeepPartitions(t.Context()); err != nil {
		t.Error(err)
	}
}

func keepAtOnce(t *testing.T, s *store.Store) {
	t.Helper()
	failed := make(chan error, 3)
	for range cap(failed) {
		go func() { failed <- s.KeepPartitions(t.Context()) }()
	}
	for range cap(failed) {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

// A partition that somebody reads for long is dropped in a later round: whoever
// comes after is not held up for as long.
func TestPartitionsWait(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.exec(`INSERT INTO events (tx, type, tenant_id, audience, actor, at) VALUES (1, 'node.old', 'acme', '{acme}', 'system', now() - interval '200 days')`)
	err := pgx.BeginFunc(t.Context(), o.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SELECT count(*) FROM events`); err != nil {
			return err
		}
		if err := o.KeepPartitions(t.Context()); fleet.ReasonOf(err) != "busy" {
			t.Errorf("err = %v beside a long read, want busy", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.KeepPartitions(t.Context()); err != nil {
		t.Error(err)
	}
	if got := partitionsOf(t, o.pool, "events"); len(got) != 0 {
		t.Errorf("old rows lie in %v after the reader ended, want none", got)
	}
}

// Operations are kept 400 days, and the last twenty of a node whatever their
// age; what belongs to one goes with it, but for its erase records.
func TestForgetOperations(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	add := func(node, id string, ago int) {
		t.Helper()
		o.exec(`INSERT INTO operations (id, node_id, tenant_id, verb, lane, state, requested_by, epoch, created_at, ended_at)
			VALUES ($1, $2, 'acme', 'deploy', 'provision', 'succeeded', 'i', 1, now() - make_interval(days => $3), now() - make_interval(days => $3))`, id, node, ago)
		o.exec(`INSERT INTO boots (id, operation_id, node_id, power_on, token_hash) VALUES ($1, $2, $3, 1, '')`, "boot_"+id, id, node)
		o.exec(`INSERT INTO commands (id, node_id, operation_id, boot_id, type, state, expires_at) VALUES ($1, $2, $3, $4, 'erase', 'succeeded', now())`, "cmd_"+id, node, id, "boot_"+id)
		o.exec(`INSERT INTO reports (id, operation_id, node_id) VALUES ($1, $2, $3)`, "report_"+id, id, node)
		o.exec(`INSERT INTO operation_secrets (operation_id, name, sealed) VALUES ($1, 'x', '')`, id)
		o.exec(`INSERT INTO deploy_tokens (operation_id, node_id, hash, expires_at) VALUES ($1, $2, $3, now())`, id, node, []byte(id))
		o.exec(`INSERT INTO erase_records (id, node_id, operation_id, tenant_id, disk_serial, method, result, actor) VALUES ($1, $2, $3, 'acme', 's', 'full', 'done', 'i')`, "erase_"+id, node, id)
	}
	o.exec(`INSERT INTO nodes (id, tenant_id, site_id, provision_state) VALUES ('node_idle', 'acme', 'site_1', 'ready')`)
	for n := range 25 {
		add("node_idle", fmt.Sprintf("op_idle_%02d", n), 500+n)
	}
	add("node_a", "op_old", 401)
	for n := range 20 {
		add("node_a", fmt.Sprintf("op_new_%02d", n), 399-n)
	}
	count := func(sql string) (n int) {
		t.Helper()
		if err := o.pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if err := o.ForgetOld(t.Context()); err != nil {
		t.Fatal(err)
	}
	for sql, want := range map[string]int{
		`SELECT count(*) FROM operations WHERE node_id = 'node_idle'`:                        20,
		`SELECT count(*) FROM operations WHERE id IN ('op_idle_20', 'op_idle_24', 'op_old')`: 0,
		`SELECT count(*) FROM operations WHERE node_id = 'node_a'`:                           20,
		`SELECT count(*) FROM boots`:                                                         40,
		`SELECT count(*) FROM erase_records`:                                                 46,
	} {
		if got := count(sql); got != want {
			t.Errorf("%s = %d, want %d", sql, got, want)
		}
	}
}

// What refers to an operation goes with it: retention would stop at the first
// one otherwise.
func TestOperationsAreForgettable(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	rows, err := o.pool.Query(context.Background(), `SELECT conrelid::regclass || '.' || conname FROM pg_constraint
		WHERE contype = 'f' AND confrelid IN ('operations'::regclass, 'boots'::regclass) AND confdeltype <> 'c'`)
	if err != nil {
		t.Fatal(err)
	}
	if stuck, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(stuck) > 0 {
		t.Errorf("foreign keys without ON DELETE CASCADE: %v (%v)", stuck, err)
	}
}
