package workflows_test

import (
	"errors"
	"log/slog"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// activityEnv runs single activities over a world.
func activityEnv(w *world) *testsuite.TestActivityEnvironment {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivity(&activities.Record{Ops: w, Nodes: w, Machines: w})
	env.RegisterActivity(&activities.BMC{Gate: w, Ops: w, Nodes: w, Machines: w})
	return env
}

// truth is what counts of a world after an activity.
type truth struct {
	Power            fleet.PowerState
	Media            string
	Override         bmc.BootTarget
	Resets           map[string]int
	State            fleet.OperationState
	Parked           bool
	Boots, Commands  int
	Erased           []fleet.DiskErase
	EraseOwed        bool
	Revoked, Stored  int
	Password         string
	Image            *fleet.ImageView
	Conditions       map[string]fleet.ConditionStatus
	Inventory        fleet.Inventory
	Steps            map[string]fleet.StepState
	LeftBehind       []string
	MaybeInUse       *bool
	IdentitiesStored int
}

func (w *world) truth() truth {
	w.mu.Lock()
	defer w.mu.Unlock()
	steps := map[string]fleet.StepState{}
	for _, s := range w.steps {
		steps[s.Name] = s.State
	}
	return truth{Power: w.power, Media: w.media, Override: w.override.Target, Resets: maps.Clone(w.resets), State: w.state, Parked: w.parked,
		Boots: w.boots, Commands: len(w.commands), Erased: append([]fleet.DiskErase(nil), w.erased...), EraseOwed: w.eraseOwed, Revoked: w.revoked,
		Stored: w.stored, Password: w.password, Image: w.image, Conditions: maps.Clone(w.conditions), Inventory: *w.work.Inventory, Steps: steps,
		LeftBehind: w.left, MaybeInUse: w.maybeInUse, IdentitiesStored: len(w.identity)}
}

// TestEachActivityTwiceHasOneEnd runs each activity twice, as Temporal does
// when the answer of the first run is lost.
func TestEachActivityTwiceHasOneEnd(t *testing.T) {
	t.Parallel()
	var rec *activities.Record
	var act *activities.BMC
	op := activities.OperationIn{OperationID: opID}
	on := activities.Act{OperationID: opID, NodeID: nodeID, Step: "s", Key: "0", Bound: time.Minute, Away: time.Hour}
	deploy := deployInput(nil)
	first := func(w *world) { w.state = fleet.OpRunning }
	sent := func(kind string) func(*world) {
		return func(w *world) {
			first(w)
			c := &command{}
			c.ID, c.Type = "cmd_1", kind
			succeed(w, c)
			w.commands = append(w.commands, c)
		}
	}
	data := activities.DataIn{OperationID: opID, CommandID: "cmd_1"}
	cases := []struct {
		name string
		fn   any
		in   any
		set  func(w *world)
		ends bool // the second run is told that the operation has ended
	}{
		{"Begin", rec.Begin, op, nil, false},
		{"Load", rec.Load, op, nil, false},
		{"Advance", rec.Advance, activities.AdvanceIn{OperationID: opID, Plan: []string{"a", "b"}, Ended: []activities.Ended{{Step: "a", State: fleet.StepDone}}, Next: "b", Touches: true}, nil, false},
		{"EndSteps", rec.EndSteps, activities.EndIn{OperationID: opID, Ended: []activities.Ended{{Step: "a", State: fleet.StepDone}}}, nil, false},
		{"CheckSafePoint", rec.CheckSafePoint, activities.SafePointIn{OperationID: opID, Kinds: []string{"power"}}, nil, false},
		{"Fail and park", rec.Fail, activities.FailIn{OperationID: opID, Step: "a", Reason: activities.NewReason("refused", "no"), Park: true}, nil, false},
		{"Fail", rec.Fail, activities.FailIn{OperationID: opID, Step: "a", Reason: activities.NewReason("refused", "no")}, nil, true},
		{"Succeed", rec.Succeed, activities.SucceedIn{OperationID: opID, Deployed: true}, nil, true},
		{"FinishDrain", rec.FinishDrain, op, nil, false},
		{"FinishDrain of a held node", rec.FinishDrain, op, func(w *world) { first(w); w.held = true }, false},
		{"Abort", rec.Abort, activities.AbortIn{OperationID: opID, Cause: "aborted"}, nil, true},
		{"Retry", rec.Retry, activities.RetryIn{OperationID: opID, Actor: "temporal"}, func(w *world) { w.state, w.parked = fleet.OpFailed, true }, false},
		{"RevokeIdentity", rec.RevokeIdentity, op, nil, false},
		{"RecordEraseOwed", rec.RecordEraseOwed, op, nil, false},
		{"RecordImage", rec.RecordImage, op, nil, false},
		{"RecordErase", rec.RecordErase, activities.EraseIn{OperationID: opID, Disks: []fleet.DiskErase{{Serial: "D1", Method: "full", Result: "done"}}}, nil, false},
		{"StoreCredentials", rec.StoreCredentials, op, nil, false},
		{"Send", rec.Send, activities.SendIn{OperationID: opID, Key: "k", Type: activities.CommandConfigDrive}, nil, false},
		{"Watch", rec.Watch, activities.WatchIn{OperationID: opID, What: activities.WatchReport}, nil, false},
		{"StopMachine", rec.StopMachine, activities.StopIn{OperationID: opID, Boots: true}, nil, false},
		{"Present", rec.Present, op, nil, false},
		{"TakeInventory", rec.TakeInventory, data, sent(activities.CommandInventory), false},
		{"TakeErased", rec.TakeErased, data, sent(activities.CommandErase), false},
		{"CheckWritten", rec.CheckWritten, data, sent(activities.CommandWriteImage), false},
		{"Identify", act.Identify, activities.IdentifyIn{Act: on, Presume: true}, nil, false},
		{"ReadInventory", act.ReadInventory, on, nil, false},
		{"CheckHardware", act.CheckHardware, activities.HardwareIn{Act: on}, nil, false},
		{"SetPower off", act.SetPower, activities.PowerIn{Act: on, Aim: bmc.AimOff}, nil, false},
		{"SetPower reset", act.SetPower, activities.PowerIn{Act: on, Aim: bmc.AimReset}, nil, false},
		{"SetPower cycle", act.SetPower, activities.PowerIn{Act: on, Aim: bmc.AimCycle}, nil, false},
		{"SwitchOff", act.SwitchOff, activities.SwitchOffIn{Act: on, Graceful: time.Second}, nil, false},
		{"PrepareBoot", act.PrepareBoot, activities.PrepareBootIn{Act: on, Number: 1, Via: activities.ViaVirtualMedia}, nil, false},
		{"ClearBoot", act.ClearBoot, on, nil, false},
		{"ProveOverride", act.ProveOverride, on, nil, false},
		{"BootDisk", act.BootDisk, activities.SwitchOffIn{Act: on}, nil, false},
		{"BootState", act.BootState, on, nil, false},
		{"EraseByBMC", act.EraseByBMC, activities.EraseByBMCIn{Act: on, Serials: []string{"D1", "D2"}}, nil, false},
		{"ProveCredentials", act.ProveCredentials, on, nil, false},
		{"Rotate", act.Rotate, on, nil, false},
		{"EndSessions", act.EndSessions, on, nil, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(fleet.VerbDeploy, deploy)
			first(w)
			if c.set != nil {
				c.set(w)
			}
			env := activityEnv(w)
			if _, err := env.ExecuteActivity(c.fn, c.in); err != nil {
				t.Fatalf("first run: %v", err)
			}
			once := w.truth()
			_, err := env.ExecuteActivity(c.fn, c.in)
			if c.ends != (err != nil && activities.ReasonOf(err).Ends()) {
				t.Errorf("second run: %v", err)
			}
			if diff := cmp.Diff(once, w.truth()); diff != "" {
				t.Errorf("the second run changed (-once +twice):\n%s", diff)
			}
		})
	}
}

