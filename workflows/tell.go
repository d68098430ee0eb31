package workflows

import (
	"fmt"

	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/fleet"
)

// tell shows in Temporal's Web UI where the operation is, in words. It is no
// part of the history: the replay of one that was recorded before says the same.
func (r *run) tell(ctx workflow.Context) {
	workflow.SetCurrentDetails(ctx, r.words())
}

// words say where the operation is: what is done, what it waits for, or why it
// is parked and what a person does about it (Markdown).
func (r *run) words() string {
	if p := r.mem.Parked; p != nil {
		refused := ""
		if p.Refused != "" {
			refused = "The last retry was refused: " + p.Refused + "\n\n"
		}
		return fmt.Sprintf("**%s of %s is parked at `%s`**\n\n%s\n\nTo do: %s\n\n%s"+
			"Then `computectl metal retry %s`, or send the signal `retry` here. `abort` ends it after cleaning up.",
			r.job.Verb, r.job.NodeID, p.Step, p.Reason.Cause, p.Reason.Remedy, refused, r.job.NodeID)
	}
	s := fmt.Sprintf("**%s of %s**", r.job.Verb, r.job.NodeID)
	if r.mem.Step != "" {
		s += fmt.Sprintf(", step `%s` (%d of %d)", r.mem.Step, r.indexOf(r.mem.Step)+1, len(r.plan))
	}
	if r.progress.Waiting != "" {
		s += "\n\nwaits for " + r.progress.Waiting
	}
	return s
}

// waits shows what is waited for; "" that it goes on.
func (r *run) waits(ctx workflow.Context, what string) {
	r.progress.Waiting = what
	r.tell(ctx)
}

// tellEnd shows how the run ended.
func (r *run) tellEnd(ctx workflow.Context, out Outcome, err error) {
	switch {
	case err != nil && !workflow.IsContinueAsNewError(err):
		workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s of %s ended**: %v", r.job.Verb, r.job.NodeID, err))
	case out.State != "":
		text := fmt.Sprintf("**%s of %s %s**", r.job.Verb, r.job.NodeID, out.State)
		if out.Detail != "" {
			text += ": " + out.Detail
		}
		workflow.SetCurrentDetails(ctx, text)
	}
}

// signalDescriptions are shown where a person looks for what can be sent.
var signalDescriptions = map[string]string{
	fleet.SignalRetry: "Go on from the failed step; judged by the same rules as metal/retry.",
	fleet.SignalAbort: "End the operation after cleaning up; judged by the same rules as metal/abort.",
}
