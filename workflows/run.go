package workflows

import (
	"errors"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// Input starts the workflow of an operation.
type Input struct {
	OperationID string `json:"operationId"`
	// Carried is set when a long wait continues as new.
	Carried *Memory `json:"carried,omitempty"`
}

// Outcome is how a workflow ended.
type Outcome struct {
	// State is succeeded, failed, aborted or superseded.
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
}

// outcomeSuperseded is the end of a run whose operation is not its own any
// more.
const outcomeSuperseded = "superseded"

// The activities' method references; their receivers are the worker's.
var (
	record *activities.Record
	act    *activities.BMC
)

// provisionState is the search attribute that follows the node's state.
var provisionState = temporal.NewSearchAttributeKeyKeyword("ProvisionState")

// run is one run of an operation's workflow.
type run struct {
	in     Input
	engine workflow.Version
	job    activities.Job
	plan   []step
	mem    Memory
	mail   mailbox
	// parking says that the operation has failed or is about to be recorded so.
	parking    bool
	cancelStep workflow.CancelFunc
	progress   Progress
	// ended are the steps whose end is not recorded yet.
	ended []activities.Ended
}

// errContinue asks for a continue-as-new at a wait.
var errContinue = errors.New("continue as new")

// operate runs an operation from its start, or from where the run before left
// it, to its end.
func operate(ctx workflow.Context, in Input) (Outcome, error) {
	r := &run{in: in}
	out, err := r.operate(ctx)
	r.tellEnd(ctx, out, err)
	return out, err
}

func (r *run) operate(ctx workflow.Context) (Outcome, error) {
	in := r.in
	if in.Carried != nil {
		r.mem = *in.Carried
		r.parking = r.mem.Parked != nil
	}
	r.engine = engineOf(ctx)
	r.listen(ctx)
	if err := workflow.SetQueryHandlerWithOptions(ctx, fleet.QueryProgress, r.show, workflow.QueryHandlerOptions{
		Description: "Steps, what is waited for, and why the operation is parked."}); err != nil {
		return Outcome{}, err
	}
	if err := r.begin(ctx); err != nil {
		return r.stop(ctx, "", err)
	}
	for {
		if r.mem.Parked != nil {
			resumed, out, err := r.park(ctx)
			if !resumed {
				return out, err
			}
		}
		failed, err := r.steps(ctx)
		if err == nil {
			return r.succeed(ctx)
		}
		if out, err, over := r.over(ctx, failed, err); over {
			return out, err
		}
	}
}

// begin makes the operation running and plans its steps.
func (r *run) begin(ctx workflow.Context) error {
	var job activities.Job
	var err error
	if r.mem.Parked != nil {
		job, err = local[activities.Job](ctx, record.Load, activities.OperationIn{OperationID: r.in.OperationID})
	} else {
		job, err = local[activities.Job](ctx, record.Begin, activities.OperationIn{OperationID: r.in.OperationID})
	}
	if err != nil {
		return err
	}
	r.adopt(job)
	return nil
}

// adopt makes a job this run's.
func (r *run) adopt(job activities.Job) {
	r.job = job
	if r.mem.Asked == nil {
		ask := job.StepsAsk()
		r.mem.Asked = &ask
	}
	r.mem.Boots = max(r.mem.Boots, job.Boots)
	r.plan = planOf(*r.mem.Asked)
}

// over decides what an error of a step means: true when the run ends with it,
// false when the operation is parked.
func (r *run) over(ctx workflow.Context, failed string, err error) (Outcome, error, bool) {
	switch {
	case errors.Is(err, errContinue):
		return Outcome{}, r.continued(ctx), true
	case r.mail.end != nil || r.mail.abort != nil || ctx.Err() != nil || activities.ReasonOf(err).Ends():
		out, err := r.stop(ctx, failed, err)
		return out, err, true
	}
	out, err := r.fail(ctx, failed, activities.ReasonOf(err))
	return out, err, err != nil || r.mem.Parked == nil
}

// stop ends a run that may not go on: superseded, aborted or cancelled.
func (r *run) stop(ctx workflow.Context, failed string, err error) (Outcome, error) {
	reason := activities.ReasonOf(err)
	switch {
	case r.mail.end != nil:
		return Outcome{State: outcomeSuperseded, Detail: r.mail.end.SupersededBy}, nil
	case reason.Ends():
		workflow.GetLogger(ctx).Info("the operation is not this workflow's any more", "cause", reason.Cause)
		return Outcome{State: outcomeSuperseded, Detail: reason.Cause}, nil
	case r.mail.abort != nil:
		return r.abort(ctx, abortCause(*r.mail.abort))
	case ctx.Err() != nil && r.job.Verb == fleet.VerbRetire && r.mem.Parked == nil:
		return r.cancelRetire(ctx, failed)
	case ctx.Err() != nil:
		out, err := r.abort(ctx, "aborted: cancelled through Temporal")
		if err == nil {
			err = ctx.Err()
		}
		return out, err
	}
	return Outcome{}, err
}

func abortCause(in SignalInput) string {
	cause := "aborted"
	if in.Actor != "" {
		cause += " by " + in.Actor
	}
	if in.Reason != "" {
		cause += ": " + in.Reason
	}
	return cause
}

// continued takes what has arrived and continues as new; a signal that ends
// the wait is not carried over but obeyed in the next round.
func (r *run) continued(ctx workflow.Context) error {
	in := r.in
	in.Carried = &r.mem
	return workflow.NewContinueAsNewError(ctx, workflow.GetInfo(ctx).WorkflowType.Name, in)
}

// mayContinue says whether the run should continue as new at this wait, after
// taking every signal that has arrived.
func (r *run) mayContinue(ctx workflow.Context) bool {
	if !workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
		return false
	}
	r.drain(ctx)
	return r.mail.retry == nil && r.mail.abort == nil && r.mail.end == nil && ctx.Err() == nil
}

// local runs bookkeeping under the quick profile.
func local[T any](ctx workflow.Context, activity any, in any) (T, error) {
	var out T
	err := workflow.ExecuteLocalActivity(quick(ctx), activity, in).Get(ctx, &out)
	return out, err
}

// write is local without a result.
func write(ctx workflow.Context, activity any, in any) error {
	return workflow.ExecuteLocalActivity(quick(ctx), activity, in).Get(ctx, nil)
}
