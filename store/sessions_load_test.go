package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/storetest"
)

// What a gateway with ten thousand sessions asks is one statement each time,
// finds the few that it is asked for, reads none of the tables that grow with
// what has happened, and writes the sessions in their places.
func TestTenThousandSessions(t *testing.T) {
	t.Parallel()
	pool, sent := storetest.Recorded(t)
	s := store.New(pool, store.Options{})
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`INSERT INTO tenants (id) VALUES ('acme')`)
	exec(`INSERT INTO sites (id, tenant_id, name, spec) VALUES ('site_a', 'acme', 'a', '{}')`)
	exec(`ALTER TABLE sessions SET (autovacuum_enabled = off)`)
	storetest.Fill(t, pool, "acme", "site_a", "", 10_000)
	exec(`INSERT INTO certificates (serial, node_id, generation, not_after, key_hash, used_at) SELECT md5(id), id, 0, now() + interval '1 day', '\x00', now() FROM nodes`)
	exec(`INSERT INTO node_specs (node_id, version, doc, judged) SELECT id, 3, '{}', 3 FROM nodes`)
	exec(`INSERT INTO commands (id, node_id, type, state, expires_at) SELECT 'cmd_' || id || g, id, 'accept', 'succeeded', now() FROM nodes, generate_series(1, 3) g`)
	exec(`ANALYZE certificates, node_specs, commands`)
	rows, err := pool.Query(t.Context(), `SELECT node_id, serial FROM certificates ORDER BY node_id`)
	if err != nil {
		t.Fatal(err)
	}
	held, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (h store.HeldSession, err error) {
		h.Seen = time.Now()
		return h, r.Scan(&h.NodeID, &h.Serial)
	})
	if err != nil || len(held) != 10_000 {
		t.Fatalf("%d sessions, %v", len(held), err)
	}
	node := func(n int) string { return held[n].NodeID }
	one := func(doing string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if n := sent.Total(); n != 1 {
			t.Errorf("%s: %d statements, want one", doing, n)
		}
	}

	for range 8 {
		sent.Forget()
		one("touch", s.TouchSessions(t.Context(), held))
	}
	exec(`UPDATE certificates SET revoked_at = now() WHERE node_id = $1`, node(7))
	exec(`UPDATE sessions SET epoch = 5 WHERE node_id = $1`, node(5000))
	exec(`DELETE FROM sessions WHERE node_id = $1`, node(9000))
	sent.Forget()
	ended, err := s.EndedSessions(t.Context(), held)
	one("ended", err)
	slices.Sort(ended)
	if diff := cmp.Diff([]string{node(7), node(5000), node(9000)}, ended); diff != "" {
		t.Errorf("ended (-want +got):\n%s", diff)
	}

	exec(`UPDATE node_specs SET version = 4 WHERE node_id = $1`, node(11))
	exec(`INSERT INTO commands (id, node_id, type, expires_at) VALUES ('cmd_1', $1, 'accept', now() + interval '1 hour')`, node(12))
	exec(`UPDATE sessions SET gateway = 'gw-other' WHERE node_id = $1`, node(13))
	exec(`INSERT INTO commands (id, node_id, type, expires_at) VALUES ('cmd_2', $1, 'accept', now() + interval '1 hour')`, node(13))
	sent.Forget()
	due, err := s.OwnersWithCommands(t.Context(), "gw", nil)
	one("owners", err)
	slices.Sort(due)
	if diff := cmp.Diff([]string{node(11), node(12)}, due); diff != "" {
		t.Errorf("due (-want +got):\n%s", diff)
	}
	for sql, tables := range sent.SeqScans(t, pool.Config().ConnString(), append([]string{"node_specs"}, storetest.BigTables...)...) {
		t.Errorf("reads %v from end to end:\n%s", tables, sql)
	}
	inPlace(t, pool.Config().ConnString())
}

// inPlace says whether most of the sessions' rows were written in their pages,
// as they are while no index is on what is written and their pages have room.
func inPlace(t *testing.T, url string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var hot, all int
		if err := conn.QueryRow(t.Context(), `SELECT n_tup_hot_upd, n_tup_upd FROM pg_stat_user_tables WHERE relname = 'sessions'`).Scan(&hot, &all); err != nil {
			t.Fatal(err)
		}
		if all >= 80_000 { // the statistics come a moment later
			if hot < all/4 {
				t.Errorf("%d of %d changes of sessions were made in place", hot, all)
			}
			return
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("%d of %d changes told", hot, all)
		case <-tick.C:
		}
	}
}
