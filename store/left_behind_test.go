package store_test

import (
	"slices"
	"testing"

	"github.com/bettercompute/compute/fleet"
)

// left is what the operations before leave for one to clean.
func (o *ops) left(id string) []string {
	o.t.Helper()
	w, err := o.LoadWork(o.t.Context(), id)
	if err != nil {
		o.t.Fatal(err)
	}
	return w.LeftBehind
}

func (o *ops) must(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatal(err)
	}
}

// What an abort could not clean is handed on until an operation cleaned it, also
// past one that failed before it could.
func TestLeftBehindUntilCleaned(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	media := []string{"virtual media and boot override: the slot is stuck"}
	o.mustBegin("op_1", fleet.VerbDeploy)
	o.must(o.AbortOperation(t.Context(), "op_1", "by a person", media))
	o.mustBegin("op_2", fleet.VerbPower)
	if got := o.left("op_2"); !slices.Equal(got, media) {
		t.Errorf("the next operation is told %q", got)
	}
	o.must(o.FailOperation(t.Context(), "op_2", fleet.OperationFailure{Step: fleet.StepClearLeft, Code: "unreachable"}))
	o.mustBegin("op_3", fleet.VerbPower)
	if got := o.left("op_3"); !slices.Equal(got, media) {
		t.Errorf("after one that failed before it cleaned, the next is told %q", got)
	}
	o.must(o.EndStep(t.Context(), "op_3", fleet.StepClearLeft, fleet.StepDone, ""))
	o.must(o.SucceedOperation(t.Context(), "op_3", fleet.OperationResult{}))
	o.mustBegin("op_4", fleet.VerbPower)
	if got := o.left("op_4"); len(got) != 0 {
		t.Errorf("what was cleaned is to be cleaned again: %q", got)
	}
}

// What a parked operation left is its successor's to clean, whoever ends it.
func TestParkedLeavesBehind(t *testing.T) {
	t.Parallel()
	media := []string{"virtual media and boot override: no answer"}
	for name, end := range map[string]func(o *ops){
		"superseded": func(*ops) {},
		"aborted":    func(o *ops) { o.abort("op_1") },
		"terminated": func(o *ops) {
			deliverAll(o.t, o)
			_, err := o.EndLost(o.t.Context(), "op_1", "workflow-closed", "terminated")
			o.must(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOps(t)
			o.mustBegin("op_1", fleet.VerbDeploy)
			o.must(o.FailOperation(t.Context(), "op_1", fleet.OperationFailure{Code: "unreachable", Park: true, LeftBehind: media}))
			end(o)
			o.mustBegin("op_2", fleet.VerbRelease)
			if got := o.left("op_2"); !slices.Equal(got, media) {
				t.Errorf("the next operation is told %q", got)
			}
		})
	}
}

// A workflow that Temporal lost may have left the medium that it prepared, and
// nothing once it had cleaned up after itself.
func TestLostLeavesBehind(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verb   fleet.Verb
		done   []string
		at     string
		leaves bool
	}{
		"before the medium":  {fleet.VerbDeploy, nil, fleet.StepSwitchOff, false},
		"with the medium":    {fleet.VerbDeploy, []string{fleet.StepSwitchOff, fleet.StepPrepareBoot}, fleet.StepAwaitCallIn, true},
		"preparing":          {fleet.VerbDeploy, []string{fleet.StepSwitchOff}, fleet.StepPrepareBoot, true},
		"from the disk":      {fleet.VerbDeploy, []string{fleet.StepPrepareBoot, fleet.StepBootDisk}, fleet.StepConfirm, false},
		"proving":            {fleet.VerbCommission, nil, fleet.StepProveOverride, true},
		"proved":             {fleet.VerbCommission, []string{fleet.StepProveOverride}, fleet.StepCheckHardware, false},
		"rescued, cleared":   {fleet.VerbRescue, []string{fleet.StepPrepareBoot, fleet.StepClearBoot}, "", false},
		"out of band only":   {fleet.VerbInspect, nil, fleet.StepReadInventory, false},
		"clearing it, still": {fleet.VerbRescue, []string{fleet.StepPrepareBoot}, fleet.StepClearBoot, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOps(t)
			o.mustBegin("op_1", c.verb)
			deliverAll(t, o)
			for _, step := range c.done {
				_, err := o.StartStep(t.Context(), "op_1", step, 0)
				o.must(err)
				o.must(o.EndStep(t.Context(), "op_1", step, fleet.StepDone, ""))
			}
			if c.at != "" {
				_, err := o.StartStep(t.Context(), "op_1", c.at, 0)
				o.must(err)
			}
			if ended, err := o.EndLost(t.Context(), "op_1", "workflow-closed", "terminated"); err != nil || !ended {
				t.Fatalf("ended %v, %v", ended, err)
			}
			o.mustBegin("op_2", fleet.VerbRelease)
			if got := o.left("op_2"); (len(got) > 0) != c.leaves {
				t.Errorf("the next operation is told %q", got)
			}
		})
	}
}

// A parked operation that is superseded ends with all that it armed: its boot
// gives no file any more, its commands are cancelled and its secrets gone.
func TestSupersededDisarms(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_1", fleet.VerbDeploy)
	boot, err := o.ArmBoot(t.Context(), "op_1", 1)
	o.must(err)
	command, err := o.SendCommand(t.Context(), "op_1", fleet.CommandIn{Key: "k", Type: "finish", Args: struct{}{}, Expires: 1 << 40})
	o.must(err)
	o.must(o.FailOperation(t.Context(), "op_1", fleet.OperationFailure{Step: fleet.StepSwitchOn, Code: "timeout", Park: true}))
	if err := o.BootLive(t.Context(), boot.ID); err != nil {
		t.Fatalf("a parked operation's boot: %v", err)
	}
	o.mustBegin("op_2", fleet.VerbRelease)
	if err := o.BootLive(t.Context(), boot.ID); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("the superseded operation's boot: %v, want NOT_FOUND", err)
	}
	if c, err := o.Command(t.Context(), command); err != nil || c.State != "cancelled" {
		t.Errorf("its command is %s, %v", c.State, err)
	}
	if _, err := o.OperationSecret(t.Context(), "op_1", fleet.SecretPassword); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("its secret: %v, want NOT_FOUND", err)
	}
}
