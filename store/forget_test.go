package store_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/storetest"
)

// names collects one column.
func (r *sessionsRig) names(sql string) []string {
	r.t.Helper()
	rows, err := r.Pool().Query(r.t.Context(), sql)
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// A certificate is kept for as long as a rule asks for it, and thirty days more;
// one within the grace of a renewal is renewed as before.
func TestForgetCertificates(t *testing.T) {
	t.Parallel()
	r := newSessions(t, 1)
	node := r.nodes[0]
	for _, days := range []int{-1, 1, 29, 31, 59, 61, 400} {
		for _, revoked := range []string{"NULL", "now()"} {
			r.exec(`INSERT INTO certificates (serial, node_id, generation, not_after, key_hash, revoked_at) VALUES ($1, $2, 0, now() - make_interval(days => $3), '\x00', `+revoked+`)`,
				fmt.Sprintf("%d days, revoked %s", days, revoked), node, days)
		}
	}
	r.exec(`INSERT INTO certificates (serial, node_id, generation, not_after) SELECT 'many ' || n, $1, 0, now() - interval '100 days' FROM generate_series(1, 1200) n`, node)
	if err := r.ForgetOld(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{node}
	for _, days := range []int{-1, 1, 29, 31, 59} {
		for _, revoked := range []string{"NULL", "now()"} {
			want = append(want, fmt.Sprintf("%d days, revoked %s", days, revoked))
		}
	}
	got := r.names(`SELECT serial FROM certificates`)
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	for serial, renewed := range map[string]bool{"29 days, revoked NULL": true, "29 days, revoked now()": false, "31 days, revoked NULL": false, "61 days, revoked NULL": false} {
		_, err := r.Renew(t.Context(), store.ShownCert{NodeID: node, Serial: serial, KeyHash: []byte{0}}, []byte{0}, "next of "+serial, nil)
		if (err == nil) != renewed || (err != nil && fleet.CodeOf(err) != fleet.CodeUnauthenticated) {
			t.Errorf("renewed %s: %v", serial, err)
		}
	}
}

// A command goes ninety days after its time was over, unless its operation has
// not ended.
func TestForgetCommands(t *testing.T) {
	t.Parallel()
	r := newSessions(t, 1)
	node := r.nodes[0]
	for id, state := range map[string]string{"op_live": "running", "op_parked": "failed", "op_ended": "failed"} {
		r.exec(`INSERT INTO operations (id, node_id, tenant_id, verb, lane, state, parked, requested_by, epoch, ended_at)
			VALUES ($1, $2, 'acme', 'adopt', 'provision', $3, $4, 'i', 1, CASE WHEN $3 = 'failed' THEN now() END)`, id, node, state, id == "op_parked")
		if id == "op_live" {
			r.exec(`UPDATE operations SET lane = 'drain' WHERE id = $1`, id)
		}
	}
	for _, days := range []int{-1, 89, 91} {
		for _, op := range []string{"", "op_live", "op_parked", "op_ended"} {
			for _, state := range []string{"pending", "succeeded"} {
				r.exec(`INSERT INTO commands (id, node_id, operation_id, type, state, expires_at) VALUES ($1, $2, NULLIF($3, ''), 'accept', $4, now() - make_interval(days => $5))`,
					fmt.Sprintf("%d days %s %s", days, op, state), node, op, state, days)
			}
		}
	}
	r.exec(`INSERT INTO commands (id, node_id, operation_id, type, expires_at) SELECT 'kept ' || n, $1, 'op_live', 'accept', now() - interval '100 days' FROM generate_series(1, 600) n`, node)
	r.exec(`INSERT INTO commands (id, node_id, type, expires_at) SELECT 'many ' || n, $1, 'accept', now() - interval '95 days' FROM generate_series(1, 600) n`, node)
	if err := r.ForgetOld(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone := []string{"91 days  pending", "91 days  succeeded", "91 days op_ended pending", "91 days op_ended succeeded"}
	if n := r.count(`SELECT count(*) FROM commands WHERE id = ANY ($1) OR id LIKE 'many%'`, gone); n != 0 {
		t.Errorf("%d commands are kept that should be gone", n)
	}
	if n := r.count(`SELECT count(*) FROM commands`); n != 600+3*4*2-len(gone) {
		t.Errorf("%d commands, want %d: %v", n, 600+3*4*2-len(gone), r.names(`SELECT id FROM commands WHERE id NOT LIKE 'kept%'`))
	}
}

// What is removed is found by its end, and what a join asks of certificates by
// the key.
func TestForgetPlans(t *testing.T) {
	t.Parallel()
	pool, sent := storetest.Recorded(t)
	s := store.New(pool, store.Options{})
	for _, sql := range []string{
		`INSERT INTO tenants (id) VALUES ('acme')`,
		`INSERT INTO sites (id, tenant_id, name, spec) VALUES ('site_a', 'acme', 'a', '{"tokenOnlyJoin": true}')`,
		`INSERT INTO nodes (id, tenant_id, site_id, provision_state) VALUES ('node_a', 'acme', 'site_a', 'deployed')`,
		`INSERT INTO certificates (serial, node_id, generation, not_after, key_hash, used_at, revoked_at)
			SELECT n, 'node_a', 0, now() + make_interval(hours => 24 - n), sha256(n::text::bytea), now(), now() FROM generate_series(1, 20000) n`,
		`INSERT INTO commands (id, node_id, type, state, expires_at) SELECT n, 'node_a', 'accept', 'succeeded', now() - make_interval(hours => n) FROM generate_series(1, 20000) n`,
		`INSERT INTO join_tokens (id, tenant_id, site_id, hash, max_uses, uses, expires_at, created_by) VALUES ('jt_1', 'acme', 'site_a', sha256('joins'), 1, 1, now() + interval '1 day', 'i')`,
		`INSERT INTO node_keys (hash, node_id, token_id) VALUES ('\x4b', 'node_a', 'jt_1')`,
		`ANALYZE`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%v\n%s", err, sql)
		}
	}
	sent.Forget()
	if err := s.ForgetOld(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The answer to its join was lost, and it asks again.
	if g, err := s.Join(t.Context(), store.JoinIn{Token: "joins", KeyHash: []byte{0x4b}, Serial: "again"}); err != nil || g.NodeID != "node_a" {
		t.Fatalf("joined again: %+v, %v", g, err)
	}
	if _, err := pool.Exec(t.Context(), `ANALYZE`); err != nil {
		t.Fatal(err)
	}
	for sql, tables := range sent.SeqScans(t, pool.Config().ConnString(), storetest.BigTables...) {
		t.Errorf("reads %v from end to end:\n%s", tables, sql)
	}
}
