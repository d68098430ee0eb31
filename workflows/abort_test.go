package workflows_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/workflows"
)

// abortable are operations whose plans together hold every step that takes an
// abort.
var abortable = []struct {
	name  string
	verb  fleet.Verb
	input any
	set   func(w *world)
}{
	{"enroll", fleet.VerbEnroll, fleet.MetalEnrollIn{}, nil},
	{"inspect", fleet.VerbInspect, fleet.MetalInspectIn{Mode: "both"}, nil},
	{"commission", fleet.VerbCommission, fleet.MetalCommissionIn{Tests: []string{"cpu"}}, nil},
	{"deploy", fleet.VerbDeploy, deployInput(nil), nil},
	{"deploy iso", fleet.VerbDeploy, deployInput(func(in *fleet.MetalDeployIn) { in.Image.Format = "iso" }), nil},
	{"rescue", fleet.VerbRescue, fleet.MetalRescueIn{SSHKeys: []string{"ssh-ed25519 AAAA"}}, nil},
	{"unrescue", fleet.VerbUnrescue, fleet.MetalVerbIn{}, nil},
	{"release", fleet.VerbRelease, fleet.MetalReleaseIn{RotateCredentials: true}, func(w *world) { w.work.Erase = fleet.EraseMetadata }},
	{"power", fleet.VerbPower, fleet.MetalPowerIn{Action: "cycle"}, nil},
	{"set credentials", fleet.VerbSetCredentials, fleet.MetalSetCredentialsIn{Username: "admin", Rotate: true}, nil},
}

// stepNames runs an operation once and returns the steps it went through.
func stepNames(t *testing.T, verb fleet.Verb, input any, set func(*world)) []string {
	t.Helper()
	b := newBench(t, verb, input)
	if set != nil {
		set(b.world)
	}
	b.succeeds(t)
	return b.done()
}

// TestAbortAtEachStep aborts each operation while each of its steps runs: it
// ends aborted with nothing of ours on the machine.
func TestAbortAtEachStep(t *testing.T) {
	t.Parallel()
	for _, c := range abortable {
		for _, step := range stepNames(t, c.verb, c.input, c.set) {
			t.Run(c.name+" at "+step, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, c.verb, c.input)
				if c.set != nil {
					c.set(b.world)
				}
				hang(b, step)
				b.onStep = func(started string, _ int) {
					if started == step {
						b.env.SignalWorkflow(fleet.SignalAbort, workflows.SignalInput{DispatchID: 3, Actor: "dev:bob"})
					}
				}
				out, err := b.run(t)
				if err != nil || out.State != "aborted" || b.cause != "aborted by dev:bob" {
					t.Fatalf("%+v, %v, cause %q", out, err, b.cause)
				}
				if len(b.left) != 0 {
					t.Errorf("left behind: %v", b.left)
				}
				b.clean(t)
				if b.boots != b.voided {
					t.Errorf("boot %d armed, voided to %d", b.boots, b.voided)
				}
			})
		}
	}
}

// hang makes the waits of a step last until they are aborted.
func hang(b *bench, step string) {
	switch step {
	case fleet.StepAwaitCallIn:
		b.deaf = true
	case fleet.StepConfirm:
		b.reported = false
	case fleet.StepWriteImage:
		b.answers["writeImage"] = say("delivered", "")
	case fleet.StepRunTests:
		b.answers["test"] = say("delivered", "")
	case fleet.StepEraseInBand:
		b.answers["erase"] = say("delivered", "")
	}
}

// TestAbortSaysWhatItLeft: a BMC that is away when the abort cleans up.
func TestAbortSaysWhatItLeft(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbDeploy, deployInput(nil))
	b.deaf = true
	b.env.RegisterDelayedCallback(func() {
		b.mu.Lock()
		b.faults["EjectMedia"] = []error{&bmc.Error{Kind: bmc.KindRefused, Doing: "eject the medium", Cause: "the slot is stuck"}}
		b.mu.Unlock()
		b.env.SignalWorkflow(fleet.SignalAbort, nil)
	}, 5*time.Minute)
	if out, err := b.run(t); err != nil || out.State != "aborted" {
		t.Fatalf("%+v, %v", out, err)
	}
	if len(b.left) != 1 || b.left[0] != "virtual media and boot override: eject the medium: the slot is stuck" {
		t.Errorf("left behind: %v", b.left)
	}
}

