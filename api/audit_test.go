package api_test

import (
	"slices"
	"testing"

	"github.com/bettercompute/compute/fleet"
)

// Each audit row says what was acted on, also of calls that were refused; that
// of an enroll names the node that it made.
func TestAuditNamesTheResource(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("https://127.0.0.9", fleet.Ready)
	absent := "node_" + "00000000000000000000000000"
	r.ok("owner", "nodes/cordon", obj{"tenantId": "acme", "nodeId": n.ID}, nil)
	r.refused("viewer", "nodes/cordon", obj{"tenantId": "acme", "nodeId": n.ID}, fleet.CodeAccessDenied, "not-permitted")
	r.refused("owner", "nodes/get", obj{"tenantId": "acme", "nodeId": absent}, fleet.CodeNotFound, "")
	r.refused("owner2", "nodes/list", obj{"tenantId": "acme"}, fleet.CodeAccessDenied, "no-role")
	for _, c := range []struct{ method, outcome, node, resource string }{
		{"metal/enroll", "OK", n.ID, "compute-tenant/acme"},
		{"sites/create", "OK", "", "compute-tenant/acme"},
		{"nodes/cordon", "OK", n.ID, "compute-node/" + n.ID},
		{"nodes/cordon", "ACCESS_DENIED", n.ID, "compute-node/" + n.ID},
		{"nodes/get", "NOT_FOUND", absent, "compute-node/" + absent},
		{"nodes/list", "ACCESS_DENIED", "", "compute-tenant/acme"},
	} {
		got := r.text(`SELECT coalesce(node_id, '') || ' ' || coalesce(resource, '') FROM audit WHERE method = $1 AND outcome = $2`, c.method, c.outcome)
		if got != c.node+" "+c.resource {
			t.Errorf("audit of %s %s names %q, want %q", c.method, c.outcome, got, c.node+" "+c.resource)
		}
	}
}

// A dry run says how long a step takes on this hardware model, once five runs
// of it are known.
func TestPlanExpects(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("https://127.0.0.9", fleet.Ready)
	r.exec(`UPDATE bmcs SET identity = '{"model": "X1"}'`)
	steps := func() []fleet.PlanStep {
		t.Helper()
		var out fleet.MetalOperationOut
		r.ok("owner", "metal/commission", obj{"tenantId": "acme", "nodeId": n.ID, "dryRun": true}, &out)
		return out.Plan.Steps
	}
	name := steps()[0].Name
	samples := func(model string, count int) {
		r.exec(`INSERT INTO step_samples (verb, step, hardware_model, seconds) SELECT 'commission', $1, $2, 39 + s FROM generate_series(1, $3) s`, name, model, count)
	}
	samples("X2", 9)
	samples("X1", 4)
	if slices.ContainsFunc(steps(), func(s fleet.PlanStep) bool { return s.ExpectedSeconds != 0 }) {
		t.Error("a time is expected by four samples, or by another model's")
	}
	samples("X1", 1)
	got := steps()
	if got[0].ExpectedSeconds != 41 || slices.ContainsFunc(got[1:], func(s fleet.PlanStep) bool { return s.ExpectedSeconds != 0 }) {
		t.Errorf("steps = %+v, want the median of five for the first and nothing for the others", got)
	}
}
