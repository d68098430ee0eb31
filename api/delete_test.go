package api_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// joinedBy makes a machine join the rig's site, which takes a token alone, and
// returns its node and the join with which it came.
func (r *rig) joinedBy(name, uuid string) (string, store.JoinIn) {
	r.t.Helper()
	r.exec(`UPDATE sites SET spec = spec || '{"tokenOnlyJoin": true}' WHERE id = $1`, r.site)
	var out fleet.JoinTokenSecretOut
	r.ok("owner", "joinTokens/create", obj{"tenantId": "acme", "siteId": r.site, "ttlSeconds": 600, "maxUses": 10}, &out)
	key := sha256.Sum256([]byte(name))
	in := store.JoinIn{Token: out.Secret, KeyHash: key[:], Serial: fmt.Sprintf("%x", key[:8]), Hardware: fleet.Hardware{UUID: uuid, MACs: []string{"00:1b:21:00:00:01"}},
		Inventory: &fleet.Inventory{Vendor: "Dell", GPUs: []fleet.Device{{Model: "H100", Serial: "G1"}, {Model: "H100", Serial: "G2"}}}}
	g, err := r.store.Join(r.t.Context(), in)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.store.OpenSession(r.t.Context(), "gw-1", store.ShownCert{NodeID: g.NodeID, Generation: g.Generation, Serial: in.Serial, KeyHash: in.KeyHash}); err != nil {
		r.t.Fatal(err)
	}
	return g.NodeID, in
}

// offeredPool makes a pool of acme that globex is offered, and puts a node into it.
func (r *rig) offeredPool(nodeID string) string {
	r.t.Helper()
	id := store.NewID(fleet.KindPool)
	r.exec(`INSERT INTO pools (id, tenant_id, site_id, name, gpu_model) VALUES ($1, 'acme', $2, $1, 'H100')`, id, r.site)
	r.exec(`INSERT INTO pool_visibility (tenant_id, pool_id) VALUES ('acme', $1), ('globex', $1)`, id)
	r.exec(`INSERT INTO pool_offers (tenant_id, pool_id, quota_gpus) VALUES ('globex', $1, 8)`, id)
	r.exec(`UPDATE nodes SET pool_id = $2 WHERE id = $1`, nodeID, id)
	return id
}

// The states that the reference deletes in, and the others, each refusal naming
// its precondition.
func TestDeleteStates(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i, c := range []struct {
		state, from fleet.ProvisionState
		set, reason string
		admitted    bool
	}{
		{state: fleet.Retired, admitted: true},
		{state: fleet.Adopting, admitted: true},
		{state: fleet.Enrolling, admitted: true},
		{state: fleet.Failed, from: fleet.Enrolling, admitted: true},
		{state: fleet.Failed, from: fleet.Adopting, admitted: true},
		{state: fleet.Adopted, set: `cordoned = true`, admitted: true},
		{state: fleet.Adopted, reason: "not-cordoned"},
		{state: fleet.Failed, from: fleet.Deploying},
		{state: fleet.Failed, from: fleet.Retiring},
		{state: fleet.Ready}, {state: fleet.Deployed}, {state: fleet.Rescue}, {state: fleet.Inspecting},
		{state: fleet.Commissioning}, {state: fleet.Deploying}, {state: fleet.Releasing}, {state: fleet.Retiring},
	} {
		n := r.enrolled(fmt.Sprintf("127.0.1.%d", i+1), fleet.Ready)
		set := []string{fmt.Sprintf("provision_state = '%s'", c.state)}
		if c.from != "" {
			set = append(set, fmt.Sprintf(`failed = '{"from": %q, "step": "s"}'`, c.from))
		}
		if c.set != "" {
			set = append(set, c.set)
		}
		r.exec(`UPDATE nodes SET `+strings.Join(set, ", ")+` WHERE id = $1`, n.ID)
		if !c.admitted {
			p := r.refused("owner", "nodes/delete", on(n.ID), fleet.CodeInvalidState, c.reason)
			if c.reason == "" && !strings.Contains(p.Detail, "retired") {
				t.Errorf("%s(%s): %q does not name the states that can be deleted", c.state, c.from, p.Detail)
			}
			continue
		}
		var out fleet.DeletedOut
		r.ok("owner", "nodes/delete", on(n.ID), &out)
		if !out.Deleted {
			t.Errorf("%s(%s) was not deleted", c.state, c.from)
		}
	}
}

