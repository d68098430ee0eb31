package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// Rescue boots our image with sshd and the given keys. It runs from memory, so
// that medium and override are cleared while it is up.
func Rescue(ctx workflow.Context, in Input) (Outcome, error) { return operate(ctx, in) }

func startRescue(ctx workflow.Context, r *run) (string, error) {
	_, err := r.command(ctx, activities.CommandRescue, nil, waiting{limit: r.job.Waits.ImageStall, code: activities.CodeStalled,
		late: "the rescue system did not start its sshd within %s", show: fleet.WaitingFor{What: "it starts the rescue system"}})
	return "the rescue system takes the given keys", err
}
