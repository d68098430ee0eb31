package api_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// allocate puts a live allocation on a node, as placement does.
func (r *rig) allocate(nodeID, id, holder string) {
	r.t.Helper()
	r.exec(`INSERT INTO pools (id, tenant_id, site_id, name, gpu_model) VALUES ('pool_of_' || $1, 'acme', $2, $1, 'H100') ON CONFLICT DO NOTHING`, nodeID, r.site)
	r.exec(`INSERT INTO allocations (id, tenant_id, pool_id, node_id, holder, gpus, state, expires_at)
		VALUES ($1, 'acme', 'pool_of_' || $2, $2, $3, 1, 'active', '2030-01-02 03:04:05Z')`, id, nodeID, holder)
}

// operation reads an operation.
func (r *rig) operation(id string) fleet.Operation {
	r.t.Helper()
	var out fleet.OperationOut
	r.ok("owner", "operations/get", obj{"tenantId": "acme", "operationId": id}, &out)
	return out.Operation
}

// began takes the start of an operation as a dispatcher does, and begins its
// workflow's work.
func (r *rig) began(operationID string) {
	r.t.Helper()
	r.exec(`DELETE FROM dispatch WHERE operation_id = $1 AND kind = 'start'`, operationID)
	if _, err := r.store.BeginOperation(r.t.Context(), operationID, "run"); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.store.StartStep(r.t.Context(), operationID, fleet.StepAwaitFree, 0); err != nil {
		r.t.Fatal(err)
	}
}

// A drain cordons, adds the reason draining and publishes node.draining alone;
// it names who holds the node and until when; once nobody does, the reason goes
// with node.drained and the node stays cordoned.
func TestDrain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Deployed)
	r.allocate(n.ID, "alloc_1", "dev:ann")
	on := obj{"tenantId": "acme", "nodeId": n.ID, "reason": "fan"}
	before := len(r.events(n.ID))
	r.refused("viewer", "nodes/drain", on, fleet.CodeAccessDenied, "not-permitted")
	r.refused("operator", "nodes/drain", obj{"tenantId": "acme", "nodeId": n.ID, "version": n.Version + 1}, fleet.CodeConflict, "version")
	var a, b fleet.NodeOut
	r.ok("operator", "nodes/drain", on, &a)
	if !a.Node.Cordoned || a.Node.CordonReason != "fan" || !slices.Equal(a.Node.NoScheduleReasons, []string{"draining"}) || a.Node.Version != n.Version+1 {
		t.Errorf("draining: %+v", a.Node)
	}
	r.ok("operator", "nodes/drain", on, &b)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("draining again changed it:\n%s", diff)
	}
	drain := a.Node.Operations.Drain
	r.began(drain)
	w, err := r.store.FinishDrain(t.Context(), drain)
	if err != nil || w == nil {
		t.Fatalf("a held node: %v, %v", w, err)
	}
	op := r.operation(drain)
	if op.State != fleet.OpWaiting || op.Verb != fleet.VerbDrain || op.WaitingFor == nil || len(op.Steps) != 1 {
		t.Fatalf("operation %+v", op)
	}
	for _, want := range []string{"alloc_1", "dev:ann", "2030-01-02T03:04:05.000Z"} {
		if !strings.Contains(op.WaitingFor.What, want) {
			t.Errorf("waits for %q, without %s", op.WaitingFor.What, want)
		}
	}
	if op.WaitingFor.Deadline == nil || op.WaitingFor.Deadline.Year() != 2030 {
		t.Errorf("deadline %v, want the allocation's end", op.WaitingFor.Deadline)
	}
	r.exec(`UPDATE allocations SET state = 'released', ended_at = now() WHERE id = 'alloc_1'`)
	for range 2 { // the answer of the first can be lost
		if w, err := r.store.FinishDrain(t.Context(), drain); err != nil || w != nil {
			t.Fatalf("a free node: %v, %v", w, err)
		}
	}
	var after fleet.NodeOut
	r.ok("operator", "nodes/get", obj{"tenantId": "acme", "nodeId": n.ID}, &after)
	if !after.Node.Cordoned || len(after.Node.NoScheduleReasons) != 0 || after.Node.Version != n.Version+2 || after.Node.Operations != nil {
		t.Errorf("drained: %+v", after.Node)
	}
	if op := r.operation(drain); op.State != fleet.OpSucceeded || op.WaitingFor != nil || op.Steps[0].State != fleet.StepDone {
		t.Errorf("operation %+v", op)
	}
	if diff := cmp.Diff([]string{"node.draining", "node.drained"}, r.events(n.ID)[before:]); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// An uncordon ends a drain: its operation is aborted, its workflow told or its
