package api_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store/storetest"
)

// take is the input of allocations/create of a tenant for a holder.
func take(tenant, pool string, gpus int, more ...any) obj {
	o := in(tenant, append([]any{"poolId", pool, "holder", "job"}, more...)...)
	if gpus > 0 {
		o["gpus"] = gpus
	} else {
		o["wholeNode"] = true
	}
	return o
}

// mustTake is an allocations/create that must succeed.
func (r *rig) mustTake(subject string, input obj, headers ...string) fleet.Allocation {
	r.t.Helper()
	var out fleet.AllocationOut
	if p := r.call(subject, "allocations/create", input, &out, headers...); p != nil {
		r.t.Fatalf("allocations/create: %+v", *p)
	}
	return out.Allocation
}

// allocation reads an allocation.
func (r *rig) allocation(subject, tenant, id string) fleet.Allocation {
	r.t.Helper()
	var out fleet.AllocationOut
	r.ok(subject, "allocations/get", in(tenant, "allocationId", id), &out)
	return out.Allocation
}

// release is an allocations/release that must succeed.
func (r *rig) release(subject, tenant, id string) fleet.Allocation {
	r.t.Helper()
	var out fleet.AllocationOut
	r.ok(subject, "allocations/release", in(tenant, "allocationId", id), &out)
	return out.Allocation
}

// sound checks what must hold of all that is booked, whatever happened before.
func (r *rig) sound() {
	r.t.Helper()
	storetest.CapacitySound(r.t, r.store)
}

// An allocation has devices of one node to itself until it is released, and who
// releases it again finds it ended.
func TestAllocate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	node := r.deployed(pool, 4)
	a := r.mustTake("operator", take("acme", pool, 3))
	if a.State != fleet.AllocationActive || a.NodeID != node || len(a.Devices) != 3 || a.GPUs != 3 || a.Holder != "job" || a.ExpiresAt != nil || a.EndedAt != nil {
		t.Errorf("allocated %+v", a)
	}
	if d := a.Devices[0]; d.Model != "H100 SXM5" || d.Serial == "" || d.ID == "" {
		t.Errorf("a device is %+v", d)
	}
	b := r.mustTake("operator", take("acme", pool, 1, "ttlSeconds", 3600))
	if ttl := b.ExpiresAt.Sub(b.CreatedAt.Time); ttl != time.Hour {
		t.Errorf("a TTL of an hour expires after %s", ttl)
	}
	for _, d := range a.Devices {
		if d.ID == b.Devices[0].ID {
			t.Errorf("device %s is booked twice", d.ID)
		}
	}
	if diff := cmp.Diff(a, r.allocation("viewer", "acme", a.ID)); diff != "" {
		t.Errorf("get differs from create:\n%s", diff)
	}
	if got := r.poolOf("viewer", "acme", pool).GPUs; got != (fleet.GPUCount{Total: 4}) {
		t.Errorf("the full pool has %+v", got)
	}
	r.refused("viewer", "allocations/release", in("acme", "allocationId", a.ID), fleet.CodeAccessDenied, "not-permitted")
	r.refused("viewer", "allocations/create", take("acme", pool, 1), fleet.CodeAccessDenied, "not-permitted")
	done := r.release("operator", "acme", a.ID)
	if done.State != fleet.AllocationReleased || done.EndedAt == nil || len(done.Devices) != 3 {
		t.Errorf("released: %+v", done)
	}
	if diff := cmp.Diff(done, r.release("operator", "acme", a.ID)); diff != "" {
		t.Errorf("releasing again changed it:\n%s", diff)
	}
	if got := r.poolOf("viewer", "acme", pool).GPUs; got != (fleet.GPUCount{Total: 4, Free: 3}) {
		t.Errorf("after the release the pool has %+v", got)
	}
	if n := r.count(`SELECT count(*) FROM reconcile_wanted WHERE node_id = $1`, node); n != 1 {
		t.Error("a release asked for no reconciler")
	}
	var page fleet.AllocationsPage
	for filter, want := range map[string]int{"active": 1, "released": 1, "queued": 0} {
		r.ok("viewer", "allocations/list", in("acme", "state", filter, "poolId", pool, "nodeId", node), &page)
		if len(page.Items) != want {
			t.Errorf("%d allocations in state %s, want %d", len(page.Items), filter, want)
		}
	}
	r.ok("viewer", "allocations/list", in("acme", "limit", 1), &page)
	if len(page.Items) != 1 || page.NextCursor == "" {
		t.Fatalf("the first page: %d items, cursor %q", len(page.Items), page.NextCursor)
	}
	next := in("acme", "limit", 1, "cursor", page.NextCursor)
	page = fleet.AllocationsPage{}
	r.ok("viewer", "allocations/list", next, &page)
	if len(page.Items) != 1 || page.Items[0].ID != b.ID || page.NextCursor != "" {
		t.Errorf("the second page: %+v", page)
	}
	r.sound()
}