// An open allocation keeps a node, whatever its state.
func TestDeleteAllocated(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Adopted)
	r.exec(`UPDATE nodes SET cordoned = true WHERE id = $1`, n.ID)
	r.allocate(n.ID, "alloc_1", "dev:ann")
	r.refused("owner", "nodes/delete", on(n.ID), fleet.CodeInvalidState, "allocations-live")
	r.exec(`UPDATE allocations SET state = 'released' WHERE id = 'alloc_1'`)
	r.ok("owner", "nodes/delete", on(n.ID), nil)
	if got := r.count(`SELECT count(*) FROM allocations WHERE node_id = $1`, n.ID); got != 1 {
		t.Errorf("%d past allocations of the deleted node, want 1", got)
	}
}

// A delete frees in one transaction all that the node held, ends what was live,
// and is told to all who saw the node, once.
func TestDeleteFreesAll(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	nodeID, join := r.joinedBy("key", "4c4c4544-0051-3910-8053-b4c04f4e3933")
	pool := r.offeredPool(nodeID)
	r.exec(`UPDATE nodes SET provision_state = 'adopted', cordoned = true WHERE id = $1`, nodeID)
	r.exec(`INSERT INTO bmcs (node_id, site_id, address, driver, username, password, tls_mode, tls_fingerprint) VALUES ($1, $2, '127.0.0.9', 'auto', 'root', 'x', 'pin', 'sha256:00')`, nodeID, r.site)
	r.exec(`INSERT INTO bmc_sessions (node_id, uri, token) VALUES ($1, '/s/1', 'x')`, nodeID)
	r.exec(`INSERT INTO commands (id, node_id, type, expires_at) VALUES ('cmd_1', $1, 'inventory', now() + interval '1 hour')`, nodeID)
	// A past allocation keeps the device that it had.
	r.exec(`INSERT INTO allocations (id, tenant_id, pool_id, node_id, holder, gpus, state) VALUES ('alloc_1', 'globex', $2, $1, 'dev:ann', 1, 'released')`, nodeID, pool)
	r.exec(`INSERT INTO allocation_devices (allocation_id, device_id, live) SELECT 'alloc_1', id, false FROM devices WHERE node_id = $1 AND serial = 'G1'`, nodeID)
	var drained fleet.NodeOut
	r.ok("owner", "nodes/drain", on(nodeID), &drained)
	adopt, drain := drained.Node.Operations.Provision, drained.Node.Operations.Drain
	r.exec(`DELETE FROM dispatch WHERE operation_id = $1`, adopt) // its start was delivered
	r.exec(`INSERT INTO dispatch (workflow_id, kind, operation_id, signal, epoch) SELECT $1, 'signal', $2, 'wake', epoch FROM cluster_epoch`, fleet.WorkflowID(adopt), adopt)

	var out fleet.DeletedOut
	r.ok("owner", "nodes/delete", on(nodeID, "reason", "new board"), &out)
	if !out.Deleted {
		t.Fatal("not deleted")
	}
	if got := r.count(`SELECT count(*) FROM left_sessions WHERE node_id = $1 AND uri = '/s/1'`, nodeID); got != 1 {
		t.Errorf("%d sessions are left for the sweep to end on the BMC, want 1", got)
	}
	left := map[string]int{}
	for _, table := range []string{"inventories", "node_keys", "machine_claims", "joined_hardware", "deploy_tokens", "node_specs", "sessions", "conditions",
		"bmcs", "bmc_sessions", "bmc_leases", "reconcile_wanted", "node_visibility"} {
		left[table] = r.count(`SELECT count(*) FROM `+table+` WHERE node_id = $1`, nodeID)
	}
	for what, sql := range map[string]string{
		"bookable devices":     `SELECT count(*) FROM devices WHERE node_id = $1 AND present`,
		"devices never booked": `SELECT count(*) FROM devices WHERE node_id = $1 AND serial = 'G2'`,
		"live certificates":    `SELECT count(*) FROM certificates WHERE node_id = $1 AND revoked_at IS NULL`,
		"open commands":        `SELECT count(*) FROM commands WHERE node_id = $1 AND state IN ('pending', 'delivered')`,
		"open operations":      `SELECT count(*) FROM operations WHERE node_id = $1 AND (state IN ('pending', 'running', 'waiting') OR parked)`,
		"secrets":              `SELECT count(*) FROM operation_secrets s JOIN operations o ON o.id = s.operation_id WHERE o.node_id = $1`,
		"pool or fences":       `SELECT count(*) FROM nodes WHERE id = $1 AND (pool_id IS NOT NULL OR provision_op IS NOT NULL OR drain_op IS NOT NULL)`,
		"told drained":         `SELECT count(*) FROM events WHERE node_id = $1 AND type = 'node.drained'`,
	} {
		left[what] = r.count(sql, nodeID)
	}
	for what, n := range left {
		if n != 0 {
			t.Errorf("%d %s are left", n, what)
		}
	}
	if got := r.text(`SELECT string_agg(kind || ' ' || coalesce(signal, '') || ' ' || operation_id, ', ') FROM dispatch`); got != "signal end "+adopt {
		t.Errorf("to be delivered: %q, want the end of %s alone (the drain %s had not begun)", got, adopt, drain)
	}
	if got := r.text(`SELECT string_agg(state || ' ' || (error->>'cause'), ', ' ORDER BY id) FROM operations WHERE node_id = $1`, nodeID); strings.Count(got, "aborted the node was deleted by dev:owner") != 2 {
		t.Errorf("operations: %q", got)
	}
	if got := r.text(`SELECT array_to_string(audience, ',') || ' ' || actor || ' ' || (data->>'reason') FROM events WHERE node_id = $1 AND type = 'node.deleted'`, nodeID); got != "acme,globex dev:owner new board" {
		t.Errorf("node.deleted: %q", got)
	}
	if got := r.text(`SELECT revoke_reason FROM certificates WHERE node_id = $1 LIMIT 1`, nodeID); got != "node deleted: new board" {
		t.Errorf("certificates were revoked for %q", got)
	}
	if wrong, err := store.CheckProjection(t.Context(), r.store.Pool()); err != nil || len(wrong) != 0 {
		t.Errorf("projection: %v, %v", wrong, err)
	}

	// The machine joins again under its old key, and the BMC is enrolled anew.
	join.Serial = "aa"
	again, err := r.store.Join(t.Context(), join)
	if err != nil || again.NodeID == nodeID || again.Outcome != fleet.JoinNew {
		t.Errorf("the machine joined again as %+v, %v", again, err)
	}
	r.ok("owner", "metal/enroll", enrollIn(r.site, "127.0.0.9"), nil)
}