// start taken back, and nothing late of it is told or changed.
func TestUncordonEndsDrain(t *testing.T) {
	t.Parallel()
	for name, begun := range map[string]bool{"before its start": false, "while it waits": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			n := r.enrolled("127.0.0.9", fleet.Deployed)
			on := obj{"tenantId": "acme", "nodeId": n.ID}
			r.ok("operator", "nodes/cordon", on, nil)
			before := len(r.events(n.ID))
			var out fleet.NodeOut
			r.ok("operator", "nodes/drain", on, &out)
			drain := out.Node.Operations.Drain
			if begun {
				r.allocate(n.ID, "alloc_1", "dev:ann")
				r.began(drain)
				if _, err := r.store.FinishDrain(t.Context(), drain); err != nil {
					t.Fatal(err)
				}
				r.exec(`UPDATE allocations SET state = 'released' WHERE id = 'alloc_1'`)
			}
			// metal/abort is of the provision lane.
			r.refused("owner", "metal/abort", on, fleet.CodeInvalidState, "nothing-to-abort")
			out = fleet.NodeOut{}
			r.ok("operator", "nodes/uncordon", on, &out)
			if out.Node.Cordoned || len(out.Node.NoScheduleReasons) != 0 || out.Node.Operations != nil {
				t.Errorf("uncordoned: %+v", out.Node)
			}
			op := r.operation(drain)
			if op.State != fleet.OpAborted || op.Error == nil || !strings.Contains(op.Error.Cause, "dev:operator") || op.EndedAt == nil {
				t.Errorf("operation %+v", op)
			}
			starts, ends := r.count(`SELECT count(*) FROM dispatch WHERE operation_id = $1 AND kind = 'start'`, drain),
				r.count(`SELECT count(*) FROM dispatch WHERE operation_id = $1 AND signal = 'end'`, drain)
			if want := map[bool]int{true: 1}[begun]; starts != 0 || ends != want {
				t.Errorf("%d starts and %d ends are to be delivered, want 0 and %d", starts, ends, want)
			}
			if _, err := r.store.FinishDrain(t.Context(), drain); fleet.ReasonOf(err) != store.ReasonSuperseded {
				t.Errorf("a late look: %v, want superseded", err)
			}
			if diff := cmp.Diff([]string{"node.draining", "node.uncordoned"}, r.events(n.ID)[before:]); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// A drain whose workflow is lost leaves no node that is draining for ever: it
// can be drained again.
func TestLostDrainLeavesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Deployed)
	on := obj{"tenantId": "acme", "nodeId": n.ID}
	var out fleet.NodeOut
	r.ok("operator", "nodes/drain", on, &out)
	first := out.Node.Operations.Drain
	r.began(first)
	if ended, err := r.store.EndLost(t.Context(), first, "workflow-closed", "terminated"); err != nil || !ended {
		t.Fatalf("ended %v, %v", ended, err)
	}
	out = fleet.NodeOut{}
	r.ok("operator", "nodes/get", on, &out)
	if !out.Node.Cordoned || len(out.Node.NoScheduleReasons) != 0 || out.Node.Operations != nil {
		t.Errorf("after its drain was lost: %+v", out.Node)
	}
	r.ok("operator", "nodes/drain", on, &out)
	if out.Node.Operations == nil || out.Node.Operations.Drain == first {
		t.Errorf("drained again: %+v", out.Node.Operations)
	}
}

// A release or an expiry queues the node's reconciler, which wakes its drain.
func TestReconcileWakesDrain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Deployed)
	r.allocate(n.ID, "alloc_1", "dev:ann")
	var out fleet.NodeOut
	r.ok("operator", "nodes/drain", obj{"tenantId": "acme", "nodeId": n.ID}, &out)
	drain := out.Node.Operations.Drain
	r.began(drain)
	if _, err := r.store.FinishDrain(t.Context(), drain); err != nil {
		t.Fatal(err)
	}
	if _, err := r.store.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := r.count(`SELECT count(*) FROM dispatch WHERE operation_id = $1 AND signal = 'wake'`, drain); n != 1 {
		t.Errorf("%d wakes, want 1", n)
	}
}
