package api_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// nodeSeen reads a node as a tenant sees it, as JSON members.
func (r *rig) nodeSeen(subject, tenant, node string) obj {
	r.t.Helper()
	var out struct {
		Node obj `json:"node"`
	}
	r.ok(subject, "nodes/get", in(tenant, "nodeId", node), &out)
	return out.Node
}

// A tenant that is offered a pool sees its nodes without what their owner says and
// does with them, and does nothing with them but what it was granted by name.
func TestOfferedTenantSeesNodes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	node := r.deployed(pool, 2)
	apart := r.deployed("", 2)
	r.ok("owner", "nodes/cordon", on(node, "reason", "fan is loud"), nil)
	r.ok("owner", "metal/hold", on(node, "reason", "do not touch"), nil)
	r.exec(`UPDATE nodes SET provision_state = 'failed', failed = '{"from": "releasing", "step": "erase", "cause": "disk X", "remedy": "swap it", "at": "2026-01-01T00:00:00Z"}' WHERE id = $1`, node)
	get := in("globex", "nodeId", node)
	r.refused("owner2", "nodes/get", get, fleet.CodeNotFound, "")
	r.offer(pool, 1)
	seen, own := r.nodeSeen("owner2", "globex", node), r.nodeSeen("owner", "acme", node)
	for _, member := range []string{"cordonReason", "hold"} {
		if _, there := own[member]; !there {
			t.Errorf("the owner does not see %s", member)
		}
		if _, there := seen[member]; there {
			t.Errorf("an offered tenant sees %s", member)
		}
	}
	if _, there := seen["operations"]; there {
		t.Error("an offered tenant sees operations")
	}
	failed, _ := seen["failed"].(map[string]any)
	if failed["from"] != "releasing" || failed["step"] != "erase" || failed["cause"] != nil || failed["remedy"] != nil {
		t.Errorf("an offered tenant sees failed as %v", failed)
	}
	if seen["tenantId"] != "acme" || seen["cordoned"] != true || seen["poolId"] != pool {
		t.Errorf("an offered tenant sees %v", seen)
	}
	var page fleet.NodesPage
	r.ok("owner2", "nodes/list", in("globex"), &page)
	if len(page.Items) != 1 || page.Items[0].ID != node || page.Items[0].CordonReason != "" || page.Items[0].Hold != nil {
		t.Errorf("an offered tenant lists %+v", page.Items)
	}
	r.refused("owner2", "nodes/get", in("globex", "nodeId", apart), fleet.CodeNotFound, "")

	// All else is denied, and the metal view stays the owner's.
	for method, input := range map[string]obj{
		"nodes/cordon": get, "nodes/uncordon": get, "nodes/drain": get, "nodes/label": in("globex", "nodeId", node, "set", obj{"a": "b"}),
		"nodes/taint": in("globex", "nodeId", node, "add", []string{"a"}), "nodes/adopt": get, "nodes/revokeIdentity": get, "nodes/delete": get,
		"metal/get": get, "metal/power": in("globex", "nodeId", node, "action", "on"), "metal/release": get, "metal/hold": in("globex", "nodeId", node, "reason", "r"),
	} {
		r.refused("owner2", method, input, fleet.CodeAccessDenied, "not-permitted")
	}
	// What the owner grants by name works, on the node and for that identity only.
	r.grant("globex", "shift2", fleet.RoleViewer)
	r.ok("owner", "access/grant", in("acme", "identity", "dev:shift2", "role", "operator", "on", obj{"nodeId": node}), nil)
	r.ok("shift2", "nodes/uncordon", get, nil)
	r.refused("owner2", "nodes/cordon", get, fleet.CodeAccessDenied, "not-permitted")
	r.refused("shift2", "metal/get", get, fleet.CodeAccessDenied, "not-permitted")
	r.refused("shift2", "nodes/delete", get, fleet.CodeAccessDenied, "not-permitted")

	// The offer taken back, there is nothing to see; nor is there for whom it is
	// granted by name.
	r.ok("owner", "pools/unoffer", in("acme", "poolId", pool, "toTenantId", "globex"), nil)
	for _, subject := range []string{"owner2", "shift2"} {
		r.refused(subject, "nodes/get", get, fleet.CodeNotFound, "")
	}
	if wrong, err := store.CheckProjection(t.Context(), r.store.Pool()); err != nil || len(wrong) > 0 {
		t.Errorf("the projection: %v, %v", wrong, err)
	}
}

// The events of a node are told to the tenants that saw it, to others than its own
// without who and why, and provision events not at all.
func TestOfferedTenantEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	node := r.deployed(pool, 2)
	r.ok("owner", "nodes/cordon", on(node, "reason", "before the offer"), nil)
	r.offer(pool, 2)
	r.ok("owner", "nodes/uncordon", on(node, "reason", "sesame"), nil)
	r.ok("owner", "metal/hold", on(node, "reason", "sesame"), nil)
	r.ok("owner", "metal/unhold", on(node), nil)
	a := r.mustTake("owner2", take("globex", pool, 1))
	mine := r.mustTake("owner", take("acme", pool, 1, "holder", "secret project"))
	r.ok("owner", "allocations/release", in("acme", "allocationId", a.ID, "reason", "sesame"), nil)
	written := r.count(`SELECT count(*) FROM events WHERE node_id = $1 AND NOT private AND audience @> '{globex}'`, node)
	var page fleet.EventsPage
	for len(page.Items) < written {
		page = fleet.EventsPage{}
		r.ok("owner2", "nodes/events", in("globex", "nodeId", node), &page)
	}
	var got []string
	for _, e := range page.Items {
		got = append(got, e.Type+" "+e.Actor)
		if b, _ := json.Marshal(e); strings.Contains(string(b), "sesame") || strings.Contains(string(b), mine.ID) {
			t.Errorf("an offered tenant is told %s", b)
		}
	}
	want := []string{"node.uncordoned owner", "allocation.started dev:owner2", "allocation.released owner"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events of an offered tenant (-want +got):\n%s", diff)
	}
	types := r.events(node)
	for _, want := range []string{"node.cordoned", "allocation.started", "allocation.released"} {
		if !slices.Contains(types, want) {
			t.Errorf("the owner is not told %s: %v", want, types)
		}
	}
}

