package api_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/storetest"
)

// in is an input of a tenant.
func in(tenant string, more ...any) obj {
	o := obj{"tenantId": tenant}
	for i := 0; i+1 < len(more); i += 2 {
		o[more[i].(string)] = more[i+1]
	}
	return o
}

// deployed makes a node of acme in the pool that placement takes.
func (r *rig) deployed(pool string, gpus int) string {
	r.t.Helper()
	return storetest.Deployed(r.t, r.store, storetest.Machine{TenantID: "acme", SiteID: r.site, PoolID: pool, GPUs: gpus})
}

// poolOf reads a pool as a tenant's owner.
func (r *rig) poolOf(subject, tenant, pool string) fleet.Pool {
	r.t.Helper()
	var out fleet.PoolOut
	r.ok(subject, "pools/get", in(tenant, "poolId", pool), &out)
	return out.Pool
}

// offer offers a pool of acme to globex.
func (r *rig) offer(pool string, gpus int) {
	r.t.Helper()
	r.ok("owner", "pools/offer", in("acme", "poolId", pool, "toTenantId", "globex", "quota", obj{"gpus": gpus}), nil)
}

// Only the owner changes a pool: every other tenant is told that there is none,
// in the same words, also one that it is offered to.
func TestPoolsAreTheirOwners(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	node := r.deployed(pool, 2)
	calls := map[string]obj{
		"update": in("globex", "poolId", pool, "version", 1, "name", "mine"), "archive": in("globex", "poolId", pool, "version", 1),
		"offer":   in("globex", "poolId", pool, "toTenantId", "acme", "quota", obj{"gpus": 1}),
		"unoffer": in("globex", "poolId", pool, "toTenantId", "acme"),
		"addNode": in("globex", "poolId", pool, "nodeId", node), "removeNode": in("globex", "poolId", pool, "nodeId", node),
	}
	for name, input := range calls {
		before := r.refused("owner2", "pools/"+name, input, fleet.CodeNotFound, "")
		r.offer(pool, 1)
		after := r.refused("owner2", "pools/"+name, input, fleet.CodeNotFound, "")
		if before.Detail != after.Detail {
			t.Errorf("%s: %q before the offer, %q after", name, before.Detail, after.Detail)
		}
		r.ok("owner", "pools/unoffer", in("acme", "poolId", pool, "toTenantId", "globex"), nil)
	}
	r.refused("owner2", "pools/get", in("globex", "poolId", pool), fleet.CodeNotFound, "")
	r.offer(pool, 3)
	seen := r.poolOf("owner2", "globex", pool)
	if seen.Quota == nil || seen.Quota.GPUs != 3 || seen.Used == nil || *seen.Used != 0 || seen.Offers != nil {
		t.Errorf("an offered tenant sees quota %v, used %v, offers %v", seen.Quota, seen.Used, seen.Offers)
	}
	own := r.poolOf("owner", "acme", pool)
	if diff := cmp.Diff([]fleet.Offer{{TenantID: "globex", Quota: fleet.Quota{GPUs: 3}}}, own.Offers); diff != "" || own.Quota != nil || own.Used != nil {
		t.Errorf("the owner sees quota %v, used %v, offers (-want +got):\n%s", own.Quota, own.Used, diff)
	}
	var page fleet.PoolsPage
	r.ok("owner2", "pools/list", in("globex"), &page)
	if len(page.Items) != 1 || page.Items[0].ID != pool {
		t.Errorf("the offered tenant's list: %v", page.Items)
	}
	for filter, want := range map[string]int{"active": 1, "archived": 0} {
		r.ok("owner2", "pools/list", in("globex", "state", filter), &page)
		if len(page.Items) != want {
			t.Errorf("pools in state %s: %d, want %d", filter, len(page.Items), want)
		}
	}
	// A node that it sees through the offer is none that it can put into its own.
	var site fleet.SiteOut
	r.ok("owner2", "sites/create", in("globex", "name", "theirs"), &site)
	var theirs fleet.PoolOut
	r.ok("owner2", "pools/create", in("globex", "siteId", site.Site.ID, "name", "theirs", "gpuModel", "H100 SXM5"), &theirs)
	r.ok("owner2", "nodes/get", in("globex", "nodeId", node), nil)
	r.refused("owner2", "pools/addNode", in("globex", "poolId", theirs.Pool.ID, "nodeId", node), fleet.CodeNotFound, "")
	r.refused("operator", "pools/offer", in("acme", "poolId", pool, "toTenantId", "globex", "quota", obj{"gpus": 1}), fleet.CodeAccessDenied, "not-permitted")
	r.refused("owner", "pools/offer", in("acme", "poolId", pool, "toTenantId", "acme", "quota", obj{"gpus": 1}), fleet.CodeInvalidInput, "")
	r.refused("owner", "pools/offer", in("acme", "poolId", pool, "toTenantId", "nobody", "quota", obj{"gpus": 1}), fleet.CodeNotFound, "")
	r.refused("owner", "pools/offer", in("acme", "poolId", pool, "toTenantId", "globex", "quota", obj{}), fleet.CodeInvalidInput, "")
}

