package main

import (
	"slices"
	"testing"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store/storetest"
)

// The worker ends an allocation when its time is over, places what waited for the
// room, and ends the drain of the node when the last one is released.
func capacityInTime(t *testing.T, r *rig) {
	at := r.on(t)
	var pool fleet.PoolOut
	at.ok("pools/create", obj{"siteId": r.site, "name": "capacity", "gpuModel": "H100 SXM5"}, &pool)
	node := storetest.Deployed(t, r.store, storetest.Machine{TenantID: "acme", SiteID: r.site, PoolID: pool.Pool.ID, GPUs: 1})
	// Nobody beats for its session.
	if _, err := r.store.Pool().Exec(t.Context(), `UPDATE sessions SET last_seen_at = now() + interval '1 day' WHERE node_id = $1`, node); err != nil {
		t.Fatal(err)
	}
	take := obj{"poolId": pool.Pool.ID, "gpus": 1, "holder": "job", "wait": true}
	var first, second fleet.AllocationOut
	at.ok("allocations/create", obj{"poolId": pool.Pool.ID, "gpus": 1, "holder": "job", "ttlSeconds": 1}, &first)
	at.ok("allocations/create", take, &second)
	if second.Allocation.State != fleet.AllocationQueued {
		t.Fatalf("with one GPU taken, the second is %s", second.Allocation.State)
	}
	state := func(id string) fleet.AllocationState {
		var out fleet.AllocationOut
		at.ok("allocations/get", obj{"allocationId": id}, &out)
		return out.Allocation.State
	}
	until(t, func() string {
		if a, b := state(first.Allocation.ID), state(second.Allocation.ID); a != fleet.AllocationExpired || b != fleet.AllocationActive {
			return "the first is " + string(a) + ", the second " + string(b)
		}
		return ""
	})
	at.ok("nodes/drain", obj{"nodeId": node}, nil)
	draining := func() bool {
		var out fleet.NodeOut
		at.ok("nodes/get", obj{"nodeId": node}, &out)
		return slices.Contains(out.Node.NoScheduleReasons, fleet.ReasonDraining)
	}
	if !draining() {
		t.Error("drained under a live allocation")
	}
	at.ok("allocations/release", obj{"allocationId": second.Allocation.ID}, nil)
	until(t, func() string {
		if draining() {
			return "the node is draining although nobody holds it"
		}
		return ""
	})
}