// Each step of an allocation's life is an event to its tenant and to the pool's
// owner, and to no third tenant that the pool is offered to.
func TestAllocationEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := r.store.CreateTenant(t.Context(), "initech", "dev:owner3"); err != nil {
		t.Fatal(err)
	}
	pool := r.pool(r.site, "p")
	r.offer(pool, 2)
	r.ok("owner", "pools/offer", in("acme", "poolId", pool, "toTenantId", "initech", "quota", obj{"gpus": 1}), nil)
	a, b := r.waits("owner2", take("globex", pool, 1)), r.waits("owner2", take("globex", pool, 1))
	r.release("owner2", "globex", b.ID)
	r.deployed(pool, 1)
	if _, err := r.store.PlaceAllQueued(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.exec(`UPDATE allocations SET expires_at = now() WHERE id = $1`, a.ID)
	if _, err := r.store.ExpireAllocations(t.Context()); err != nil {
		t.Fatal(err)
	}
	told := func(tenant string) (out []string) {
		for _, e := range r.tenantEvents(tenant) {
			if strings.HasPrefix(e.Type, "allocation.") {
				out = append(out, e.Type+" "+e.Actor)
			}
		}
		return out
	}
	want := []string{"allocation.queued dev:owner2", "allocation.queued dev:owner2", "allocation.cancelled dev:owner2", "allocation.started dev:owner2", "allocation.expired system"}
	for tenant, want := range map[string][]string{"acme": want, "globex": want, "initech": nil} {
		if diff := cmp.Diff(want, told(tenant)); diff != "" {
			t.Errorf("told to %s (-want +got):\n%s", tenant, diff)
		}
	}
}

// A node with a live allocation keeps its power, its system and its pool; a forced
// power change names the allocations that it hits.
func TestVerbsUnderAllocation(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	n := r.enrolled("127.0.0.9", fleet.Deployed)
	r.exec(`UPDATE nodes SET pool_id = $2 WHERE id = $1`, n.ID, pool)
	r.exec(`INSERT INTO devices (id, node_id, model, serial) VALUES ('dev_a', $1, 'H100 SXM5', 'a')`, n.ID)
	r.exec(`INSERT INTO sessions (node_id, epoch, gateway, connected_at, last_seen_at) VALUES ($1, 1, 'gw', now(), now())`, n.ID)
	a := r.mustTake("owner", take("acme", pool, 1))
	if a.NodeID != n.ID {
		t.Fatalf("placed on %s", a.NodeID)
	}
	other := r.pool(r.site, "q")
	key := "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHVCZ7yyqBNMpDkJ5T4kIDxrPHcL8cTnwBAjFYxGRgHw a"
	for method, input := range map[string]obj{
		"metal/power": on(n.ID, "action", "off"), "metal/rescue": on(n.ID, "sshKeys", []string{key}), "metal/release": on(n.ID),
		"pools/removeNode": on(n.ID, "poolId", pool), "metal/update": on(n.ID, "poolId", other),
	} {
		p := r.refused("owner", method, input, fleet.CodeInvalidState, "allocations-live")
		if !strings.Contains(p.Detail, "1 live allocation") {
			t.Errorf("%s: %s", method, p.Detail)
		}
	}
	r.exec(`UPDATE nodes SET provision_state = 'failed', failed = '{"from": "rescue", "step": "s", "at": "2026-01-01T00:00:00Z"}' WHERE id = $1`, n.ID)
	r.refused("owner", "metal/retire", on(n.ID), fleet.CodeInvalidState, "allocations-live")
	r.exec(`UPDATE nodes SET provision_state = 'adopted', failed = NULL, cordoned = true WHERE id = $1`, n.ID)
	r.refused("owner", "nodes/delete", on(n.ID), fleet.CodeInvalidState, "allocations-live")
	r.exec(`UPDATE nodes SET provision_state = 'deployed', cordoned = false WHERE id = $1`, n.ID)
	r.ok("owner", "metal/power", on(n.ID, "action", "cycle", "force", true, "reason", "hung"), nil)
	if got := r.text(`SELECT data->>'allocations' FROM events WHERE node_id = $1 AND data->>'verb' = 'power'`, n.ID); got != `["`+a.ID+`"]` {
		t.Errorf("the event of the forced power change lists %s, want %s", got, a.ID)
	}
	r.exec(`UPDATE operations SET state = 'succeeded', ended_at = now() WHERE node_id = $1`, n.ID)
	r.release("owner", "acme", a.ID)
	r.ok("owner", "metal/release", on(n.ID), nil)
}
