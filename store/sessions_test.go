package store_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/storetest"
)

// sessionsRig is a site of nodes in session at gateway gw-1, which has long
// served.
type sessionsRig struct {
	*store.Store
	t     *testing.T
	nodes []string
}

func newSessions(t *testing.T, nodes int) *sessionsRig {
	t.Helper()
	r := &sessionsRig{Store: store.New(storetest.New(t), store.Options{}), t: t}
	r.exec(`INSERT INTO tenants (id) VALUES ('acme')`)
	r.exec(`INSERT INTO sites (id, tenant_id, name, spec) VALUES ('site_a', 'acme', 'a', '{}')`)
	for range nodes {
		id := storetest.Deployed(t, r.Store, storetest.Machine{TenantID: "acme", SiteID: "site_a"})
		r.nodes = append(r.nodes, id)
	}
	r.exec(`INSERT INTO gateways (id, since) VALUES ('gw-1', now() - interval '1 hour')`)
	r.exec(`DELETE FROM reconcile_wanted`)
	return r
}

func (r *sessionsRig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.Pool().Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *sessionsRig) count(sql string, args ...any) (n int) {
	r.t.Helper()
	if err := r.Pool().QueryRow(r.t.Context(), sql, args...).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// Who is lost, by how long ago the nodes of a site of 100 were heard of and how
// their gateway, and another one, fare: alone after 90 s; with many others, or
// when its gateway is gone, after 180; and never while no gateway has served for
// two minutes.
func TestLoseSessions(t *testing.T) {
	t.Parallel()
	const steady, back, away, gone = `now(), since = now() - interval '1 hour'`, `now(), since = now() - interval '110 seconds'`,
		`now() - interval '170 seconds', since = now() - interval '1 hour'`, `now() - interval '190 seconds', since = now() - interval '1 hour'`
	tests := map[string]struct {
		own, other string
		// silent nodes were heard of so many seconds ago, quiet ones 75.
		silent, seconds, quiet int
		want                   int
	}{
		"in time":                                  {own: steady, silent: 2, seconds: 85},
		"alone":                                    {own: steady, silent: 2, seconds: 95, want: 2},
		"a twentieth of the site":                  {own: steady, silent: 5, seconds: 95, want: 5},
		"more than a twentieth":                    {own: steady, silent: 6, seconds: 95},
		"the first of many":                        {own: steady, silent: 1, seconds: 95, quiet: 50},
		"all, for as long as a split may last":     {own: steady, silent: 100, seconds: 170},
		"all, for longer":                          {own: steady, silent: 100, seconds: 190, want: 100},
		"a gateway that is back for less than 120": {own: back, silent: 1, seconds: 600},
		"the other one is steady":                  {own: back, other: steady, silent: 1, seconds: 600},
		"a gateway that is away":                   {own: away, other: steady, silent: 1, seconds: 175},
		"a gateway that is gone":                   {own: gone, other: steady, silent: 100, seconds: 190, want: 100},
		"gone, and back at the other one":          {own: gone, other: steady, silent: 100, seconds: 170},
		"gone, and the other one is new":           {own: gone, other: back, silent: 1, seconds: 600},
		"no gateway at all":                        {own: gone, silent: 100, seconds: 600},
	}
	r := newSessions(t, 100)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r.exec(`DELETE FROM gateways`)
			for id, state := range map[string]string{"gw-1": tt.own, "gw-2": tt.other} {
				if state != "" {
					r.exec(`INSERT INTO gateways (id) VALUES ($1)`, id)
					r.exec(`UPDATE gateways SET at = `+state+` WHERE id = $1`, id)
				}
			}
			r.exec(`UPDATE sessions SET last_seen_at = now(), disconnected_at = NULL`)
			r.exec(`UPDATE sessions SET last_seen_at = now() - $2 * interval '1 second' WHERE node_id = ANY ($1)`, r.nodes[:tt.silent], tt.seconds)
			r.exec(`UPDATE sessions SET last_seen_at = now() - interval '75 seconds' WHERE node_id = ANY ($1)`, r.nodes[tt.silent:tt.silent+tt.quiet])
			lost, err := r.LoseSessions(t.Context())
			if err != nil || lost != tt.want {
				t.Fatalf("lost %d, %v; want %d", lost, err, tt.want)
			}
			if n := r.count(`SELECT count(*) FROM sessions WHERE disconnected_at IS NOT NULL AND node_id = ANY ($1)`, r.nodes[:tt.silent]); n != tt.want {
				t.Errorf("%d of the silent ones are lost, want %d", n, tt.want)
			}
		})
	}
}

// A site's split is its own: nodes of another site are lost beside it.
func TestLoseSessionsBySite(t *testing.T) {
	t.Parallel()
	r := newSessions(t, 40)
	r.exec(`INSERT INTO sites (id, tenant_id, name, spec) VALUES ('site_b', 'acme', 'b', '{}')`)
	other := storetest.Deployed(t, r.Store, storetest.Machine{TenantID: "acme", SiteID: "site_b"})
	r.exec(`UPDATE sessions SET last_seen_at = now() - interval '95 seconds'`)
	if lost, err := r.LoseSessions(t.Context()); err != nil || lost != 1 {
		t.Fatalf("lost %d, %v; want the one of the other site", lost, err)
	}
	if n := r.count(`SELECT count(*) FROM sessions WHERE disconnected_at IS NOT NULL AND node_id = $1`, other); n != 1 {
		t.Error("another node is lost")
	}
}

