package workflows

import (
	"fmt"
	"strings"

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
	var b strings.Builder
	if p := r.mem.Parked; p != nil {
		fmt.Fprintf(&b, "**%s of %s is parked at `%s`**\n\n%s\n\nTo do: %s\n\n", r.job.Verb, r.job.NodeID, p.Step, p.Reason.Cause, p.Reason.Remedy)
		if p.Refused != "" {
			fmt.Fprintf(&b, "The last retry was refused: %s\n\n", p.Refused)
		}
		fmt.Fprintf(&b, "Then `computectl metal retry %s`, or send the signal `retry` here. `abort` ends it after cleaning up.", r.job.NodeID)
		return b.String()
	}
	fmt.Fprintf(&b, "**%s of %s**", r.job.Verb, r.job.NodeID)
	if r.mem.Step != "" {
		fmt.Fprintf(&b, ", step `%s` (%d of %d)", r.mem.Step, r.indexOf(r.mem.Step)+1, len(r.plan))
	}
	if r.progress.Waiting != "" {
		fmt.Fprintf(&b, "\n\nwaits for %s", r.progress.Waiting)
	}
	return b.String()
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
