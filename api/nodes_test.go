package api_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
)

// events lists the types of a node's events. Events become readable when every
// older transaction of the cluster has ended, other tests' among them: it reads
// until all that are written are there.
func (r *rig) events(nodeID string) []string {
	r.t.Helper()
	written := r.count(`SELECT count(*) FROM events WHERE node_id = $1`, nodeID)
	for {
		var page fleet.EventsPage
		r.ok("owner", "nodes/events", obj{"tenantId": "acme", "nodeId": nodeID}, &page)
		if len(page.Items) >= written {
			out := make([]string, len(page.Items))
			for i, e := range page.Items {
				out[i] = e.Type
			}
			return out
		}
		if r.t.Context().Err() != nil {
			r.t.Fatal("the events did not become readable")
		}
	}
}

// Cordoning a cordoned node returns it unchanged and publishes nothing; a
// stale version is a conflict even then.
func TestCordon(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	on := obj{"tenantId": "acme", "nodeId": n.ID, "reason": "fan"}
	before := len(r.events(n.ID))
	var a, b fleet.NodeOut
	r.ok("operator", "nodes/cordon", on, &a)
	if !a.Node.Cordoned || a.Node.CordonReason != "fan" || a.Node.Version != n.Version+1 {
		t.Errorf("cordoned %v, reason %q, version %d", a.Node.Cordoned, a.Node.CordonReason, a.Node.Version)
	}
	r.ok("operator", "nodes/cordon", on, &b)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("cordoning again changed it:\n%s", diff)
	}
	r.refused("operator", "nodes/cordon", obj{"tenantId": "acme", "nodeId": n.ID, "version": n.Version}, fleet.CodeConflict, "version")
	r.refused("viewer", "nodes/cordon", on, fleet.CodeAccessDenied, "not-permitted")
	var free fleet.NodeOut
	r.ok("operator", "nodes/uncordon", on, &free)
	r.ok("operator", "nodes/uncordon", on, nil)
	if diff := cmp.Diff([]string{"node.cordoned", "node.uncordoned"}, r.events(n.ID)[before:]); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if free.Node.Cordoned || free.Node.CordonReason != "" {
		t.Errorf("after uncordon: %v %q", free.Node.Cordoned, free.Node.CordonReason)
	}
}

// label has no unchanged rule, owns operator labels only, and names nothing
// twice.
func TestLabel(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	if _, err := r.store.Pool().Exec(t.Context(), `UPDATE nodes SET labels = '{"inventory/model": "m", "a": "1"}' WHERE id = $1`, n.ID); err != nil {
		t.Fatal(err)
	}
	in := func(m obj) obj { m["tenantId"], m["nodeId"] = "acme", n.ID; return m }
	var out fleet.NodeOut
	r.ok("operator", "nodes/label", in(obj{"set": obj{"b": "2"}, "remove": []string{"a", "inventory/model", "gone"}}), &out)
	if diff := cmp.Diff(map[string]string{"inventory/model": "m", "b": "2"}, out.Node.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	version := out.Node.Version
	r.ok("operator", "nodes/label", in(obj{"set": obj{"b": "2"}}), &out)
	if out.Node.Version != version+1 {
		t.Errorf("the same label again: version %d, want %d", out.Node.Version, version+1)
	}
	r.refused("operator", "nodes/label", in(obj{}), fleet.CodeInvalidInput, "")
	r.refused("operator", "nodes/label", in(obj{"set": obj{"x": "1"}, "remove": []string{"x"}}), fleet.CodeInvalidInput, "")
	r.refused("operator", "nodes/label", in(obj{"set": obj{"system/x": "1"}}), fleet.CodeInvalidInput, "")
	r.refused("operator", "nodes/label", in(obj{"set": obj{"inventory/x": "1"}}), fleet.CodeInvalidInput, "")
	r.refused("operator", "nodes/label", in(obj{"set": obj{"x": "1"}, "reason": "r"}), fleet.CodeInvalidInput, "")
}

// Only operator taints change, and a result that equals the present reasons
// returns the node unchanged.
func TestTaint(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	if _, err := r.store.Pool().Exec(t.Context(), `UPDATE nodes SET no_schedule_reasons = '{condition:HardwareHealthy,draining}' WHERE id = $1`, n.ID); err != nil {
		t.Fatal(err)
	}
	in := func(m obj) obj { m["tenantId"], m["nodeId"] = "acme", n.ID; return m }
	var out fleet.NodeOut
	r.ok("operator", "nodes/taint", in(obj{"add": []string{"slow"}, "remove": []string{"draining"}}), &out)
	if diff := cmp.Diff([]string{"condition:HardwareHealthy", "draining", "taint:slow"}, out.Node.NoScheduleReasons); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	version := out.Node.Version
	r.ok("operator", "nodes/taint", in(obj{"add": []string{"slow"}}), &out)
	if out.Node.Version != version {
		t.Errorf("an unchanged taint raised the version to %d", out.Node.Version)
	}
	r.refused("operator", "nodes/taint", in(obj{}), fleet.CodeInvalidInput, "")
	r.refused("operator", "nodes/taint", in(obj{"add": []string{"a"}, "remove": []string{"a"}}), fleet.CodeInvalidInput, "")
}