// An update needs the version that its caller saw, keeps what it does not name,
// and refuses GPUs that a node of the pool does not have.
func TestPoolUpdate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool, other := r.pool(r.site, "p"), r.pool(r.site, "q")
	node := r.deployed(pool, 2)
	update := func(version int64, more ...any) obj {
		return in("acme", append([]any{"poolId", pool, "version", version}, more...)...)
	}
	r.refused("owner", "pools/update", in("acme", "poolId", pool, "name", "n"), fleet.CodeInvalidInput, "")
	r.refused("owner", "pools/update", update(1), fleet.CodeInvalidInput, "")
	r.refused("owner", "pools/update", update(7, "name", "n"), fleet.CodeConflict, "version")
	r.refused("owner", "pools/update", update(1, "name", "q"), fleet.CodeConflict, "name-taken")
	p := r.refused("owner", "pools/update", update(1, "gpuModel", "NVIDIA A100-SXM4-80GB"), fleet.CodeInvalidState, "gpus-differ")
	for _, part := range []string{node, "H100 SXM5", "NVIDIA A100-SXM4-80GB"} {
		if !strings.Contains(p.Detail, part) {
			t.Errorf("the refusal does not name %s: %s", part, p.Detail)
		}
	}
	r.refused("owner", "pools/update", update(1, "gpusPerNode", 3), fleet.CodeInvalidState, "gpus-differ")
	var out fleet.PoolOut
	r.ok("owner", "pools/update", update(1, "policy", obj{"placement": "pack"}), nil)
	r.ok("owner", "pools/update", update(2, "policy", obj{"maxReservationHours": 4}, "gpuModel", "NVIDIA H100 80GB HBM3", "gpusPerNode", 0), &out)
	four := 4
	want := fleet.PoolPolicy{Placement: "pack", MaxReservationHours: &four}
	if diff := cmp.Diff(want, out.Pool.Policy); diff != "" || out.Pool.Version != 3 || out.Pool.GPUsPerNode != 0 {
		t.Errorf("version %d, GPUs a node %d, policy (-want +got):\n%s", out.Pool.Version, out.Pool.GPUsPerNode, diff)
	}
	r.ok("owner", "pools/update", update(3, "name", "p"), &out)
	if out.Pool.Version != 3 {
		t.Errorf("an update that changes nothing raised the version to %d", out.Pool.Version)
	}
	if got := r.poolOf("owner", "acme", other); got.Version != 1 {
		t.Errorf("the other pool is at version %d", got.Version)
	}
}

// A pool is archived when it is empty, and its refusal names what is in it.
func TestPoolArchive(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	node := r.deployed(pool, 2)
	r.refused("owner", "pools/archive", in("acme", "poolId", pool), fleet.CodeInvalidInput, "")
	p := r.refused("owner", "pools/archive", in("acme", "poolId", pool, "version", 1), fleet.CodeInvalidState, "pool-in-use")
	if !strings.Contains(p.Detail, node) {
		t.Errorf("the refusal does not name the node: %s", p.Detail)
	}
	r.ok("owner", "pools/removeNode", in("acme", "poolId", pool, "nodeId", node), nil)
	var out fleet.PoolOut
	r.ok("owner", "pools/archive", in("acme", "poolId", pool, "version", 1), &out)
	if out.Pool.State != "archived" || out.Pool.Version != 2 {
		t.Errorf("archived: %s, version %d", out.Pool.State, out.Pool.Version)
	}
	r.ok("owner", "pools/archive", in("acme", "poolId", pool, "version", 2), &out)
	if out.Pool.Version != 2 {
		t.Error("archiving an archived pool changed it")
	}
	r.refused("owner", "pools/update", in("acme", "poolId", pool, "version", 2, "name", "n"), fleet.CodeInvalidState, "pool-archived")
	r.refused("owner", "pools/offer", in("acme", "poolId", pool, "toTenantId", "globex", "quota", obj{"gpus": 1}), fleet.CodeInvalidState, "pool-archived")
	r.refused("owner", "pools/addNode", in("acme", "poolId", pool, "nodeId", node), fleet.CodeInvalidState, "pool-archived")
	r.pool(r.site, "p") // its name is free
}

