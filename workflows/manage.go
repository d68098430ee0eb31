package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
)

// Manage gives an adopted host its BMC, once the BMC has proved to be that
// host's. Without proof it fails, and no BMC is recorded. It leaves the node's
// state as it is.
func Manage(ctx workflow.Context, in Input) (Outcome, error) { return operate(ctx, in) }

func proveBMC(ctx workflow.Context, r *run) (string, error) {
	a := r.here(bmcBound)
	out, err := bmcAct[activities.IdentifyOut](ctx, act.ProveBMC, a, a)
	return out.Detail, err
}
