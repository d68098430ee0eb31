package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
)

// Power makes one change of power. It leaves the node's state as it is.
func Power(ctx workflow.Context, in Input) (Outcome, error) { return operate(ctx, in) }

func power(ctx workflow.Context, r *run) (string, error) {
	aim, bound := activities.PowerAim(r.job.Ask.Action), r.powerBound(1)
	switch aim {
	case activities.AimCycle, activities.AimReset:
		bound = r.powerBound(2)
	case activities.AimSoftOff:
		bound = r.job.Waits.SoftOff
	}
	detail, err := r.setPower(ctx, aim, bound)
	if aim == activities.AimSoftOff && err != nil && activities.ReasonOf(err).Code == string(activities.KindTimeout) {
		return "", notShutDown(bound)
	}
	return detail, err
}

func notShutDown(within time.Duration) activities.Reason {
	r := activities.NewReason(string(activities.KindTimeout), "the operating system did not shut down within %s", within)
	r.Remedy = "call metal/power with action: off, which forces it"
	return r
}