// A repeat answers deleted: false, whatever the version, to tenants that saw the
// node and identities that may delete it; to all others, and for all other
// methods, the node is not there.
func TestDeleteAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Retired)
	other := r.enrolled("127.0.0.10", fleet.Retired)
	pool := r.offeredPool(n.ID)
	r.grant("acme", "provisioner", fleet.RoleProvisioner)
	if _, err := r.store.CreateTenant(t.Context(), "umbrella", "dev:owner3"); err != nil {
		t.Fatal(err)
	}
	r.exec(`INSERT INTO bindings (id, tenant_id, identity, role, on_pool, granted_by) VALUES ('bind_1', 'acme', 'dev:of-pool', 'provisioner', $1, 'dev:owner')`, pool)
	r.exec(`INSERT INTO bindings (id, tenant_id, identity, role, on_node, granted_by) VALUES ('bind_2', 'acme', 'dev:of-node', 'provisioner', $1, 'dev:owner')`, n.ID)
	// What an owner grants by name to an identity of a tenant that the pool is offered to.
	r.exec(`INSERT INTO bindings (id, tenant_id, identity, role, on_node, granted_by) VALUES ('bind_3', 'acme', 'dev:owner2', 'provisioner', $1, 'dev:owner')`, n.ID)
	r.refused("operator", "nodes/delete", on(n.ID), fleet.CodeAccessDenied, "not-permitted")
	r.refused("owner", "nodes/delete", on(n.ID, "version", n.Version+7), fleet.CodeConflict, "version")
	var out fleet.DeletedOut
	r.ok("provisioner", "nodes/delete", on(n.ID, "version", n.Version), &out)
	if !out.Deleted {
		t.Fatal("not deleted")
	}
	written := r.count(`SELECT count(*) FROM events WHERE node_id = $1`, n.ID)
	for _, subject := range []string{"owner", "provisioner", "of-pool", "of-node"} {
		for _, in := range []obj{on(n.ID), on(n.ID, "version", n.Version), on(n.ID, "version", 9000)} {
			out.Deleted = true
			r.ok(subject, "nodes/delete", in, &out)
			if out.Deleted {
				t.Errorf("%s deleted it again", subject)
			}
		}
	}
	out.Deleted = true
	r.ok("owner2", "nodes/delete", obj{"tenantId": "globex", "nodeId": n.ID}, &out)
	if out.Deleted {
		t.Error("a tenant that the node was offered to deleted it again")
	}
	absent := r.refused("viewer", "nodes/delete", on(absentNode), fleet.CodeNotFound, "")
	for _, c := range []struct{ subject, tenant, nodeID string }{
		{"viewer", "acme", n.ID}, {"operator", "acme", n.ID}, {"owner3", "umbrella", n.ID}, {"of-pool", "acme", other.ID},
	} {
		if c.nodeID == other.ID {
			r.ok("owner", "nodes/delete", on(other.ID), nil) // it was in no pool
		}
		p := r.refused(c.subject, "nodes/delete", obj{"tenantId": c.tenant, "nodeId": c.nodeID}, fleet.CodeNotFound, "")
		if p.Detail != absent.Detail || p.Title != absent.Title {
			t.Errorf("%s of %s is told %q, of a node that never was %q", c.subject, c.tenant, p.Detail, absent.Detail)
		}
	}
	for _, m := range fleet.Methods {
		in, ok := nodeInput(m, n.ID)
		if !ok || m.FullName() == "nodes/delete" || m.FullName() == "nodes/issueSshCert" { // the latter is off here, which is told first
			continue
		}
		if p := r.call("owner", m.FullName(), in, nil); p == nil || p.Code != fleet.CodeNotFound {
			t.Errorf("%s of a deleted node: %+v, want NOT_FOUND", m.FullName(), p)
		}
	}
	if after := r.count(`SELECT count(*) FROM events WHERE node_id = $1`, n.ID); after != written {
		t.Errorf("repeats wrote %d events", after-written)
	}
}

