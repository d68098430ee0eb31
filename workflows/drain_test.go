package workflows_test

import (
	"errors"
	"testing"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/workflows"
)

// TestDrainIsWoken: a drain looks again when it is woken, and without a signal
// after five minutes; it never speaks to the BMC.
func TestDrainIsWoken(t *testing.T) {
	t.Parallel()
	for name, woken := range map[string]bool{"by a signal": true, "by the poll": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, fleet.VerbDrain, fleet.NodeChangeIn{})
			b.held = true
			began := b.env.Now()
			b.env.RegisterDelayedCallback(b.release, time.Minute)
			if woken {
				b.after(time.Minute, fleet.SignalWake, workflows.SignalInput{DispatchID: 1})
			}
			b.succeeds(t)
			want := 5 * time.Minute
			if woken {
				want = time.Minute
			}
			if took := b.env.Now().Sub(began); took != want || b.looks != 2 {
				t.Errorf("it took %s and %d looks, want %s and 2", took, b.looks, want)
			}
			if len(b.log) != 0 {
				t.Errorf("a drain did %v", b.log)
			}
		})
	}
}

// TestDrainEnds: the end signal of an uncordon closes it without another look;
// an abort from the temporal CLI does not.
func TestDrainEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbDrain, fleet.NodeChangeIn{})
	b.held = true
	b.after(time.Minute, fleet.SignalAbort, nil)
	b.env.RegisterDelayedCallback(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.state != fleet.OpWaiting {
			t.Errorf("after an abort the drain is %s, want waiting", b.state)
		}
		b.superseded = true
	}, 2*time.Minute)
	b.after(3*time.Minute, fleet.SignalEnd, workflows.SignalInput{DispatchID: 1})
	looks := 0
	b.env.RegisterDelayedCallback(func() { looks = b.looks }, 150*time.Second)
	out, err := b.run(t)
	if err != nil || out.State != "superseded" || b.looks != looks {
		t.Errorf("%+v, %v, %d looks after the end", out, err, b.looks-looks)
	}
	if len(b.log) != 0 {
		t.Errorf("a drain did %v", b.log)
	}
}

// TestDrainCancelled: a drain that is cancelled through Temporal ends aborted.
func TestDrainCancelled(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbDrain, fleet.NodeChangeIn{})
	b.held = true
	b.env.RegisterDelayedCallback(b.env.CancelWorkflow, time.Minute)
	if _, err := b.run(t); !temporal.IsCanceledError(err) || b.state != fleet.OpAborted {
		t.Errorf("the workflow ended %v, its operation %s", err, b.state)
	}
}

// TestLongDrainContinues: a drain that waits for weeks continues as new, and
// goes on with its step there.
func TestLongDrainContinues(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbDrain, fleet.NodeChangeIn{})
	b.held = true
	b.env.RegisterDelayedCallback(func() { b.env.SetContinueAsNewSuggested(true) }, 24*time.Hour)
	_, err := b.run(t)
	var again *workflow.ContinueAsNewError
	if !errors.As(err, &again) {
		t.Fatalf("it ended %v, want a continue-as-new", err)
	}
	var in workflows.Input
	if err := converterFrom(again, &in); err != nil {
		t.Fatal(err)
	}
	next := newBench(t, fleet.VerbDrain, fleet.NodeChangeIn{})
	next.state = b.state
	next.env.ExecuteWorkflow(fleet.WorkflowTypes[fleet.VerbDrain], in)
	if err := next.env.GetWorkflowError(); err != nil || next.state != fleet.OpSucceeded {
		t.Errorf("the next run ended %v, its operation %s", err, next.state)
	}
}
