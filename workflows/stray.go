package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// strayBoot notices, where the BMC lets it be seen, a machine that boots
// something else than our medium, such as an old system on its disk: the
// override is used up and an operating system runs, while nothing of the medium
// was read since the machine was switched on.
type strayBoot struct {
	r     *run
	limit time.Duration
	// before says that the boot was seen on its way: from then on "an operating
	// system runs" is no word of before the power-on.
	before bool
	// running says that it was seen to run, since when on the wait's clock.
	running bool
	since   time.Duration
	// reads says that our medium is being read.
	reads bool
}

// The parts of the wait for the call-in that a system may run without reading
// our medium: ours loads, then brings up its network. Where the boot itself was
// not seen, the BMC's word may be an old one.
const (
	strayParts = 5
	staleParts = 2
)

// lookBound bounds one look.
const lookBound = time.Minute

func (s *strayBoot) look(ctx workflow.Context, elapsed time.Duration, m activities.Machine) error {
	s.reads = s.reads || m.ReadAt != nil && m.ReadAt.After(s.r.mem.OnAt)
	if s.reads {
		return nil
	}
	a := s.r.here(lookBound)
	a.Once = true // the next look is soon enough
	out, err := bmcAct[activities.BootStateOut](ctx, act.BootState, a, a)
	if err != nil {
		return ctx.Err()
	}
	if out.Power != fleet.PowerOn || !out.Consumed || !out.Running {
		s.before = s.before || out.Booting
		s.running = false
		return nil
	}
	if !s.running {
		s.running, s.since = true, elapsed
		return write(ctx, record.Note, activities.NoteIn{OperationID: s.r.in.OperationID, Step: s.r.mem.Step,
			Detail: "an operating system runs, and nothing of our medium was read since the machine was switched on: it may be an old one"})
	}
	patience := s.limit / strayParts
	if !s.before {
		patience = s.limit / staleParts
	}
	if elapsed-s.since < patience {
		return nil
	}
	reason := activities.NewReason(activities.CodeNoCallIn, "the machine booted something else than our medium: its boot override is used up and an operating system runs, but nothing of the medium was read since it was switched on")
	reason.Remedy = "see on its console what it booted; check Secure Boot and that its firmware boots from what the BMC offers (another bootVia may work), then retry"
	return reason
}