// Of many deletes at once one deletes; a node that changes pools during the call
// is a conflict.
func TestDeleteRaces(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Retired)
	var wg sync.WaitGroup
	var mu sync.Mutex
	answers := map[bool]int{}
	for range 20 {
		wg.Go(func() {
			var out fleet.DeletedOut
			if p := r.call("owner", "nodes/delete", on(n.ID), &out); p != nil {
				t.Errorf("%+v", *p)
			}
			mu.Lock()
			defer mu.Unlock()
			answers[out.Deleted]++
		})
	}
	wg.Wait()
	if diff := cmp.Diff(map[bool]int{true: 1, false: 19}, answers); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}

	moved := r.enrolled("127.0.0.10", fleet.Retired)
	pool := r.offeredPool(moved.ID)
	done := make(chan *problem, 1)
	err := r.store.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if err := store.LockPool(ctx, tx, pool, true); err != nil {
			return err
		}
		if err := store.LockNode(ctx, tx, moved.ID); err != nil {
			return err
		}
		go func() { done <- r.call("owner", "nodes/delete", on(moved.ID), nil) }()
		r.lockWaits(1)
		return store.SetNodePool(ctx, tx, moved.ID, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	if p := <-done; p == nil || p.Code != fleet.CodeConflict || p.Reason != store.ReasonPoolChanged {
		t.Errorf("a node that left its pool during the call: %+v, want CONFLICT", p)
	}
	if r.count(`SELECT count(*) FROM nodes WHERE id = $1 AND deleted_at IS NULL`, moved.ID) != 1 {
		t.Error("it was deleted all the same")
	}
}

