package store_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// held takes a lock in a transaction of its own. release commits it, with what
// more is given.
func (r *joinRig) held(sql string, args ...any) (release func(more ...func(ctx context.Context, tx pgx.Tx) error)) {
	r.t.Helper()
	tx, err := r.Pool().Begin(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if _, err := tx.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatal(err)
	}
	return func(more ...func(ctx context.Context, tx pgx.Tx) error) {
		r.t.Helper()
		for _, do := range more {
			if err := do(r.t.Context(), tx); err != nil {
				r.t.Fatal(err)
			}
		}
		if err := tx.Commit(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
	}
}

// awaitWaiters waits until so many transactions wait for a lock.
func (r *joinRig) awaitWaiters(n int) {
	r.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(2 * time.Minute)
	for r.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) < n {
		select {
		case <-late:
			r.t.Fatalf("%d transactions never waited for a lock", n)
		case <-tick.C:
		}
	}
}

// enrolling makes a node whose enroll runs, and returns it with the operation.
func (r *joinRig) enrolling() (node, op string) {
	r.t.Helper()
	node, op = store.NewID(fleet.KindNode), store.NewID(fleet.KindOperation)
	r.exec(`INSERT INTO nodes (id, tenant_id, site_id, provision_state) VALUES ($1, 'acme', $2, 'enrolling')`, node, r.Site)
	r.exec(`INSERT INTO bmcs (node_id, site_id, address, driver, username, tls_mode) VALUES ($1, $2, $1, 'auto', 'admin', 'verify')`, node, r.Site)
	err := r.InTx(r.t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		return r.InsertOperation(ctx, tx, store.NewOperation{ID: op, NodeID: node, TenantID: "acme", Verb: fleet.VerbEnroll, Lane: store.LaneProvision,
			Input: map[string]any{}, RequestedBy: "dev:owner"})
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.BeginOperation(r.t.Context(), op, "run-1"); err != nil {
		r.t.Fatal(err)
	}
	return node, op
}

// A machine that joins while it is found by its BMC is one node, whichever of
// both began first: the other waits, and then is refused.
func TestJoinMeetsEnroll(t *testing.T) {
	t.Parallel()
	const mac = "00:1b:21:00:00:01"
	byUUID := func(r *joinRig, op string) error {
		return r.RecordFound(r.t.Context(), op, fleet.Found{Identity: fleet.BMCIdentity{UUID: fleet.SwapUUID(uuidA)}}, "redfish")
	}
	byMACs := func(r *joinRig, op string) error {
		return r.RecordInventory(r.t.Context(), op, fleet.Inventory{NICs: []fleet.NIC{{MAC: mac}, {MAC: "00:1b:21:00:00:02"}}})
	}
	for name, found := range map[string]func(*joinRig, string) error{"by UUID": byUUID, "by MACs": byMACs} {
		t.Run(name+", the join first", func(t *testing.T) {
			t.Parallel()
			r := newJoinRig(t)
			_, op := r.enrolling()
			token := r.token("acme", r.Site, 1, time.Hour)
			pool := store.NewID(fleet.KindPool)
			r.exec(`INSERT INTO pools (id, tenant_id, site_id, name, gpu_model) VALUES ($1, 'acme', $2, 'p', 'H100')`, pool, r.Site)
			r.exec(`UPDATE join_tokens SET pool_id = $1`, pool)
			// The join has looked for the machine and waits for its pool.
			release := r.held(`SELECT FROM pools FOR UPDATE`)
			ended := make(chan error, 2)
			in := r.in(token, "a", uuidA, mac)
			go func() { _, err := r.Join(t.Context(), in); ended <- err }()
			r.awaitWaiters(1)
			enrolled := make(chan error, 1)
			go func() { enrolled <- found(r, op) }()
			r.awaitWaiters(2)
			release()
			if err := <-ended; err != nil {
				t.Errorf("the join, which was first: %v", err)
			}
			if err := <-enrolled; fleet.ReasonOf(err) != "already-enrolled" {
				t.Errorf("the enroll: %v, want it to find the host that joined", err)
			}
		})
		t.Run(name+", the enroll first", func(t *testing.T) {
			t.Parallel()
			r := newJoinRig(t)
			node, op := r.enrolling()
			token := r.token("acme", r.Site, 1, time.Hour)
			// The enroll has looked for the machine and waits to write.
			r.exec(`INSERT INTO inventories (node_id, doc, macs, inspected_at) VALUES ($1, '{}', '{}', now())`, node)
			release := r.held(`SELECT FROM bmcs JOIN inventories USING (node_id) FOR UPDATE`)
			ended := make(chan error, 1)
			go func() { ended <- found(r, op) }()
			r.awaitWaiters(1)
			joined := make(chan error, 1)
			in := r.in(token, "a", uuidA, mac)
			go func() { _, err := r.Join(t.Context(), in); joined <- err }()
			r.awaitWaiters(2)
			release()
			if err := <-ended; err != nil {
				t.Errorf("the enroll, which was first: %v", err)
			}
			if err := <-joined; fleet.ReasonOf(err) != fleet.ReasonNotBindable {
				t.Errorf("the join: %v, want reason %s", err, fleet.ReasonNotBindable)
			}
			if got := r.count(`SELECT count(*) FROM nodes`); got != 1 {
				t.Errorf("%d nodes for one machine", got)
			}
		})
	}
}

// A machine whose node is deleted while it joins is a new node at once, as it
// would be a moment later; its deploy token went with its node.
func TestJoinMeetsDeletion(t *testing.T) {
	t.Parallel()
	r := newJoinRig(t)
	r.exec(`UPDATE sites SET spec = spec || '{"joinBindsEnrolled": true}'`)
	token := r.token("acme", r.Site, 5, time.Hour)
	former := r.join(r.in(token, "a", uuidA))
	r.exec(`UPDATE certificates SET revoked_at = now(), revoke_reason = 'test'`)
	again := r.token("acme", r.Site, 5, time.Hour)

	enrolled, op := r.enrolling()
	r.exec(`UPDATE bmcs SET identity = jsonb_build_object('uuid', '5c4c4544-0051-3910-8053-b4c04f4e3933')`)
	deploy, err := r.DeployToken(t.Context(), op)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, node, reason string
		in                 store.JoinIn
	}{
		{"by its key", former.NodeID, "", r.in(again, "a", uuidA)},
		{"by its deploy token", enrolled, store.ReasonBadJoinToken, r.in(deploy, "b", "5c4c4544-0051-3910-8053-b4c04f4e3933")},
	} {
		release := r.held(`SELECT pg_advisory_xact_lock(hashtextextended('node/' || $1, 0))`, c.node)
		var g store.Granted
		ended := make(chan error, 1)
		go func() {
			var err error
			g, err = r.Join(t.Context(), c.in)
			ended <- err
		}()
		r.awaitWaiters(1)
		release(func(ctx context.Context, tx pgx.Tx) error {
			return store.DeleteNode(ctx, tx, store.Deletion{NodeID: c.node, Actor: "dev:owner"})
		})
		if err := <-ended; fleet.ReasonOf(err) != c.reason || (err == nil) != (c.reason == "") {
			t.Errorf("%s: %v, want reason %q", c.name, err, c.reason)
		}
		if c.reason == "" && (g.Outcome != fleet.JoinNew || g.NodeID == c.node) {
			t.Errorf("%s: %+v, want a new node", c.name, g)
		}
	}
}

