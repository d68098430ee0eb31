package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// finishWait is how long our image may take to say goodbye.
const finishWait = time.Minute

// waiting is something that comes from the machine.
type waiting struct {
	what, commandID string
	show            fleet.WaitingFor
	// limit bounds the wait, stall the time without progress; 0 is no bound.
	limit, stall time.Duration
	// code and late are the failure when a bound is over; late takes the bound.
	code, late string
	// most is how long to the next look at most; 0 is pollMost.
	most time.Duration
	// look, when not nil, is asked at each look for a reason to wait no longer.
	look func(ctx workflow.Context, elapsed time.Duration, m activities.Machine) error
}

// clock counts a wait's time, which stands still while somebody keeps changes
// away from the machine.
type clock struct {
	last    time.Time
	elapsed time.Duration
	held    bool
}

func (c *clock) tick(now time.Time, held bool) {
	if !c.held && !c.last.IsZero() {
		c.elapsed += now.Sub(c.last)
	}
	c.last, c.held = now, held
}

// Waited is how far a wait had come when its run continued as new.
type Waited struct {
	Step, What, CommandID string
	// Elapsed is the wait's time, Moved when progress was seen last, on that
	// clock, and Mark what was seen then.
	Elapsed, Moved time.Duration
	Mark           string
}

// resumed is how far this wait had come in the run before, at its beginning
// otherwise.
func (r *run) resumed(w waiting) Waited {
	now := Waited{Step: r.mem.Step, What: w.what, CommandID: w.commandID}
	if b := r.mem.Waited; b != nil && b.Step == now.Step && b.What == now.What && b.CommandID == now.CommandID {
		r.mem.Waited = nil
		return *b
	}
	return now
}

// await waits for something from the machine. Signals only make it look
// sooner: each look reads the fact in Postgres. However long it takes, its
// history does not grow for ever.
func (r *run) await(ctx workflow.Context, w waiting) (activities.WatchOut, error) {
	at := r.resumed(w)
	c := clock{elapsed: at.Elapsed}
	shown := false
	r.waits(ctx, w.show.Actor+": "+w.show.What)
	for {
		seen := r.mail.nudges
		in := activities.WatchIn{OperationID: r.in.OperationID, Step: r.mem.Step, What: w.what, CommandID: w.commandID}
		if !shown {
			in.Show = w.shownAt(workflow.Now(ctx).Add(-c.elapsed))
		}
		out, err := local[activities.WatchOut](ctx, record.Watch, in)
		if err != nil || out.Done {
			return out, err
		}
		shown = true
		if w.what == activities.WatchCommand && out.Machine.Reused {
			return out, errRebooted
		}
		r.progress.Percent = out.Command.Percent
		c.tick(workflow.Now(ctx), out.Held)
		at.Elapsed = c.elapsed
		if now := progressMark(out.Command); now != at.Mark {
			at.Mark, at.Moved = now, c.elapsed
		}
		switch {
		case w.limit > 0 && c.elapsed >= w.limit:
			return out, activities.NewReason(w.code, w.late, w.limit)
		case w.stall > 0 && c.elapsed-at.Moved >= w.stall:
			return out, activities.NewReason(activities.CodeStalled, "no progress for %s: %s", w.stall, describeCommand(out.Command))
		}
		if w.look != nil {
			if err := w.look(ctx, c.elapsed, out.Machine); err != nil {
				return out, err
			}
		}
		if r.engine >= engineWaits && r.mayContinue(ctx) {
			r.mem.Waited = &at
			return out, errContinue
		}
		poll := w.poll(c.elapsed, at.Moved)
		if out.Held { // no bound comes nearer, and who lets go wakes it
			poll = safePointMost
		}
		if _, err := workflow.AwaitWithTimeout(ctx, poll, func() bool { return r.mail.nudges != seen }); err != nil {
			return out, err
		}
	}
}

// shownAt is what the operation shows while it waits since then.
func (w waiting) shownAt(since time.Time) *fleet.WaitingFor {
	s := w.show
	s.Since = fleet.At(since)
	if w.limit > 0 {
		deadline := fleet.At(since.Add(w.limit))
		s.Deadline = &deadline
	}
	return &s
}

// pollParts is how many looks a bound is divided into.
const pollParts = 40

// poll is the time to the next look: a part of the nearest bound, and not
// beyond it.
func (w waiting) poll(elapsed, moved time.Duration) time.Duration {
	d := pollMost
	if w.most > 0 {
		d = w.most
	}
	for _, b := range []struct{ bound, left time.Duration }{{w.limit, w.limit - elapsed}, {w.stall, w.stall - (elapsed - moved)}} {
		if b.bound > 0 {
			d = min(d, max(b.bound/pollParts, pollLeast), max(b.left, pollLeast))
		}
	}
	return d
}

// progressMark changes whenever a command moves.
func progressMark(c activities.Command) string {
	s := c.State
	if c.ProgressAt != nil {
		s += c.ProgressAt.UTC().Format(time.RFC3339Nano)
	}
	return s
}

func describeCommand(c activities.Command) string {
	s := "the command is " + c.State
	if c.Detail != "" {
		s += ", last: " + c.Detail
	}
	return s
}
