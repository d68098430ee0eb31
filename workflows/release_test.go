package workflows_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

func releaseBench(t *testing.T, verb fleet.Verb, input any, erase fleet.EraseMethod) *bench {
	t.Helper()
	b := newBench(t, verb, input)
	b.work.Erase, b.eraseOwed = erase, true
	return b
}

func TestRelease(t *testing.T) {
	t.Parallel()
	full := []fleet.DiskErase{{Serial: "D1", Method: "full", Result: "done"}, {Serial: "D2", Method: "full", Result: "done"}}
	meta := []fleet.DiskErase{{Serial: "D1", Method: "metadata", Result: "done"}, {Serial: "D2", Method: "metadata", Result: "done"}}
	unsupported := &bmc.Error{Kind: bmc.KindUnsupported, Doing: "erase", Cause: "no secure erase"}
	cases := []struct {
		name   string
		verb   fleet.Verb
		input  any
		erase  fleet.EraseMethod
		set    func(b *bench)
		erased []fleet.DiskErase
		boots  int
	}{
		{name: "erased by the BMC", verb: fleet.VerbRelease, input: fleet.MetalReleaseIn{}, erase: fleet.EraseFull,
			set: func(b *bench) { b.work.Capabilities.SecureErase = true }, erased: full},
		{name: "erased by our image", verb: fleet.VerbRelease, input: fleet.MetalReleaseIn{}, erase: fleet.EraseMetadata, erased: meta, boots: 1},
		{name: "the BMC offers it and cannot", verb: fleet.VerbRelease, input: fleet.MetalReleaseIn{}, erase: fleet.EraseMetadata,
			set: func(b *bench) { b.work.Capabilities.SecureErase = true; b.faults["EraseDrives"] = []error{unsupported} }, erased: meta, boots: 1},
		{name: "nothing to erase", verb: fleet.VerbRelease, input: fleet.MetalReleaseIn{}, erase: fleet.EraseNone},
		{name: "a skipped disk that did not answer", verb: fleet.VerbRelease, input: fleet.MetalReleaseIn{SkipDisks: []string{"D2"}}, erase: fleet.EraseMetadata,
			set:    func(b *bench) { b.answers["erase"] = erases(`[{"serial":"D1","method":"metadata","result":"done"}]`) },
			erased: []fleet.DiskErase{meta[0], {Serial: "D2", Method: "skipped", Result: "done", Detail: "the disk did not answer"}}, boots: 1},
		{name: "a skipped disk that answered is erased", verb: fleet.VerbRelease, input: fleet.MetalReleaseIn{SkipDisks: []string{"D2"}}, erase: fleet.EraseMetadata, erased: meta, boots: 1},
		{name: "retire", verb: fleet.VerbRetire, input: fleet.MetalRetireIn{}, erase: fleet.EraseFull,
			set: func(b *bench) { b.work.Capabilities.SecureErase = true }, erased: full},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := releaseBench(t, c.verb, c.input, c.erase)
			if c.set != nil {
				c.set(b)
			}
			b.succeeds(t)
			b.clean(t)
			if diff := cmp.Diff(c.erased, b.erased); diff != "" {
				t.Error(diff)
			}
			if b.power != fleet.PowerOff || b.revoked != 1 || b.boots != c.boots {
				t.Errorf("power %s, revoked %d, boots %d", b.power, b.revoked, b.boots)
			}
			if b.result.ForgetBMCPassword != (c.verb == fleet.VerbRetire) {
				t.Errorf("result %+v", b.result)
			}
		})
	}
}

func erases(disks string) func(*world, *command) {
	return func(_ *world, c *command) { c.State, c.Data = "succeeded", json.RawMessage(`{"disks":`+disks+`}`) }
}

// TestReleaseKeepsWhatIsOwed: a disk that was not erased fails the step, and
// the retry only asks for what is left.
func TestReleaseKeepsWhatIsOwed(t *testing.T) {
	t.Parallel()
	b := releaseBench(t, fleet.VerbRelease, fleet.MetalReleaseIn{}, fleet.EraseMetadata)
	b.answers["erase"] = erases(`[{"serial":"D1","method":"metadata","result":"done"},{"serial":"D2","method":"metadata","result":"failed","detail":"I/O error"}]`)
	b.env.RegisterDelayedCallback(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.failure == nil || b.failure.Code != "not-erased" || !strings.Contains(b.failure.Cause, "disk D2 (I/O error)") {
			t.Errorf("failure %+v", b.failure)
		}
		b.answers["erase"] = erases(`[{"serial":"D2","method":"metadata","result":"done"}]`)
		b.env.SignalWorkflow(fleet.SignalRetry, nil)
	}, time.Hour)
	b.succeeds(t)
	last := b.commands[len(b.commands)-2] // the one before finish
	if diff := cmp.Diff([]string{"D2"}, last.in.Args.(map[string]any)["disks"]); diff != "" {
		t.Error(diff)
	}
}

func TestRotateOnRelease(t *testing.T) {
	t.Parallel()
	b := releaseBench(t, fleet.VerbRelease, fleet.MetalReleaseIn{RotateCredentials: true}, fleet.EraseNone)
	b.succeeds(t)
	if b.password != "new" || b.stored != 1 {
		t.Errorf("password %s, stored %d", b.password, b.stored)
	}
}

// TestForcedRetireReachesItsEnd: with a dead BMC each step is tried once, what
// was not done is recorded, and the node is retired.
func TestForcedRetireReachesItsEnd(t *testing.T) {
	t.Parallel()
	b := releaseBench(t, fleet.VerbRetire, fleet.MetalRetireIn{Force: true}, fleet.EraseFull)
	for range 50 {
		b.faults["Open"] = append(b.faults["Open"], &bmc.Error{Kind: bmc.KindUnreachable, Doing: "reach the BMC", Cause: "no route to host"})
	}
	out, err := b.run(t)
	if err != nil || out.State != "succeeded" {
		t.Fatalf("%+v, %v, failure %+v", out, err, b.failure)
	}
	opens := 0
	for _, l := range b.log {
		if l == "Open" {
			opens++
		}
	}
	if opens > len(b.steps) {
		t.Errorf("%d tries for %d steps", opens, len(b.steps))
	}
	if len(b.result.NotDone) == 0 || !strings.Contains(strings.Join(b.result.NotDone, " "), "no route to host") {
		t.Errorf("not done: %v", b.result.NotDone)
	}
	if len(b.erased) != 2 || b.erased[0].Method != "skipped" || b.erased[0].Result != "failed" {
		t.Errorf("erase records %v", b.erased)
	}
}

func TestRetireLeavesAMachineThatMayBeInUse(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbRetire, fleet.MetalRetireIn{})
	b.work.MaybeInUse, b.work.Erase = true, fleet.EraseNone
	b.succeeds(t)
	if b.power != fleet.PowerOn || len(b.resets) != 0 {
		t.Errorf("power %s, resets %v", b.power, b.resets)
	}
	if len(b.result.NotDone) != 1 || !strings.Contains(b.result.NotDone[0], "power left") {
		t.Errorf("not recorded: %v", b.result.NotDone)
	}
}