// The input is judged before anything is looked up.
func TestAllocateInput(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	for name, more := range map[string][]any{
		"both": {"gpus", 1, "wholeNode", true}, "neither": {}, "none": {"gpus", 0}, "a timeout without wait": {"gpus", 1, "queueTimeoutSeconds", 5},
		"a label key": {"gpus", 1, "nodeSelector", obj{"/": "x"}}, "no time": {"gpus", 1, "ttlSeconds", 0},
	} {
		if p := r.refused("owner", "allocations/create", in("acme", append(more, "poolId", pool, "holder", "job")...), fleet.CodeInvalidInput, ""); len(p.Fields) == 0 {
			t.Errorf("%s: no field is named", name)
		}
	}
	r.refused("owner", "allocations/create", in("acme", "poolId", pool, "gpus", 1), fleet.CodeInvalidInput, "")
	r.refused("owner", "allocations/create", take("acme", "nowhere", 1), fleet.CodeNotFound, "")
	r.refused("owner2", "allocations/create", take("globex", pool, 1), fleet.CodeNotFound, "")
	r.refused("owner", "allocations/get", in("acme", "allocationId", "alloc_01j00000000000000000000000"), fleet.CodeNotFound, "")
	r.refused("owner", "allocations/create", take("acme", pool, 1, "reservationId", "resv_01j00000000000000000000000"), fleet.CodeNotFound, "")
}

// Placement takes nodes that run somebody's system, are connected, and that
// nothing keeps work off; a full pool says what is short.
func TestPlacementTakes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	node := r.deployed(pool, 2)
	for name, c := range map[string]struct{ set, unset, says string }{
		"cordoned":       {`UPDATE nodes SET cordoned = true WHERE id = $1`, `UPDATE nodes SET cordoned = false WHERE id = $1`, "1 are cordoned"},
		"a reason":       {`UPDATE nodes SET no_schedule_reasons = '{taint:x}' WHERE id = $1`, `UPDATE nodes SET no_schedule_reasons = '{}' WHERE id = $1`, "1 have noScheduleReasons"},
		"ready":          {`UPDATE nodes SET provision_state = 'ready' WHERE id = $1`, `UPDATE nodes SET provision_state = 'adopted' WHERE id = $1`, "neither deployed nor adopted"},
		"not in session": {`UPDATE sessions SET disconnected_at = now() WHERE node_id = $1`, `UPDATE sessions SET disconnected_at = NULL WHERE node_id = $1`, "1 are not in session"},
		"never was":      {`UPDATE sessions SET node_id = (SELECT id FROM nodes WHERE id <> $1) WHERE node_id = $1`, `UPDATE sessions SET node_id = $1`, "1 are not in session"},
		"a device gone":  {`UPDATE devices SET present = false WHERE node_id = $1`, `UPDATE devices SET present = true WHERE node_id = $1`, "at most 0 on one node"},
	} {
		if name == "never was" {
			r.exec(`INSERT INTO nodes (id, tenant_id, site_id, provision_state) VALUES ('node_else', 'acme', $1, 'ready')`, r.site)
		}
		r.exec(c.set, node)
		p := r.refused("owner", "allocations/create", take("acme", pool, 1), fleet.CodeUnavailable, "no-capacity")
		if !strings.Contains(p.Detail, c.says) {
			t.Errorf("%s is told so: %s", name, p.Detail)
		}
		r.exec(c.unset, node)
		a := r.mustTake("owner", take("acme", pool, 2))
		r.release("owner", "acme", a.ID)
		if name == "never was" {
			r.exec(`DELETE FROM nodes WHERE id = 'node_else'`)
		}
	}
	a := r.mustTake("owner", take("acme", pool, 1))
	for _, input := range []obj{take("acme", pool, 2), take("acme", pool, 0), take("acme", pool, 1, "nodeSelector", obj{"rack": "b"})} {
		r.refused("owner", "allocations/create", input, fleet.CodeUnavailable, "no-capacity")
	}
	r.exec(`UPDATE nodes SET labels = '{"rack": "b", "row": "1"}' WHERE id = $1`, node)
	r.mustTake("owner", take("acme", pool, 1, "nodeSelector", obj{"rack": "b"}))
	r.release("owner", "acme", a.ID)
	if n := r.count(`SELECT count(*) FROM allocations WHERE state = 'queued'`); n != 0 {
		t.Errorf("%d calls without wait were queued", n)
	}
	r.sound()
}