// A node that counts as connected and opens a session again has its next epoch,
// and nothing else is written: no version, event, condition, order or wish.
func TestReopenSession(t *testing.T) {
	t.Parallel()
	r := newSessions(t, 1)
	node := r.nodes[0]
	state := func() string {
		return fmt.Sprint(r.count(`SELECT version FROM nodes WHERE id = $1`, node), r.count(`SELECT count(*) FROM events`), r.count(`SELECT count(*) FROM dispatch`),
			r.count(`SELECT count(*) FROM reconcile_wanted`), r.count(`SELECT max(xmin::text::bigint) FROM conditions`), r.count(`SELECT max(xmin::text::bigint) FROM nodes`))
	}
	before := state()
	for want := int64(2); want < 5; want++ {
		if epoch := storetest.Connect(t, r.Store, node); epoch != want {
			t.Errorf("epoch %d, want %d", epoch, want)
		}
	}
	if after := state(); after != before {
		t.Errorf("version, events, orders, wishes, condition, node: %s, before %s", after, before)
	}
	r.exec(`UPDATE sessions SET last_seen_at = now() - interval '95 seconds'`)
	if lost, err := r.LoseSessions(t.Context()); err != nil || lost != 1 {
		t.Fatal(lost, err)
	}
	r.exec(`DELETE FROM reconcile_wanted`)
	r.exec(`UPDATE certificates SET used_at = NULL`)
	if epoch := storetest.Connect(t, r.Store, node); epoch != 5 {
		t.Errorf("epoch %d, want 5", epoch)
	}
	r.exec(`UPDATE certificates SET used_at = NULL`)
	storetest.Connect(t, r.Store, node)
	if r.count(`SELECT count(*) FROM certificates WHERE used_at IS NULL`) != 0 {
		t.Error("a certificate that was shown for the first time is not noted as used")
	}
	n, err := store.LoadNode(t.Context(), r.Pool(), node)
	if err != nil || len(n.NoScheduleReasons) > 0 || n.Session.DisconnectedAt != nil || r.count(`SELECT count(*) FROM reconcile_wanted`) != 1 {
		t.Errorf("back after its loss: %+v, %v", n, err)
	}
}

// A session is opened again by a certificate that serves, and no other.
func TestReopenSessionRefused(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]string{
		"revoked":        `UPDATE certificates SET revoked_at = now()`,
		"expired":        `UPDATE certificates SET not_after = now()`,
		"old generation": `UPDATE nodes SET identity_generation = 1`,
		"another key":    `UPDATE certificates SET key_hash = '\x01'`,
		"another node":   `UPDATE certificates SET serial = 'other'`,
		"deleted":        `UPDATE nodes SET deleted_at = now()`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newSessions(t, 1)
			r.exec(spoil)
			_, err := r.OpenSession(t.Context(), "gw-1", store.ShownCert{NodeID: r.nodes[0], Serial: r.nodes[0], KeyHash: []byte{0}})
			if fleet.CodeOf(err) != fleet.CodeUnauthenticated {
				t.Errorf("opened: %v", err)
			}
			if n := r.count(`SELECT epoch FROM sessions`); n != 1 {
				t.Errorf("epoch %d, want 1", n)
			}
		})
	}
}

// A revocation that was there when the session came to be opened wins, also when
// the opening waited for it.
func TestReopenSessionRacesRevocation(t *testing.T) {
	t.Parallel()
	r := newSessions(t, 1)
	node := r.nodes[0]
	opened := make(chan error, 1)
	err := r.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if err := store.LockNode(ctx, tx, node); err != nil {
			return err
		}
		if _, _, err := store.RevokeNodeIdentity(ctx, tx, node, "test"); err != nil {
			return err
		}
		go func() {
			_, err := r.OpenSession(context.WithoutCancel(ctx), "gw-1", store.ShownCert{NodeID: node, Serial: node, KeyHash: []byte{0}})
			opened <- err
		}()
		for waits := 0; waits == 0; {
			if err := r.Pool().QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waits); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-opened; fleet.CodeOf(err) != fleet.CodeUnauthenticated {
		t.Errorf("opened: %v", err)
	}
	if n := r.count(`SELECT count(*) FROM sessions WHERE disconnected_at IS NULL`); n != 0 {
		t.Error("a revoked node is in session")
	}
}

// A session that was given up while its gateway still serves it ends there, so
// that the node comes back with a new one.
func TestLostSessionEnds(t *testing.T) {
	t.Parallel()
	r := newSessions(t, 2)
	held := []store.HeldSession{{NodeID: r.nodes[0], Serial: r.nodes[0], Epoch: 1}, {NodeID: r.nodes[1], Serial: r.nodes[1], Epoch: 1}}
	r.exec(`UPDATE sessions SET disconnected_at = now() WHERE node_id = $1`, r.nodes[1])
	ended, err := r.EndedSessions(t.Context(), held)
	if err != nil || len(ended) != 1 || ended[0] != r.nodes[1] {
		t.Errorf("ended %v, %v; want the one that was lost", ended, err)
	}
}
