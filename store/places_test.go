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

// TestSafePoint: a hold and a site's pause keep every change away, whoever has a
// place; the places of a site are taken in the order in which the operations were
// made, and one that is held stands in nobody's way.
func TestSafePoint(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.exec(`UPDATE sites SET spec = spec || '{"maxConcurrent":{"power":1}}'`)
	o.exec(`INSERT INTO sites (id, tenant_id, name, spec) VALUES ('site_2', 'acme', 'two', '{"name": "two", "maxConcurrent": {"power": 1}}')`)
	for i, id := range []string{"a", "b", "c", "d"} {
		if i > 0 {
			addNode(t, o.pool, "node_"+id)
		}
		o.must(o.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			return o.InsertOperation(ctx, tx, store.NewOperation{ID: "op_" + id, NodeID: "node_" + id, TenantID: "acme", Verb: fleet.VerbPower, Lane: store.LaneProvision,
				Input: map[string]any{}, RequestedBy: "dev:owner"})
		}))
		o.exec(`UPDATE operations SET created_at = now() + $2 * interval '1 second' WHERE id = $1`, "op_"+id, i)
	}
	o.exec(`UPDATE nodes SET site_id = 'site_2' WHERE id = 'node_d'`)
	look := func(id string) fleet.SafePoint {
		t.Helper()
		p, err := o.CheckSafePoint(t.Context(), "op_"+id, store.PlacePower)
		o.must(err)
		if p.Go == (p.WaitingFor != nil) {
			t.Errorf("op_%s: go %v, waits for %+v", id, p.Go, p.WaitingFor)
		}
		return p
	}
	may := func(id string, want bool) {
		t.Helper()
		if p := look(id); p.Go != want {
			t.Errorf("op_%s may go: %v, want %v; waits for %+v", id, p.Go, want, p.WaitingFor)
		}
	}
	may("a", true)
	may("a", true) // it has its place
	may("b", false)
	may("c", false)
	may("d", true) // of another site
	o.exec(`UPDATE nodes SET hold = '{"by": "dev:ann", "since": "2026-01-01T00:00:00.000Z", "reason": "cabling"}' WHERE id IN ('node_a', 'node_b')`)
	if p := look("a"); p.Go || p.WaitingFor.Actor != "dev:ann" {
		t.Errorf("held with a place: %+v", p)
	}
	may("b", false)
	o.must(o.SucceedOperation(t.Context(), "op_a", fleet.OperationResult{}))
	may("c", true) // b is held
	o.exec(`UPDATE nodes SET hold = NULL`)
	may("b", false)
	o.exec(`UPDATE sites SET spec = spec || '{"paused": true}' WHERE id = 'site_1'`)
	if p := look("c"); p.Go || p.WaitingFor.Actor != "site one" {
		t.Errorf("paused with a place: %+v", p)
	}
	may("d", true)
	o.exec(`UPDATE sites SET spec = spec || '{"paused": false}'`)
	o.must(o.FailOperation(t.Context(), "op_c", fleet.OperationFailure{Code: "timeout"}))
	may("b", true)
}
