package workflows

import (
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// leavesState are the verbs that are ended by a failure, without parking.
func leavesState(verb fleet.Verb) bool {
	switch verb {
	case fleet.VerbPower, fleet.VerbSetCredentials, fleet.VerbManage, fleet.VerbDrain, fleet.VerbAdopt:
		return true
	default:
		return false
	}
}

// succeed ends the operation well. From here nothing stops it.
func (r *run) succeed(ctx workflow.Context) (Outcome, error) {
	if r.job.Verb == fleet.VerbDrain {
		return Outcome{State: string(fleet.OpSucceeded)}, nil // recorded by the look that found the node free
	}
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	r.leaveSessions(ctx)
	in := activities.SucceedIn{OperationID: r.in.OperationID, Ended: r.ended, EndChain: r.mem.EndChain, NotDone: r.mem.NotDone,
		ForgetBMCPassword: r.job.Verb == fleet.VerbRetire}
	if r.job.Verb == fleet.VerbDeploy {
		in.Deployed, in.Confirmed = true, r.mem.Confirmed
		in.Verified = r.mem.Whole
		in.Whole = r.mem.Whole || r.job.Ask.ISO
	}
	if err := write(ctx, record.Succeed, in); err != nil {
		return r.stop(ctx, "", err)
	}
	r.showState(ctx, endState(r.job))
	return Outcome{State: string(fleet.OpSucceeded)}, nil
}

// fail records a failure: the operation parks, or ends for verbs that leave
// the node's state as it is.
func (r *run) fail(ctx workflow.Context, failed string, reason activities.Reason) (Outcome, error) {
	park := !leavesState(r.job.Verb)
	r.parking = park
	if len(r.ended) > 0 {
		// Ends that no start recorded: the failing step did not start.
		if err := write(ctx, record.EndSteps, activities.EndIn{OperationID: r.in.OperationID, Ended: r.ended}); err != nil {
			return r.stop(ctx, failed, err)
		}
		r.ended = nil
	}
	dctx, _ := workflow.NewDisconnectedContext(ctx)
	left := r.tidy(dctx, reason)
	if r.engine >= engineSessions && !reason.Away() {
		r.leaveSessions(dctx)
	}
	err := write(dctx, record.Fail, activities.FailIn{OperationID: r.in.OperationID, Step: failed, Reason: reason, Park: park, LeftBehind: left})
	if err != nil {
		return r.stop(ctx, failed, err)
	}
	r.showState(dctx, failedState(r.job.Verb))
	if park {
		r.mem.Parked = &Parked{Step: failed, Reason: reason}
		return Outcome{}, nil
	}
	if r.engine < engineSessions || reason.Away() {
		r.leaveSessions(dctx)
	}
	return Outcome{}, temporal.NewNonRetryableApplicationError(reason.Cause, reason.Code, nil, reason)
}

// park waits until the operation is retried or ended. true means that it goes
// on.
func (r *run) park(ctx workflow.Context) (bool, Outcome, error) {
	r.parking = true
	for {
		r.tell(ctx)
		came, err := workflow.AwaitWithTimeout(ctx, parkedRun, func() bool {
			return r.mail.retry != nil || r.mail.abort != nil || r.mail.end != nil
		})
		switch {
		case err != nil || r.mail.abort != nil || r.mail.end != nil:
			out, err := r.stop(ctx, r.mem.Step, err)
			return false, out, err
		case !came || r.mayContinue(ctx):
			r.drain(ctx)
			if r.mail.retry == nil && r.mail.abort == nil && r.mail.end == nil {
				return false, Outcome{}, r.continued(ctx)
			}
			continue
		}
		resumed, err := r.retry(ctx)
		if err != nil {
			out, err := r.stop(ctx, r.mem.Step, err)
			return false, out, err
		}
		if resumed {
			return true, Outcome{}, nil
		}
	}
}

// retry asks Postgres whether the operation may go on, from wherever the wish
// came, and goes on from the step that failed.
func (r *run) retry(ctx workflow.Context) (bool, error) {
	actor := r.mail.retry.Actor
	if actor == "" {
		actor = "temporal"
	}
	r.mail.retry = nil
	out, err := local[activities.RetryOut](ctx, record.Retry, activities.RetryIn{OperationID: r.in.OperationID, Actor: actor})
	if err != nil {
		return false, err
	}
	if out.Refused != "" {
		workflow.GetLogger(ctx).Info("retry refused", "cause", out.Refused)
		r.mem.Parked.Refused = out.Refused
		return false, nil
	}
	r.mem.Parked, r.parking = nil, false
	r.mem.Retries++
	r.mem.Reboots = 0
	r.adopt(out.Job)
	r.showState(ctx, fleet.MovesTo[r.job.Verb])
	return true, r.resumeAt(ctx)
}

// abort cleans up and ends the operation aborted.
func (r *run) abort(ctx workflow.Context, cause string) (Outcome, error) {
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	left := r.cleanUp(ctx)
	if err := write(ctx, record.Abort, activities.AbortIn{OperationID: r.in.OperationID, Cause: cause, LeftBehind: left}); err != nil {
		if activities.ReasonOf(err).Ends() {
			return Outcome{State: outcomeSuperseded, Detail: activities.ReasonOf(err).Cause}, nil
		}
		return Outcome{}, err
	}
	r.showState(ctx, failedState(r.job.Verb))
	return Outcome{State: string(fleet.OpAborted), Detail: cause}, nil
}

// cancelRetire ends a retire that was cancelled through Temporal: it takes no
// abort, so it is failed.
func (r *run) cancelRetire(ctx workflow.Context, failed string) (Outcome, error) {
	dctx, _ := workflow.NewDisconnectedContext(ctx)
	left := r.cleanUp(dctx)
	reason := activities.NewReason(activities.CodeCancelled, "cancelled through Temporal")
	if err := write(dctx, record.Fail, activities.FailIn{OperationID: r.in.OperationID, Step: failed, Reason: reason, LeftBehind: left}); err != nil {
		return Outcome{}, err
	}
	r.showState(dctx, fleet.Failed)
	return Outcome{State: string(fleet.OpFailed), Detail: reason.Cause}, ctx.Err()
}

// tidy leaves a machine that failed in a clean state: no command runs on, no
// medium or override stays. The machine itself stays up with its log. It says
// what it could not clean.
func (r *run) tidy(ctx workflow.Context, reason activities.Reason) (left []string) {
	if r.mem.Sent {
		if err := write(ctx, record.StopMachine, activities.StopIn{OperationID: r.in.OperationID}); err != nil {
			workflow.GetLogger(ctx).Info("commands not cancelled", "cause", err)
		}
	}
	if !r.mem.Touched {
		return nil
	}
	if !reason.Away() {
		err := r.clear(ctx)
		if err == nil {
			return nil
		}
		reason = activities.ReasonOf(err)
	}
	return []string{bootLeft + reason.Cause}
}

// bootLeft begins what is said of media and override that stayed.
const bootLeft = "virtual media and boot override: "

// cleanUp ends all that the operation may have left on the machine and says
// what it could not.
func (r *run) cleanUp(ctx workflow.Context) (left []string) {
	if r.mem.Sent || r.mem.Boots > 0 {
		if err := write(ctx, record.StopMachine, activities.StopIn{OperationID: r.in.OperationID, Boots: true}); err != nil {
			left = append(left, "commands and boots: "+activities.ReasonOf(err).Cause)
		}
	}
	if r.mem.Touched {
		if err := r.clear(ctx); err != nil {
			left = append(left, bootLeft+activities.ReasonOf(err).Cause)
		}
	}
	if err := r.endSessions(ctx); err != nil {
		left = append(left, "BMC session: "+activities.ReasonOf(err).Cause)
	}
	return left
}

// clear empties media and override within the bound of a clean-up.
func (r *run) clear(ctx workflow.Context) error {
	a := r.act("clean-up", cleanUpBound)
	a.Away = min(a.Away, cleanUpBound)
	_, err := bmcAct[string](ctx, act.ClearBoot, a, a)
	if err == nil {
		r.mem.Touched = false
	}
	return err
}

// leaveSessions deletes the BMC session; one that it cannot is the sweep's.
func (r *run) leaveSessions(ctx workflow.Context) {
	if err := r.endSessions(ctx); err != nil {
		workflow.GetLogger(ctx).Info("BMC session left to the sweep", "cause", err)
	}
}

// endSessions deletes the BMC session once the operation is over. A drain has
// none: the session is that of the operation beside it. Adopt talks to no BMC.
func (r *run) endSessions(ctx workflow.Context) error {
	if r.job.Verb == fleet.VerbDrain || r.job.Verb == fleet.VerbAdopt {
		return nil
	}
	a := r.act("end-sessions", cleanUpBound)
	_, err := bmcAct[struct{}](ctx, act.EndSessions, a, a)
	return err
}
