package workflows

import (
	"slices"

	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/fleet"
)

// SignalInput comes with each signal of ours. Signals that people send with the
// temporal CLI have none.
type SignalInput struct {
	// DispatchID is the row that sent it: a repeat has the same.
	DispatchID int64  `json:"dispatchId,omitempty"`
	Actor      string `json:"actor,omitempty"`
	Reason     string `json:"reason,omitempty"`
	// SupersededBy is the operation that ends this one.
	SupersededBy string `json:"supersededBy,omitempty"`
}

// signalNames are the signals that every operation understands.
var signalNames = []string{fleet.SignalRetry, fleet.SignalAbort, fleet.SignalEnd, fleet.SignalCallIn, fleet.SignalReboot,
	fleet.SignalCommand, fleet.SignalReport, fleet.SignalWake}

// maxSeen bounds how many dispatch ids are remembered. Repeats of a row come
// soon after it or not at all.
const maxSeen = 500

// mailbox is what signals have said so far.
type mailbox struct {
	retry, abort, end *SignalInput
	// nudges counts all signals, so that waits look again.
	nudges int
}

// listen receives signals for as long as the workflow runs.
func (r *run) listen(ctx workflow.Context) {
	workflow.Go(ctx, func(ctx workflow.Context) {
		// Signals must arrive during a clean-up too.
		ctx, _ = workflow.NewDisconnectedContext(ctx)
		s := workflow.NewSelector(ctx)
		for _, name := range signalNames {
			from := workflow.GetSignalChannelWithOptions(ctx, name, workflow.SignalChannelOptions{Description: signalDescriptions[name]})
			s.AddReceive(from, func(c workflow.ReceiveChannel, _ bool) {
				var raw converter.RawValue
				c.Receive(ctx, &raw)
				r.take(ctx, name, raw)
			})
		}
		for {
			s.Select(ctx)
		}
	})
}

// drain takes the signals that have arrived and were not received, before the
// workflow continues as new.
func (r *run) drain(ctx workflow.Context) {
	for _, name := range signalNames {
		c := workflow.GetSignalChannel(ctx, name)
		for {
			var raw converter.RawValue
			if !c.ReceiveAsync(&raw) {
				break
			}
			r.take(ctx, name, raw)
		}
	}
}

// take notes one signal. Input that is none of ours counts as no input: the
// person who sent it meant the signal.
func (r *run) take(ctx workflow.Context, name string, raw converter.RawValue) {
	var in SignalInput
	if p := raw.Payload(); p != nil && converter.GetDefaultDataConverter().FromPayload(p, &in) != nil {
		in = SignalInput{}
	}
	if in.DispatchID != 0 {
		if slices.Contains(r.mem.Seen, in.DispatchID) {
			workflow.GetLogger(ctx).Info("repeated signal dropped", "signal", name, "dispatch", in.DispatchID)
			return
		}
		r.mem.Seen = append(r.mem.Seen, in.DispatchID)
		if len(r.mem.Seen) > maxSeen {
			r.mem.Seen = r.mem.Seen[len(r.mem.Seen)-maxSeen:]
		}
	}
	r.mail.nudges++
	switch name {
	case fleet.SignalRetry:
		// One of ours was judged by Postgres: the operation parks, or has.
		if !r.parking && in.DispatchID == 0 {
			workflow.GetLogger(ctx).Info("retry ignored: the operation is not parked")
			return
		}
		r.mail.retry = &in
	case fleet.SignalAbort:
		if (r.job.Verb == fleet.VerbRetire && !r.parking) || r.job.Verb == fleet.VerbDrain {
			workflow.GetLogger(ctx).Info("abort ignored: a retire takes none, a drain ends by nodes/uncordon")
			return
		}
		r.mail.abort = &in
		r.interrupt()
	case fleet.SignalEnd:
		r.mail.end = &in
		r.interrupt()
	}
}

// interrupt cancels the step under way.
func (r *run) interrupt() {
	if r.cancelStep != nil {
		r.cancelStep()
	}
}