// TestFailureSaysWhatItLeft: a BMC that is away when an operation parks keeps its
// medium, and the operation says so; what could be cleaned is not told.
func TestFailureSaysWhatItLeft(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  *bmc.Error
		want []string
	}{
		"away":    {&bmc.Error{Kind: bmc.KindTrust, Doing: "connect", Cause: "another certificate"}, []string{"virtual media and boot override: connect: another certificate"}},
		"refused": {&bmc.Error{Kind: bmc.KindRefused, Doing: "switch on", Cause: "no"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, fleet.VerbDeploy, deployInput(nil))
			b.faults["SetPower on"] = []error{c.err}
			b.after(time.Hour, fleet.SignalEnd, nil)
			if out, err := b.run(t); err != nil || out.State != "superseded" {
				t.Fatalf("%+v, %v", out, err)
			}
			if b.failure == nil || !slices.Equal(b.left, c.want) || (b.media == "") != (c.want == nil) {
				t.Errorf("failure %+v, left behind %q, the medium is %q", b.failure, b.left, b.media)
			}
		})
	}
}

// TestTemporalCancelIsAnAbort, of a retire a failure.
func TestTemporalCancelIsAnAbort(t *testing.T) {
	t.Parallel()
	t.Run("deploy", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, fleet.VerbDeploy, deployInput(nil))
		b.deaf = true
		b.env.RegisterDelayedCallback(b.env.CancelWorkflow, 5*time.Minute)
		_, err := b.run(t)
		if !temporal.IsCanceledError(errors.Unwrap(err)) && !temporal.IsCanceledError(err) {
			t.Errorf("error %v", err)
		}
		if b.state != fleet.OpAborted {
			t.Errorf("the operation is %s", b.state)
		}
		b.clean(t)
	})
	t.Run("retire", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, fleet.VerbRetire, fleet.MetalRetireIn{})
		b.work.Erase, b.deaf = fleet.EraseMetadata, true
		b.after(time.Minute, fleet.SignalAbort, nil) // ignored
		b.env.RegisterDelayedCallback(b.env.CancelWorkflow, 5*time.Minute)
		_, _ = b.run(t)
		if b.state != fleet.OpFailed || b.failure.Code != "cancelled" || b.parked {
			t.Errorf("the operation is %s, %+v", b.state, b.failure)
		}
		b.clean(t)
	})
	t.Run("retire with a stuck slot", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, fleet.VerbRetire, fleet.MetalRetireIn{})
		b.work.Erase, b.deaf = fleet.EraseMetadata, true
		b.env.RegisterDelayedCallback(func() {
			b.mu.Lock()
			b.faults["EjectMedia"] = []error{&bmc.Error{Kind: bmc.KindRefused, Doing: "eject the medium", Cause: "the slot is stuck"}}
			b.mu.Unlock()
			b.env.CancelWorkflow()
		}, 5*time.Minute)
		_, _ = b.run(t)
		if b.state != fleet.OpFailed || len(b.left) != 1 {
			t.Errorf("the operation is %s, left behind %q", b.state, b.left)
		}
	})
}

// TestCancelComesTooLate: an operation whose last step is done ends well, whatever
// comes while that is recorded.
func TestCancelComesTooLate(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbPower, fleet.MetalPowerIn{Action: "off"})
	b.env.SetOnActivityStartedListener(func(info *activity.Info, _ context.Context, _ converter.EncodedValues) {
		if info.ActivityType.Name == "EndSessions" {
			b.env.CancelWorkflow()
		}
	})
	b.succeeds(t)
	if b.state != fleet.OpSucceeded {
		t.Errorf("the operation is %s", b.state)
	}
}