// A pool's free GPUs are those of nodes that placement takes.
func TestPoolFree(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	for range 2 {
		r.deployed(pool, 2)
	}
	node := r.deployed(pool, 2)
	if got := r.poolOf("owner", "acme", pool).GPUs; got != (fleet.GPUCount{Total: 6, Free: 6}) {
		t.Errorf("all placeable: %+v", got)
	}
	for name, c := range map[string]struct{ set, unset string }{
		"cordoned":       {`UPDATE nodes SET cordoned = true WHERE id = $1`, `UPDATE nodes SET cordoned = false WHERE id = $1`},
		"a reason":       {`UPDATE nodes SET no_schedule_reasons = '{draining}' WHERE id = $1`, `UPDATE nodes SET no_schedule_reasons = '{}' WHERE id = $1`},
		"another state":  {`UPDATE nodes SET provision_state = 'ready' WHERE id = $1`, `UPDATE nodes SET provision_state = 'adopted' WHERE id = $1`},
		"not in session": {`UPDATE sessions SET disconnected_at = now() WHERE node_id = $1`, `UPDATE sessions SET disconnected_at = NULL WHERE node_id = $1`},
	} {
		r.exec(c.set, node)
		if got := r.poolOf("owner", "acme", pool).GPUs; got != (fleet.GPUCount{Total: 6, Free: 4}) {
			t.Errorf("%s: %+v, want 4 of 6 free", name, got)
		}
		r.exec(c.unset, node)
	}
	r.exec(`UPDATE devices SET present = false WHERE id = (SELECT min(id) FROM devices WHERE node_id = $1)`, node)
	if got := r.poolOf("owner", "acme", pool).GPUs; got != (fleet.GPUCount{Total: 5, Free: 5}) {
		t.Errorf("a device is gone: %+v", got)
	}
}

// tenantEvents are the events that a tenant's stream would give, all of them.
func (r *rig) tenantEvents(tenant string) []fleet.Event {
	r.t.Helper()
	written := r.count(`SELECT count(*) FROM events WHERE audience @> ARRAY[$1] AND (NOT private OR tenant_id = $1)`, tenant)
	for {
		list, err := store.TenantEvents(r.t.Context(), r.store.Pool(), store.StreamFilter{TenantID: tenant, Limit: 1000})
		if err != nil {
			r.t.Fatal(err)
		}
		if len(list) >= written {
			return list
		}
		time.Sleep(10 * time.Millisecond) // until all older transactions of the cluster have ended
	}
}

// What happens to a pool is told to those that it concerns: an offer to the
// owner and the tenant that it is made to, a change to all that see the pool.
func TestPoolEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := r.store.CreateTenant(t.Context(), "initech", "dev:owner3"); err != nil {
		t.Fatal(err)
	}
	pool := r.pool(r.site, "p")
	r.offer(pool, 2)
	r.ok("owner", "pools/offer", in("acme", "poolId", pool, "toTenantId", "initech", "quota", obj{"gpus": 1}, "reason", "trial"), nil)
	r.offer(pool, 2) // the same again: nothing happened
	r.ok("owner", "pools/update", in("acme", "poolId", pool, "version", 3, "name", "q"), nil)
	r.ok("owner", "pools/unoffer", in("acme", "poolId", pool, "toTenantId", "globex"), nil)
	r.ok("owner", "pools/unoffer", in("acme", "poolId", pool, "toTenantId", "globex"), nil)
	r.ok("owner", "pools/archive", in("acme", "poolId", pool, "version", 5), nil)
	types := func(tenant string) []string {
		var out []string
		for _, e := range r.tenantEvents(tenant) {
			if !strings.HasPrefix(e.Type, "pool.") {
				continue
			}
			out = append(out, e.Type)
			if want := map[bool]string{true: "dev:owner", false: "owner"}[tenant == "acme"]; e.Actor != want {
				t.Errorf("%s to %s has actor %s, want %s", e.Type, tenant, e.Actor, want)
			}
			if b, _ := json.Marshal(e.Data); tenant != "acme" && strings.Contains(string(b), "trial") {
				t.Errorf("%s tells %s the reason: %s", e.Type, tenant, b)
			}
		}
		return out
	}
	for tenant, want := range map[string][]string{
		"acme":    {"pool.created", "pool.offered", "pool.offered", "pool.updated", "pool.unoffered", "pool.archived"},
		"globex":  {"pool.offered", "pool.updated", "pool.unoffered"},
		"initech": {"pool.offered", "pool.updated", "pool.archived"},
	} {
		if diff := cmp.Diff(want, types(tenant)); diff != "" {
			t.Errorf("events of %s (-want +got):\n%s", tenant, diff)
		}
	}
}