// A whole node is all GPUs of one that is free as a whole.
func TestWholeNode(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	small, large := r.deployed(pool, 2), r.deployed(pool, 4)
	one := r.mustTake("owner", take("acme", pool, 1, "nodeSelector", obj{}))
	if one.NodeID != large {
		t.Fatalf("spread took %s, want the emptiest %s", one.NodeID, large)
	}
	a := r.mustTake("owner", take("acme", pool, 0))
	if a.NodeID != small || len(a.Devices) != 2 || a.GPUs != 2 {
		t.Errorf("a whole node: %+v", a)
	}
	r.refused("owner", "allocations/create", take("acme", pool, 0), fleet.CodeUnavailable, "no-capacity")
	r.release("owner", "acme", one.ID)
	if a := r.mustTake("owner", take("acme", pool, 0)); len(a.Devices) != 4 {
		t.Errorf("a whole node of four: %+v", a)
	}
	r.sound()
}

// spread takes the emptiest node, pack the fullest that fits.
func TestPlacementPolicy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	for range 2 {
		r.deployed(pool, 4)
	}
	a, b := r.mustTake("owner", take("acme", pool, 1)), r.mustTake("owner", take("acme", pool, 1))
	if a.NodeID == b.NodeID {
		t.Error("spread put two on one node while another was empty")
	}
	r.release("owner", "acme", b.ID)
	r.ok("owner", "pools/update", in("acme", "poolId", pool, "version", 1, "policy", obj{"placement": "pack"}), nil)
	c := r.mustTake("owner", take("acme", pool, 3))
	if c.NodeID != a.NodeID {
		t.Error("pack began a node while another had just enough")
	}
	if d := r.mustTake("owner", take("acme", pool, 1)); d.NodeID == a.NodeID {
		t.Error("five on a node of four")
	}
	r.sound()
}

