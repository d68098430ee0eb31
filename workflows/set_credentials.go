package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// SetCredentials records other BMC credentials after proving them, or changes
// the password on the BMC too. It leaves the node's state as it is.
func SetCredentials(ctx workflow.Context, in Input) (Outcome, error) { return operate(ctx, in) }

func proveCredentials(ctx workflow.Context, r *run) (string, error) {
	a := r.here(bmcBound)
	if _, err := bmcAct[struct{}](ctx, act.ProveCredentials, a, a); err != nil {
		return "", err
	}
	return "a login with them works; recorded", write(ctx, record.StoreCredentials, activities.OperationIn{OperationID: r.in.OperationID})
}

// rotate gives the BMC a new password: the operation's own, else a generated
// one.
func rotate(ctx workflow.Context, r *run) (string, error) {
	if r.job.Verb == fleet.VerbSetCredentials && r.job.Ask.Username != r.job.BMCUsername {
		reason := activities.NewReason(string(activities.KindUnsupported), "rotate changes the password of the account in use, which is not the one named")
		reason.Remedy = "record the other account first with setCredentials without rotate"
		return "", reason
	}
	a := r.here(longBMCBound)
	_, err := bmcAct[struct{}](ctx, act.Rotate, a, a)
	return "the BMC takes the new password; recorded", err
}