// TestResetIsSentOnce: the act succeeded and its bookkeeping failed; the repeat
// sends no second reset. (Case C21.)
func TestResetIsSentOnce(t *testing.T) {
	t.Parallel()
	for _, aim := range []bmc.PowerAim{bmc.AimReset, bmc.AimCycle} {
		w := newWorld(fleet.VerbPower, fleet.MetalPowerIn{Action: string(aim)})
		w.state = fleet.OpRunning
		w.faults["RecordPower"] = []error{errors.New("postgres is away"), errors.New("postgres is away")}
		env := activityEnv(w)
		var act *activities.BMC
		in := activities.PowerIn{Aim: aim, Act: activities.Act{OperationID: opID, NodeID: nodeID, Step: "power", Key: "0", Bound: time.Minute}}
		for range 2 {
			_, err := env.ExecuteActivity(act.SetPower, in)
			var app *temporal.ApplicationError
			if !errors.As(err, &app) || app.NonRetryable() {
				t.Fatalf("%s with Postgres away must be tried again, got %v", aim, err)
			}
		}
		if _, err := env.ExecuteActivity(act.SetPower, in); err != nil {
			t.Fatal(err)
		}
		if w.resets[string(aim)] != 1 {
			t.Errorf("%s was sent %d times", aim, w.resets[string(aim)])
		}
	}
}