// A tenant that is offered a pool allocates within its quota; others see nothing
// of it but the pool's owner, who may end it.
func TestAllocateOffered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.grant("globex", "viewer2", fleet.RoleViewer)
	if _, err := r.store.CreateTenant(t.Context(), "initech", "dev:owner3"); err != nil {
		t.Fatal(err)
	}
	pool := r.pool(r.site, "p")
	node := r.deployed(pool, 4)
	r.offer(pool, 3)
	r.ok("owner", "pools/offer", in("acme", "poolId", pool, "toTenantId", "initech", "quota", obj{"gpus": 1}), nil)
	a := r.mustTake("owner2", take("globex", pool, 2, "holder", "train-7"))
	p := r.refused("owner2", "allocations/create", take("globex", pool, 2), fleet.CodeInvalidState, "quota-exceeded")
	for _, part := range []string{"quota of 3", "2 are held"} {
		if !strings.Contains(p.Detail, part) {
			t.Errorf("the refusal does not say %q: %s", part, p.Detail)
		}
	}
	r.refused("owner2", "allocations/create", take("globex", pool, 2, "wait", true), fleet.CodeInvalidState, "quota-exceeded")
	r.refused("owner2", "allocations/create", take("globex", pool, 0), fleet.CodeUnavailable, "no-capacity")
	r.refused("viewer2", "allocations/create", take("globex", pool, 1), fleet.CodeAccessDenied, "not-permitted")
	if got := r.poolOf("viewer2", "globex", pool); *got.Used != 2 || got.Quota.GPUs != 3 {
		t.Errorf("used %d of %d, want 2 of 3", *got.Used, got.Quota.GPUs)
	}
	r.refused("owner3", "allocations/get", in("initech", "allocationId", a.ID), fleet.CodeNotFound, "")
	r.refused("owner3", "allocations/release", in("initech", "allocationId", a.ID), fleet.CodeNotFound, "")
	if got := r.allocation("viewer", "acme", a.ID); got.Holder != "train-7" || got.TenantID != "globex" {
		t.Errorf("the pool's owner sees %+v", got)
	}
	for subject, want := range map[string][2]any{"owner2": {"globex", 1}, "owner": {"acme", 1}, "owner3": {"initech", 0}} {
		var page fleet.AllocationsPage
		r.ok(subject, "allocations/list", in(want[0].(string)), &page)
		if len(page.Items) != want[1] {
			t.Errorf("%s lists %d allocations, want %d", subject, len(page.Items), want[1])
		}
	}
	// The owner cannot cut the quota below what is held, unless by force, and not
	// send the tenant away.
	p = r.refused("owner", "pools/offer", in("acme", "poolId", pool, "toTenantId", "globex", "quota", obj{"gpus": 1}), fleet.CodeInvalidState, "quota-below-use")
	if !strings.Contains(p.Detail, "2 GPUs") {
		t.Errorf("the refusal does not name the use: %s", p.Detail)
	}
	p = r.refused("owner", "pools/unoffer", in("acme", "poolId", pool, "toTenantId", "globex"), fleet.CodeInvalidState, "tenant-holds")
	if !strings.Contains(p.Detail, a.ID) {
		t.Errorf("the refusal does not name the allocation: %s", p.Detail)
	}
	r.ok("owner", "pools/offer", in("acme", "poolId", pool, "toTenantId", "globex", "quota", obj{"gpus": 1}, "force", true), nil)
	r.refused("owner2", "allocations/create", take("globex", pool, 1), fleet.CodeInvalidState, "quota-exceeded")
	if got := r.allocation("owner2", "globex", a.ID); got.State != fleet.AllocationActive {
		t.Errorf("a forced cut ended an allocation: %s", got.State)
	}
	r.release("owner", "acme", a.ID)
	b := r.mustTake("owner2", take("globex", pool, 1))
	r.refused("owner2", "allocations/create", take("globex", pool, 1), fleet.CodeInvalidState, "quota-exceeded")
	r.release("owner2", "globex", b.ID)
	r.ok("owner", "pools/unoffer", in("acme", "poolId", pool, "toTenantId", "globex"), nil)
	r.refused("owner2", "allocations/create", take("globex", pool, 1), fleet.CodeNotFound, "")
	if got := r.allocation("owner2", "globex", a.ID); got.NodeID != node || len(got.Devices) != 2 {
		t.Errorf("past allocations stay readable: %+v", got)
	}
	r.sound()
}

// A retried call finds its own allocation, and another call with its key is
// refused.
func TestAllocateRetried(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	r.deployed(pool, 2)
	key := []string{"Idempotency-Key", "one"}
	a, b := r.mustTake("owner", take("acme", pool, 1), key...), r.mustTake("owner", take("acme", pool, 1), key...)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("the retry differs:\n%s", diff)
	}
	if p := r.call("owner", "allocations/create", take("acme", pool, 2), nil, key...); p == nil || p.Reason != "key-reused" {
		t.Errorf("another call with the key: %+v", p)
	}
	r.mustTake("owner", take("acme", pool, 1))
	// A refusal is not kept: the retry succeeds once there is room.
	key = []string{"Idempotency-Key", "two"}
	if p := r.call("owner", "allocations/create", take("acme", pool, 1), nil, key...); p == nil || p.Reason != "no-capacity" {
		t.Fatalf("a full pool: %+v", p)
	}
	r.release("owner", "acme", a.ID)
	r.mustTake("owner", take("acme", pool, 1), key...)
	r.sound()
}
