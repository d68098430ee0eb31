package workflows_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/workflows"
)

// TestHoldMakesItWait: no step that touches the machine starts while it is
// held, and the wake makes it go on.
func TestHoldMakesItWait(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbCommission, fleet.MetalCommissionIn{})
	b.held = true
	b.env.RegisterDelayedCallback(func() {
		b.mu.Lock()
		if len(b.resets) != 0 || b.waiting == nil || b.waiting.Actor != "dev:bob" || b.state != fleet.OpWaiting {
			t.Errorf("while held: resets %v, waiting for %+v", b.resets, b.waiting)
		}
		b.held = false
		b.mu.Unlock()
		if p := b.progress(t); !strings.Contains(p.Waiting, "dev:bob") {
			t.Errorf("progress %+v", p)
		}
		b.env.SignalWorkflow(fleet.SignalWake, workflows.SignalInput{DispatchID: 1})
	}, 3*time.Hour)
	b.succeeds(t)
	if !slices.Contains(b.kinds, "power") {
		t.Errorf("limits asked for: %v", b.kinds)
	}
}

// TestHoldStopsTheClock: the call-in's 45 minutes stand still while held.
func TestHoldStopsTheClock(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbRescue, fleet.MetalRescueIn{SSHKeys: []string{"ssh-ed25519 AAAA"}})
	b.deaf = true
	b.env.RegisterDelayedCallback(func() { b.mu.Lock(); b.held = true; b.mu.Unlock() }, 10*time.Minute)
	b.env.RegisterDelayedCallback(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.failure != nil {
			t.Errorf("failed while held: %+v", b.failure)
		}
		b.held, b.calledIn[1] = false, true
	}, 3*time.Hour)
	b.succeeds(t)
}

// TestSupersededTouchesNothing: the end signal closes the workflow wherever it
// is, and so does an operation that is another's or that Postgres does not
// know.
func TestSupersededTouchesNothing(t *testing.T) {
	t.Parallel()
	t.Run("signal", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, fleet.VerbDeploy, deployInput(nil))
		b.deaf = true
		var calls int
		b.env.RegisterDelayedCallback(func() {
			b.mu.Lock()
			calls = len(b.log)
			b.mu.Unlock()
			b.env.SignalWorkflow(fleet.SignalEnd, workflows.SignalInput{DispatchID: 9, SupersededBy: "op_2"})
		}, 5*time.Minute)
		out, err := b.run(t)
		if err != nil || out.State != "superseded" || out.Detail != "op_2" || len(b.log) != calls {
			t.Errorf("%+v, %v, calls after the end: %v", out, err, b.log[calls:])
		}
	})
	t.Run("fence", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, fleet.VerbDeploy, deployInput(nil))
		b.onStep = func(step string, _ int) {
			if step == fleet.StepSwitchOff {
				b.mu.Lock()
				b.superseded = true
				b.mu.Unlock()
			}
		}
		if out, err := b.run(t); err != nil || out.State != "superseded" || len(b.resets) != 0 {
			t.Errorf("%+v, %v, resets %v", out, err, b.resets)
		}
	})
	t.Run("unknown", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, fleet.VerbDeploy, deployInput(nil))
		b.gone = true
		if out, err := b.run(t); err != nil || out.State != "superseded" || len(b.log) != 0 {
			t.Errorf("%+v, %v, calls %v", out, err, b.log)
		}
	})
}

// TestRepeatedRetryIsOne: a dispatch row that is delivered twice retries once,
// and a retry while nothing is parked is ignored.
func TestRepeatedRetryIsOne(t *testing.T) {
	t.Parallel()
	refused := &bmc.Error{Kind: bmc.KindRefused, Doing: "read", Cause: "no"}
	b := newBench(t, fleet.VerbInspect, fleet.MetalInspectIn{})
	b.faults["Inventory"] = []error{refused, refused}
	b.after(0, fleet.SignalRetry, nil) // not parked yet or already: judged by Postgres
	b.after(time.Hour, fleet.SignalRetry, workflows.SignalInput{DispatchID: 4, Actor: "dev:bob"})
	b.after(2*time.Hour, fleet.SignalRetry, workflows.SignalInput{DispatchID: 4, Actor: "dev:bob"})
	b.env.RegisterDelayedCallback(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if got := len(b.faults["Inventory"]); got > 0 && !b.parked {
			t.Errorf("parked %v with %d faults left", b.parked, got)
		}
	}, 3*time.Hour)
	b.after(4*time.Hour, fleet.SignalRetry, nil)
	b.succeeds(t)
	if n := count(b.log, "retry by dev:bob"); n != 1 {
		t.Errorf("retried %d times for one dispatch row", n)
	}
}

