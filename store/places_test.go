package store_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// TestDeployKeepsItsPlace: a deploy that changes the power holds a place of
// each kind, gives back the one of power with the step, and the other only
// when it ends.
func TestDeployKeepsItsPlace(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	addNode(t, o.pool, "node_b")
	if _, err := o.pool.Exec(t.Context(), `UPDATE sites SET spec = spec || '{"maxConcurrent":{"power":1,"deploy":1}}'`); err != nil {
		t.Fatal(err)
	}
	for id, node := range map[string]string{"op_a": "node_a", "op_b": "node_b"} {
		err := o.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			return o.InsertOperation(ctx, tx, store.NewOperation{ID: id, NodeID: node, TenantID: "acme", Verb: fleet.VerbDeploy, Lane: store.LaneProvision,
				Input: map[string]any{}, RequestedBy: "dev:owner"})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	may := func(id, kind string, want bool) {
		t.Helper()
		p, err := o.CheckSafePoint(t.Context(), id, kind)
		if err != nil || p.Go != want {
			t.Errorf("%s asks for %s: %v, %v; want %v", id, kind, p.Go, err, want)
		}
	}
	end := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	may("op_a", store.PlaceDeploy, true)
	may("op_a", store.PlacePower, true)
	may("op_b", store.PlacePower, false)
	end(o.EndStep(t.Context(), "op_a", fleet.StepSwitchOff, fleet.StepDone, ""))
	may("op_b", store.PlacePower, true)
	end(o.EndStep(t.Context(), "op_b", fleet.StepSwitchOff, fleet.StepDone, ""))
	may("op_b", store.PlaceDeploy, false)
	end(o.FailOperation(t.Context(), "op_a", fleet.OperationFailure{Code: "refused", Cause: "no", Park: true}))
	may("op_b", store.PlaceDeploy, true)
}
