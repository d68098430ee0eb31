package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// Commission proves that a machine can be controlled (off and on are really
// seen, a one-time boot override is taken, read back and cleared), that it is
// healthy, and that it is what its pool wants. It ends off and ready.
func Commission(ctx workflow.Context, in Input) (Outcome, error) { return operate(ctx, in) }

func proveOverride(ctx workflow.Context, r *run) (string, error) {
	r.mem.Touched = true
	a := r.here(longBMCBound)
	detail, err := bmcAct[string](ctx, act.ProveOverride, a, a)
	if err == nil {
		r.mem.Touched = false
	}
	return detail, err
}

func checkHardware(ctx workflow.Context, r *run) (string, error) {
	a := r.here(longBMCBound)
	out, err := bmcAct[activities.InventoryOut](ctx, act.CheckHardware, a, activities.HardwareIn{Act: a, Baseline: r.job.Ask.Baseline})
	return out.Detail, err
}

// testsLimit bounds all in-band tests of a commission together.
const testsLimit = 12 * time.Hour

func runTests(ctx workflow.Context, r *run) (string, error) {
	_, err := r.command(ctx, activities.CommandTest, nil, waiting{limit: testsLimit, stall: r.job.Waits.Image, code: activities.CodeStalled,
		late: "the tests did not end within %s", show: fleet.WaitingFor{What: "it runs the tests"}})
	return "all tests passed", err
}
