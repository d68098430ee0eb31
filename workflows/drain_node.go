package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// DrainNode waits until no live allocation holds a node. It touches no machine
// and releases nothing; nodes/uncordon ends it.
func DrainNode(ctx workflow.Context, in Input) (Outcome, error) { return operate(ctx, in) }

// drainPoll is the guarantee behind the signals that releases and expiries
// send.
const drainPoll = 5 * time.Minute

// awaitFree waits. The look that finds the node free ends the operation in the
// same transaction.
func awaitFree(ctx workflow.Context, r *run) (string, error) {
	for {
		seen := r.mail.nudges
		w, err := local[*fleet.WaitingFor](ctx, record.FinishDrain, activities.OperationIn{OperationID: r.in.OperationID})
		if err != nil || w == nil {
			return "", err
		}
		if r.mayContinue(ctx) {
			return "", errContinue
		}
		r.waits(ctx, w.Actor+": "+w.What)
		if _, err := workflow.AwaitWithTimeout(ctx, drainPoll, func() bool { return r.mail.nudges != seen }); err != nil {
			return "", err
		}
	}
}
