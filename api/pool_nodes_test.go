package api_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
)

// A pool takes the nodes that fit it, and each refusal says what does not.
func TestPoolTakesNodes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var site fleet.SiteOut
	r.ok("owner", "sites/create", in("acme", "name", "elsewhere"), &site)
	pool := r.pool(r.site, "p")
	var far, other fleet.PoolOut
	r.ok("owner", "pools/create", in("acme", "siteId", site.Site.ID, "name", "far", "gpuModel", "H100 SXM5"), &far)
	r.ok("owner", "pools/create", in("acme", "siteId", r.site, "name", "other", "gpuModel", "A100 SXM4 40GB"), &other)
	node := r.deployed(pool, 2)
	on := func(pool string) obj { return in("acme", "poolId", pool, "nodeId", node) }
	r.refused("owner", "pools/addNode", on(other.Pool.ID), fleet.CodeInvalidState, "in-a-pool")
	r.refused("owner", "pools/removeNode", on(other.Pool.ID), fleet.CodeInvalidState, "not-in-pool")
	r.ok("owner", "pools/removeNode", on(pool), nil)
	p := r.refused("owner", "pools/addNode", on(far.Pool.ID), fleet.CodeInvalidState, "other-site")
	if !strings.Contains(p.Detail, r.site) || !strings.Contains(p.Detail, site.Site.ID) {
		t.Errorf("the refusal names not both sites: %s", p.Detail)
	}
	if p := r.refused("owner", "pools/addNode", on(other.Pool.ID), fleet.CodeInvalidState, "gpus-differ"); !strings.Contains(p.Detail, "A100 SXM4 40GB") {
		t.Errorf("the refusal does not say what is wanted: %s", p.Detail)
	}
	r.exec(`UPDATE nodes SET provision_state = 'retired' WHERE id = $1`, node)
	r.refused("owner", "pools/addNode", on(pool), fleet.CodeInvalidState, "retired")
	r.exec(`UPDATE nodes SET provision_state = 'deployed' WHERE id = $1`, node)
	r.ok("owner", "pools/addNode", on(pool), nil)
}

// A node that comes into an offered pool or leaves it is told to the tenant that
// begins or ceases to see it, and to no other.
func TestPoolNodeEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := r.store.CreateTenant(t.Context(), "initech", "dev:owner3"); err != nil {
		t.Fatal(err)
	}
	pool := r.pool(r.site, "p")
	node := r.deployed(pool, 2)
	r.ok("owner", "pools/removeNode", in("acme", "poolId", pool, "nodeId", node), nil)
	r.offer(pool, 1)
	r.ok("owner", "pools/addNode", in("acme", "poolId", pool, "nodeId", node), nil)
	r.ok("owner", "pools/removeNode", in("acme", "poolId", pool, "nodeId", node), nil)
	for tenant, want := range map[string][]string{
		"acme":    {"node.pool.removed", "node.pool.added", "node.pool.removed"},
		"globex":  {"node.pool.added", "node.pool.removed"},
		"initech": nil,
	} {
		var got []string
		for _, e := range r.tenantEvents(tenant) {
			if strings.HasPrefix(e.Type, "node.pool.") {
				got = append(got, e.Type)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events of %s (-want +got):\n%s", tenant, diff)
		}
	}
}