func count(log []string, what string) (n int) {
	for _, l := range log {
		if l == what {
			n++
		}
	}
	return n
}

// TestRefusedRetryStaysParked and says why in progress.
func TestRefusedRetryStaysParked(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbInspect, fleet.MetalInspectIn{})
	b.faults["Inventory"] = []error{&bmc.Error{Kind: bmc.KindRefused, Doing: "read", Cause: "no"}}
	b.refuse = "power is live"
	b.after(time.Hour, fleet.SignalRetry, "not even our input")
	b.env.RegisterDelayedCallback(func() {
		if p := b.progress(t); p.Parked == nil || p.Parked.Refused != "power is live" {
			t.Errorf("progress %+v", p)
		}
		b.mu.Lock()
		b.refuse = ""
		b.mu.Unlock()
		b.env.SignalWorkflow(fleet.SignalRetry, nil)
	}, 2*time.Hour)
	b.succeeds(t)
}

// TestLongParkContinuesAsNew, and the new run still takes the retry.
func TestLongParkContinuesAsNew(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbInspect, fleet.MetalInspectIn{})
	b.faults["Inventory"] = []error{&bmc.Error{Kind: bmc.KindRefused, Doing: "read", Cause: "no"}}
	_, err := b.run(t)
	var again *workflow.ContinueAsNewError
	if !errors.As(err, &again) {
		t.Fatalf("after a day of parking: %v", err)
	}
	next := newBench(t, fleet.VerbInspect, fleet.MetalInspectIn{})
	next.world.state, next.world.parked, next.world.steps = fleet.OpFailed, true, b.steps
	next.after(time.Hour, fleet.SignalRetry, nil)
	next.env.ExecuteWorkflow(again.WorkflowType.Name, mustInput(t, again))
	if err := next.env.GetWorkflowError(); err != nil || next.state != fleet.OpSucceeded {
		t.Errorf("the new run: %v, operation %s", err, next.state)
	}
}

func mustInput(t *testing.T, e *workflow.ContinueAsNewError) (in workflows.Input) {
	t.Helper()
	if err := converterFrom(e, &in); err != nil {
		t.Fatal(err)
	}
	if in.Carried == nil || in.Carried.Parked == nil {
		t.Fatalf("nothing carried: %+v", in)
	}
	return in
}

// TestVerbsThatLeaveTheStateEndOnFailure without parking.
func TestVerbsThatLeaveTheStateEndOnFailure(t *testing.T) {
	t.Parallel()
	timeout := &bmc.Error{Kind: bmc.KindTimeout, Doing: "shut down", Cause: "still on"}
	for name, c := range map[string]struct {
		verb   fleet.Verb
		input  any
		faults map[string][]error
		code   string
		remedy string
	}{
		"soft off never escalates": {fleet.VerbPower, fleet.MetalPowerIn{Action: "softOff"}, map[string][]error{"SetPower softOff": {timeout}}, "timeout", "action: off"},
		"refused login":            {fleet.VerbSetCredentials, fleet.MetalSetCredentialsIn{Username: "admin"}, map[string][]error{"Identify": {&bmc.Error{Kind: bmc.KindAuth, Doing: "log in", Cause: "401"}}}, "authentication", "setCredentials"},
		"another account":          {fleet.VerbSetCredentials, fleet.MetalSetCredentialsIn{Username: "root", Rotate: true}, nil, "unsupported", "without rotate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, c.verb, c.input)
			for m, f := range c.faults {
				b.faults[m] = f
			}
			_, err := b.run(t)
			var app *temporal.ApplicationError
			if !errors.As(err, &app) || app.Type() != c.code {
				t.Errorf("error %v", err)
			}
			if b.parked || b.failure == nil || b.failure.Code != c.code || !strings.Contains(b.failure.Remedy, c.remedy) || b.resets["off"] != 0 {
				t.Errorf("failure %+v, parked %v, resets %v", b.failure, b.parked, b.resets)
			}
			if b.sessions != 0 || b.stored != 0 {
				t.Errorf("sessions %d, stored %d", b.sessions, b.stored)
			}
		})
	}
}
