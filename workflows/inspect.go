package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// Inspect reads a machine's inventory by its BMC, in band, or both. After an
// in-band inspection the machine is off.
func Inspect(ctx workflow.Context, in Input) (Outcome, error) { return operate(ctx, in) }

func readInventory(ctx workflow.Context, r *run) (string, error) {
	a := r.here(longBMCBound)
	out, err := bmcAct[activities.InventoryOut](ctx, act.ReadInventory, a, a)
	return out.Detail, err
}

func readInBand(ctx workflow.Context, r *run) (string, error) {
	id, err := r.command(ctx, activities.CommandInventory, nil, waiting{limit: r.job.Waits.ImageStall, code: activities.CodeStalled,
		late: "the machine did not give its inventory within %s", show: fleet.WaitingFor{What: "it reads its own inventory"}})
	if err != nil {
		return "", err
	}
	return local[string](ctx, record.TakeInventory, activities.DataIn{OperationID: r.in.OperationID, CommandID: id})
}
