package workflows_test

import (
	"errors"
	"testing"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/workflows"
)

// TestHeldWaitLooksSeldom: a machine that is held for days while it writes costs
// its operation neither its bounds nor a history that outgrows Temporal.
func TestHeldWaitLooksSeldom(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbDeploy, deployInput(nil))
	b.answers["writeImage"] = func(w *world, c *command) {
		c.State = "delivered"
		w.held = true
	}
	const days = 4
	b.env.RegisterDelayedCallback(func() {
		b.mu.Lock()
		if b.failure != nil {
			t.Errorf("the hold cost it its bounds: %+v", b.failure)
		}
		if looks := len(b.kinds); looks > days*24*6+100 {
			t.Errorf("%d looks in %d days", looks, days)
		}
		b.held = false
		succeed(b.world, b.commands[0])
		b.mu.Unlock()
		b.env.SignalWorkflow(fleet.SignalWake, nil)
	}, days*24*time.Hour)
	b.succeeds(t)
}

// TestLongWaitContinues: a wait for the machine continues as new where its
// history grew long, and its bounds go on where they were. A forced retire is no
// exception.
func TestLongWaitContinues(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verb    fleet.Verb
		input   any
		command string
		set     func(w *world)
		within  time.Duration // what is left of the bound
	}{
		"deploy":        {fleet.VerbDeploy, deployInput(nil), "writeImage", nil, 4 * time.Minute},
		"forced retire": {fleet.VerbRetire, fleet.MetalRetireIn{Force: true}, "erase", func(w *world) { w.work.Erase = fleet.EraseMetadata }, 2*time.Hour - 6*time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, c.verb, c.input)
			if c.set != nil {
				c.set(b.world)
			}
			b.answers[c.command] = func(_ *world, cmd *command) {
				cmd.State = "delivered"
				b.env.RegisterDelayedCallback(func() { b.env.SetContinueAsNewSuggested(true) }, 6*time.Minute)
			}
			_, err := b.run(t)
			var again *workflow.ContinueAsNewError
			if !errors.As(err, &again) {
				t.Fatalf("it ended %v, want a continue-as-new", err)
			}
			var in workflows.Input
			if err := converterFrom(again, &in); err != nil {
				t.Fatal(err)
			}
			next := newBench(t, c.verb, c.input)
			if c.set != nil {
				c.set(next.world)
			}
			next.state, next.commands, next.boots, next.calledIn, next.power = b.state, b.commands, b.boots, b.calledIn, b.power
			began := next.env.Now()
			var over time.Duration // when its bound was
			next.onFail = func() { over = next.env.Now().Sub(began) }
			next.onStep = func(step string, _ int) {
				if step == fleet.StepStayOff { // a forced retire goes on
					over = next.env.Now().Sub(began)
				}
			}
			next.after(24*time.Hour, fleet.SignalAbort, nil)
			next.env.ExecuteWorkflow(fleet.WorkflowTypes[c.verb], in)
			if n := len(b.commands); len(next.commands) != n {
				t.Errorf("%d commands, and %d before", len(next.commands), n)
			}
			if over < c.within-time.Minute || over > c.within+5*time.Minute {
				t.Errorf("its bound was over after %s more, want about %s", over, c.within)
			}
		})
	}
}