// TestShutDownIsAskedThenForced: a system that does not shut down is forced off; a
// repeat goes on with forcing, and a BMC that was lost while it was asked is no
// word to force.
func TestShutDownIsAskedThenForced(t *testing.T) {
	t.Parallel()
	var act *activities.BMC
	in := activities.SwitchOffIn{Graceful: time.Minute, Act: activities.Act{OperationID: opID, NodeID: nodeID, Step: "switch-off", Key: "0", Bound: time.Hour}}
	lost := &bmc.Error{Kind: bmc.KindUnreachable, Doing: "switch off", Cause: "connection reset"}
	ask := func(faults map[string][]error) (*world, *testsuite.TestActivityEnvironment, error) {
		w := newWorld(fleet.VerbRelease, fleet.MetalReleaseIn{})
		w.state, w.faults = fleet.OpRunning, faults
		env := activityEnv(w)
		_, err := env.ExecuteActivity(act.SwitchOff, in)
		return w, env, err
	}
	w, env, err := ask(map[string][]error{"Reset softOff": {&bmc.Error{Kind: bmc.KindTimeout, Doing: "shut down", Cause: "still on"}}, "Reset off": {lost}})
	if err == nil {
		t.Fatal("a forced switch-off whose answer was lost ended well")
	}
	if _, err := env.ExecuteActivity(act.SwitchOff, in); err != nil || w.power != fleet.PowerOff || count(w.log, "SetPower softOff") != 1 {
		t.Errorf("the repeat: %v, the machine is %s; %v", err, w.power, w.log)
	}
	w, _, err = ask(map[string][]error{"Reset softOff": {lost}})
	if activities.ReasonOf(err).Code != string(bmc.KindUnreachable) || count(w.log, "SetPower off") != 0 {
		t.Errorf("a BMC lost while the system was asked: %v; %v", err, w.log)
	}
}

// TestRotationCutOff: the BMC took the new password and storing it failed; the
// repeat finds that the staged one works and stores it.
func TestRotationCutOff(t *testing.T) {
	t.Parallel()
	w := newWorld(fleet.VerbSetCredentials, fleet.MetalSetCredentialsIn{Username: "admin", Rotate: true})
	w.state = fleet.OpRunning
	w.faults["StoreCredentials"] = []error{errors.New("postgres is away")}
	env := activityEnv(w)
	var act *activities.BMC
	in := activities.Act{OperationID: opID, NodeID: nodeID, Step: "rotate-credentials", Key: "0", Bound: time.Minute}
	if _, err := env.ExecuteActivity(act.Rotate, in); err == nil {
		t.Fatal("the first run says it stored")
	}
	if _, err := env.ExecuteActivity(act.Rotate, in); err != nil {
		t.Fatal(err)
	}
	if count(w.log, "SetPassword") != 1 || w.stored != 1 || w.password != "new" {
		t.Errorf("set %d times, stored %d, password %s", count(w.log, "SetPassword"), w.stored, w.password)
	}
}