// A token that is revoked while a join by it waits lets nobody in.
func TestJoinMeetsRevocation(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	r := &joinRig{Store: m.Store, t: t}
	var site string
	if err := m.Pool().QueryRow(t.Context(), `UPDATE sites SET spec = '{"tokenOnlyJoin": true, "joinBindsEnrolled": true}' RETURNING id`).Scan(&site); err != nil {
		t.Fatal(err)
	}
	deploy, err := m.DeployToken(t.Context(), m.Op)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		token  string
		revoke func(ctx context.Context, tx pgx.Tx) error
	}{
		"a deploy token": {deploy, func(ctx context.Context, tx pgx.Tx) error {
			_, _, err := store.RevokeNodeIdentity(ctx, tx, m.Node, "test")
			return err
		}},
		"a join token": {r.token("acme", site, 5, time.Hour), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE join_tokens SET revoked_at = now()`)
			return err
		}},
	} {
		release := r.held(`SELECT pg_advisory_xact_lock(hashtextextended('node/' || $1, 0))`, m.Node)
		ended := make(chan error, 1)
		in := r.in(c.token, "a", uuidA)
		go func() { _, err := r.Join(t.Context(), in); ended <- err }()
		r.awaitWaiters(1)
		release(c.revoke)
		if err := <-ended; fleet.ReasonOf(err) != store.ReasonBadJoinToken {
			t.Errorf("%s: %v, want reason %s", name, err, store.ReasonBadJoinToken)
		}
	}
	if n := r.count(`SELECT count(*) FROM node_keys`); n != 0 {
		t.Errorf("%d keys were bound", n)
	}
}

// Nodes that one machine matched together are told so once. Each is given back
// to placement when the others are deleted, or when the machine has joined as
// one of them.
func TestAmbiguousIsSettled(t *testing.T) {
	t.Parallel()
	const uuidB, uuidC = "5c4c4544-0051-3910-8053-b4c04f4e3933", "6c4c4544-0051-3910-8053-b4c04f4e3933"
	setUp := func(t *testing.T) (r *joinRig, token string, nodes []string) {
		r = newJoinRig(t)
		token = r.token("acme", r.Site, 100, time.Hour)
		for i, uuid := range []string{uuidA, uuidB, uuidC} {
			nodes = append(nodes, r.join(r.in(token, string(rune('a'+i)), uuid, []string{"00:1b:21:00:00:01", "00:1b:21:00:00:02", "00:1b:21:00:00:03"}[i])).NodeID)
		}
		return r, token, nodes
	}
	marked := func(r *joinRig, nodes []string) []string {
		r.t.Helper()
		var out []string
		for i, id := range nodes {
			if n := r.count(`SELECT count(*) FROM nodes n JOIN conditions c ON c.node_id = n.id WHERE n.id = $1 AND c.type = 'IdentityAmbiguous' AND c.status = 'True'
				AND 'condition:IdentityAmbiguous' = ANY (n.no_schedule_reasons)`, id); n == 1 {
				out = append(out, string(rune('a'+i)))
			}
		}
		return out
	}
	settles := func(r *joinRig, nodes []string, when string, want ...string) {
		r.t.Helper()
		if _, err := r.SettleIdentities(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
		if got := marked(r, nodes); !slices.Equal(got, want) {
			r.t.Errorf("%s: %v are ambiguous, want %v", when, got, want)
		}
	}
	remove := func(r *joinRig, id string) {
		r.t.Helper()
		err := r.InTx(r.t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			return store.DeleteNode(ctx, tx, store.Deletion{NodeID: id, Actor: "dev:owner"})
		})
		if err != nil {
			r.t.Fatal(err)
		}
	}
	t.Run("by deleting", func(t *testing.T) {
		t.Parallel()
		r, token, nodes := setUp(t)
		for range 3 { // a machine tries again and again
			r.refused("three nodes", fleet.ReasonAmbiguous, r.in(token, "a", uuidB, "00:1b:21:00:00:03"))
		}
		if got := r.count(`SELECT count(*) FROM events WHERE type = 'security.node.identity-ambiguous'`); got != 3 {
			t.Errorf("%d events, want one of each node", got)
		}
		settles(r, nodes, "nothing was done", "a", "b", "c")
		remove(r, nodes[1])
		settles(r, nodes, "one of three was deleted", "a", "c")
		remove(r, nodes[2])
		settles(r, nodes, "two of three were deleted")
		if got := r.count(`SELECT count(*) FROM ambiguous_identities`); got != 0 {
			t.Errorf("%d rows are left", got)
		}
	})
	t.Run("by joining", func(t *testing.T) {
		t.Parallel()
		r, token, nodes := setUp(t)
		r.refused("two nodes", fleet.ReasonAmbiguous, r.in(token, "a", uuidB))
		settles(r, nodes, "nothing was done", "a", "b")
		r.exec(`UPDATE certificates SET revoked_at = now(), revoke_reason = 'test'`)
		r.join(r.in(r.token("acme", r.Site, 1, time.Hour), "a", uuidA))
		r.refused("two nodes again", fleet.ReasonAmbiguous, r.in(token, "a", uuidB))
		settles(r, nodes, "it joined, and is another's again", "a", "b")
		r.exec(`UPDATE certificates SET revoked_at = now(), revoke_reason = 'test'`)
		r.join(r.in(r.token("acme", r.Site, 1, time.Hour), "a", uuidA))
		settles(r, nodes, "the machine is one of them alone")
	})
}