// Every call of revokeIdentity raises the generation, says how many certificates
// it revoked and is told to the node's own tenant alone.
func TestRevokeIdentity(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	nodeID, join := r.joinedBy("key", "4c4c4544-0051-3910-8053-b4c04f4e3933")
	r.offeredPool(nodeID)
	var before fleet.NodeOut
	r.ok("owner", "nodes/get", on(nodeID), &before)
	r.refused("operator", "nodes/revokeIdentity", on(nodeID), fleet.CodeAccessDenied, "not-permitted")
	var first, second fleet.RevokedIdentityOut
	r.ok("owner", "nodes/revokeIdentity", on(nodeID, "version", before.Node.Version), &first)
	r.ok("owner", "nodes/revokeIdentity", on(nodeID, "reason", "stolen"), &second)
	if first.RevokedCertificates != 1 || second.RevokedCertificates != 0 {
		t.Errorf("%d and %d certificates revoked, want 1 and 0", first.RevokedCertificates, second.RevokedCertificates)
	}
	for i, out := range []fleet.RevokedIdentityOut{first, second} {
		step := int64(i + 1)
		if out.Node.IdentityGeneration != before.Node.IdentityGeneration+step || out.Node.Version != before.Node.Version+step {
			t.Errorf("call %d: generation %d, version %d; before %d, %d", step, out.Node.IdentityGeneration, out.Node.Version,
				before.Node.IdentityGeneration, before.Node.Version)
		}
	}
	if got := r.text(`SELECT revoke_reason FROM certificates WHERE node_id = $1`, nodeID); got != "identity revoked" {
		t.Errorf("revoked for %q", got)
	}
	if got := r.text(`SELECT string_agg((data->>'reason') || ' ' || (data->>'revokedCertificates') || ' ' || private, ', ' ORDER BY seq)
		FROM events WHERE node_id = $1 AND type = 'security.node.identity-revoked'`, nodeID); got != "identity revoked 1 true, stolen 0 true" {
		t.Errorf("events: %q", got)
	}
	shown := store.ShownCert{NodeID: nodeID, Generation: before.Node.IdentityGeneration, Serial: join.Serial, KeyHash: join.KeyHash}
	if _, err := r.store.Renew(t.Context(), shown, join.KeyHash, "bb", nil); fleet.CodeOf(err) != fleet.CodeUnauthenticated {
		t.Errorf("a certificate of the old generation renewed: %v", err)
	}
	ended, err := r.store.EndedSessions(t.Context(), []store.HeldSession{{NodeID: nodeID, Serial: join.Serial, Epoch: 1}})
	if err != nil || !slices.Equal(ended, []string{nodeID}) {
		t.Errorf("sessions to end: %v, %v", ended, err)
	}
	// The machine comes back only by joining again, as the same node.
	join.Serial = "cc"
	g, err := r.store.Join(t.Context(), join)
	if err != nil || g.NodeID != nodeID || g.Generation <= second.Node.IdentityGeneration {
		t.Errorf("joined again: %+v, %v; want %s after generation %d", g, err, nodeID, second.Node.IdentityGeneration)
	}
}
