package workflows

import (
	"errors"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// step is one step of an operation.
type step struct {
	name string
	// touches says that it could change power, boot or disk: it starts at a safe
	// point only, within the site's limits of kinds.
	touches bool
	kinds   []string
	// medium says that it needs the medium that prepare-boot made ready, inBand
	// that it needs the machine up in our image. Where these are gone, a retry
	// goes back to prepare-boot.
	medium, inBand bool
	// try says that a forced retire goes on when it fails.
	try bool
	// skip says why the step is needless, or "".
	skip func(r *run) string
	do   func(ctx workflow.Context, r *run) (string, error)
}

// errRebooted says that the machine restarted by itself in our image.
var errRebooted = errors.New("the machine restarted by itself")

// steps runs the plan from where the run stands. It returns the step that
// failed.
func (r *run) steps(ctx workflow.Context) (string, error) {
	ctx, cancel := workflow.WithCancel(ctx)
	defer cancel()
	r.cancelStep = cancel
	if r.mail.abort != nil || r.mail.end != nil {
		return r.mem.Step, workflow.ErrCanceled
	}
	for i := r.indexOf(r.mem.Step); i < len(r.plan); {
		s := r.plan[i]
		r.mem.Step = s.name
		if s.skip != nil {
			if why := s.skip(r); why != "" {
				r.ended = append(r.ended, activities.Ended{Step: s.name, State: fleet.StepSkipped, Detail: why})
				i++
				continue
			}
		}
		if err := r.start(ctx, s); err != nil {
			return s.name, err
		}
		detail, err := s.do(ctx, r)
		r.progress.Waiting, r.progress.Percent = "", nil
		switch {
		case errors.Is(err, errRebooted):
			if i, err = r.bootAgain(); err != nil {
				return s.name, err
			}
			r.ended = append(r.ended, activities.Ended{Step: s.name, State: fleet.StepPending, Detail: "the machine restarted by itself: it is booted anew"})
			continue
		case err != nil && !errors.Is(err, errContinue) && s.try && r.forced() && ctx.Err() == nil && !activities.ReasonOf(err).Ends():
			cause := activities.ReasonOf(err).Cause
			r.mem.NotDone = append(r.mem.NotDone, s.name+": "+cause)
			if s.medium || s.inBand || s.name == fleet.StepPrepareBoot {
				r.mem.NoBoot = "not done: our image was not booted"
			}
			r.ended = append(r.ended, activities.Ended{Step: s.name, State: fleet.StepSkipped, Detail: "not done: " + cause})
		case err != nil:
			return s.name, err
		default:
			r.ended = append(r.ended, activities.Ended{Step: s.name, State: fleet.StepDone, Detail: detail})
		}
		i++
	}
	return "", nil
}

// forced says that the operation is a retire that must reach its end.
func (r *run) forced() bool { return r.job.Verb == fleet.VerbRetire && r.job.Ask.Force }

// start records the ends before and starts the step, once it may start.
func (r *run) start(ctx workflow.Context, s step) error {
	in := activities.AdvanceIn{OperationID: r.in.OperationID, Ended: r.ended, Next: s.name, Round: r.mem.Retries, Touches: s.touches, Kinds: s.kinds}
	if !r.mem.Planned {
		in.Plan = planNames(r.plan)
	}
	for wait := time.Duration(0); ; {
		out, err := local[activities.AdvanceOut](ctx, record.Advance, in)
		if err != nil {
			return err
		}
		r.ended, r.mem.Planned = nil, true
		in.Plan, in.Ended = nil, nil
		if out.Started {
			r.waits(ctx, "")
			return nil
		}
		if wait, err = r.standBy(ctx, out.Wait, wait); err != nil {
			return err
		}
	}
}

func planNames(plan []step) []string {
	names := make([]string, len(plan))
	for i, s := range plan {
		names[i] = s.name
	}
	return names
}

// standBy waits at a safe point until a signal or the time to look again.
func (r *run) standBy(ctx workflow.Context, p activities.SafePoint, before time.Duration) (time.Duration, error) {
	if r.mayContinue(ctx) {
		return 0, errContinue
	}
	if p.WaitingFor != nil {
		r.waits(ctx, p.WaitingFor.Actor+": "+p.WaitingFor.What)
	}
	wait := p.Again
	if wait <= 0 {
		wait = min(max(safePointPoll, 2*before), safePointMost)
	}
	seen := r.mail.nudges
	_, err := workflow.AwaitWithTimeout(ctx, min(max(wait, pollLeast), safePointMost), func() bool { return r.mail.nudges != seen })
	return wait, err
}

// safely waits inside a step until an act may go ahead.
func (r *run) safely(ctx workflow.Context, kinds ...string) error {
	for wait := time.Duration(0); ; {
		p, err := local[activities.SafePoint](ctx, record.CheckSafePoint, activities.SafePointIn{OperationID: r.in.OperationID, Kinds: kinds})
		if err != nil || p.Go {
			return err
		}
		if wait, err = r.standBy(ctx, p, wait); err != nil {
			return err
		}
	}
}

// bootAgain goes back to prepare-boot after the machine restarted by itself.
func (r *run) bootAgain() (int, error) {
	if r.mem.Reboots >= maxReboots {
		return 0, activities.NewReason(activities.CodeReboots, "the machine restarted by itself %d times while it ran our image", r.mem.Reboots+1)
	}
	r.mem.Reboots++
	r.mem.Retries++
	return r.indexOf(fleet.StepPrepareBoot), nil
}

// resumeAt is where a retry goes on: at the step that failed, or at
// prepare-boot where that step needs a medium or a machine that are gone.
func (r *run) resumeAt(ctx workflow.Context) error {
	s := r.plan[r.indexOf(r.mem.Step)]
	r.mem.Step = s.name
	if !s.medium && !s.inBand {
		return nil
	}
	if s.inBand {
		present, err := local[bool](ctx, record.Present, activities.OperationIn{OperationID: r.in.OperationID})
		if err != nil || present {
			return err
		}
	}
	r.mem.Step = fleet.StepPrepareBoot
	return nil
}
