package workflows_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
)

func ptr[T any](v T) *T { return &v }

// names are the steps that were done, skipped ones left out.
func (b *bench) done() []string {
	var out []string
	for _, s := range b.steps {
		if s.State == fleet.StepDone {
			out = append(out, s.Name)
		}
	}
	return out
}

// TestVerbsEndWell runs each verb to its good end and compares what is then
// true of the machine.
func TestVerbsEndWell(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name  string
		verb  fleet.Verb
		input any
		set   func(b *bench)
		check func(t *testing.T, b *bench)
	}{
		{name: "enroll a machine that is off", verb: fleet.VerbEnroll, input: fleet.MetalEnrollIn{},
			set: func(b *bench) { b.power = fleet.PowerOff; b.work.Capabilities = fleet.Capabilities{} },
			check: func(t *testing.T, b *bench) {
				if len(b.identity) != 1 || *b.maybeInUse || b.result.EndChain {
					t.Errorf("identity %v, in use %v, chain ended %v", b.identity, *b.maybeInUse, b.result.EndChain)
				}
			}},
		{name: "enroll a machine that is on ends the chain", verb: fleet.VerbEnroll, input: fleet.MetalEnrollIn{},
			check: func(t *testing.T, b *bench) {
				if !*b.maybeInUse || !b.result.EndChain {
					t.Errorf("in use %v, chain ended %v", *b.maybeInUse, b.result.EndChain)
				}
				if got := b.steps[len(b.steps)-1].Detail; !strings.Contains(got, "inUse: false") {
					t.Errorf("the last step's detail does not say why nothing follows: %q", got)
				}
			}},
		{name: "enroll with inUse false", verb: fleet.VerbEnroll, input: fleet.MetalEnrollIn{InUse: ptr(false)},
			check: func(t *testing.T, b *bench) {
				if *b.maybeInUse || b.result.EndChain {
					t.Errorf("in use %v, chain ended %v", *b.maybeInUse, b.result.EndChain)
				}
			}},
		{name: "inspect out of band", verb: fleet.VerbInspect, input: fleet.MetalInspectIn{}, check: func(t *testing.T, b *bench) {
			if diff := cmp.Diff([]string{"read-inventory"}, b.done()); diff != "" {
				t.Error(diff)
			}
		}},
		{name: "inspect after a failed enroll does enroll's checks", verb: fleet.VerbInspect, input: fleet.MetalInspectIn{},
			set: func(b *bench) { b.work.Capabilities = fleet.Capabilities{} },
			check: func(t *testing.T, b *bench) {
				if diff := cmp.Diff([]string{"identify", "read-inventory"}, b.done()); diff != "" {
					t.Error(diff)
				}
			}},
		{name: "inspect in band and out of band", verb: fleet.VerbInspect, input: fleet.MetalInspectIn{Mode: "both"}, check: func(t *testing.T, b *bench) {
			if b.power != fleet.PowerOff {
				t.Errorf("the machine is %s after an in-band inspection", b.power)
			}
		}},
		{name: "commission", verb: fleet.VerbCommission, input: fleet.MetalCommissionIn{},
			set: func(b *bench) { b.work.Pool = &fleet.PoolWant{GPUModel: "H100 SXM5", GPUsPerNode: 2} },
			check: func(t *testing.T, b *bench) {
				if b.resets["on"] != 1 || b.power != fleet.PowerOff || !slices.Contains(b.log, "SetBoot cd") {
					t.Errorf("resets %v, power %s, calls %v", b.resets, b.power, b.log)
				}
				if b.conditions["InventoryMatches"] != fleet.ConditionTrue || b.conditions["HardwareHealthy"] != fleet.ConditionTrue {
					t.Errorf("conditions %v", b.conditions)
				}
			}},
		{name: "commission with tests", verb: fleet.VerbCommission, input: fleet.MetalCommissionIn{Tests: []string{"memory"}}, check: func(t *testing.T, b *bench) {
			if len(b.commands) != 2 || b.commands[0].Type != "test" {
				t.Errorf("commands %v", b.commands)
			}
		}},
		{name: "rescue", verb: fleet.VerbRescue, input: fleet.MetalRescueIn{SSHKeys: []string{"ssh-ed25519 AAAA"}}, check: func(t *testing.T, b *bench) {
			if b.power != fleet.PowerOn {
				t.Errorf("the machine is %s in rescue", b.power)
			}
		}},
		{name: "unrescue", verb: fleet.VerbUnrescue, input: fleet.MetalVerbIn{}, check: func(t *testing.T, b *bench) {
			if b.power != fleet.PowerOn || b.resets["on"] != 1 {
				t.Errorf("power %s, resets %v", b.power, b.resets)
			}
		}},
		{name: "power reset", verb: fleet.VerbPower, input: fleet.MetalPowerIn{Action: "reset"}, check: func(t *testing.T, b *bench) {
			if b.resets["reset"] != 1 {
				t.Errorf("resets %v", b.resets)
			}
		}},
		{name: "record credentials", verb: fleet.VerbSetCredentials, input: fleet.MetalSetCredentialsIn{Username: "admin"}, check: func(t *testing.T, b *bench) {
			if b.stored != 1 || b.password != "old" {
				t.Errorf("stored %d, password on the BMC %s", b.stored, b.password)
			}
		}},
		{name: "rotate credentials", verb: fleet.VerbSetCredentials, input: fleet.MetalSetCredentialsIn{Username: "admin", Rotate: true}, check: func(t *testing.T, b *bench) {
			if b.stored != 1 || b.password != "new" {
				t.Errorf("stored %d, password on the BMC %s", b.stored, b.password)
			}
		}},
		{name: "what was left behind is cleaned first", verb: fleet.VerbPower, input: fleet.MetalPowerIn{Action: "off"},
			set: func(b *bench) { b.work.LeftBehind = []string{"virtual media"}; b.media = "http://old.iso" },
			check: func(t *testing.T, b *bench) {
				if diff := cmp.Diff([]string{"clear-left-behind", "power"}, b.done()); diff != "" {
					t.Error(diff)
				}
			}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, c.verb, c.input)
			if c.set != nil {
				c.set(b)
			}
			b.succeeds(t)
			b.clean(t)
			c.check(t, b)
		})
	}
}
