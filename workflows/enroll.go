package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// Enroll learns who a machine is by its BMC: it reaches it, trusts it, logs in
// and records identity, capabilities and power. Nothing is changed on the BMC.
func Enroll(ctx workflow.Context, in Input) (Outcome, error) { return operate(ctx, in) }

// identify is enroll's step; an inspect of a machine that enroll could not
// identify begins with it too. Commission does not follow by itself for a
// machine that may be in use.
func identify(ctx workflow.Context, r *run) (string, error) {
	a := r.here(bmcBound)
	out, err := bmcAct[activities.IdentifyOut](ctx, act.Identify, a, activities.IdentifyIn{Act: a, InUse: r.job.Ask.InUse, Presume: true})
	if err != nil {
		return "", err
	}
	if out.MaybeInUse && r.job.Verb == fleet.VerbEnroll {
		r.mem.EndChain = true
		out.Detail += "; presumed in use, so that no operation follows: call metal/inspect with inUse: false once it is known to be free"
	}
	return out.Detail, nil
}
