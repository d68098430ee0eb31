package redfish_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/sim"
)

var (
	wantCD    = bmc.BootOverride{Target: bmc.BootCD}
	wantCDuei = bmc.BootOverride{Target: bmc.BootCD, UEFI: true}
	wantNone  = bmc.BootOverride{Target: bmc.BootNone}
)

// patches are the PATCH requests that a machine received, with those answered
// by a rule of that name.
func patches(b *bench) []sim.Request {
	var out []sim.Request
	for _, r := range b.m.Requests() {
		if r.Method == "PATCH" {
			out = append(out, r)
		}
	}
	return out
}

func overrideIs(b *bench, enabled, target string) bool {
	o := b.m.View(true).State.Systems[0]
	is := o.Override
	if o.Pending != nil {
		is = *o.Pending
	}
	return is.Enabled == enabled && (is.Target == target || enabled == "Disabled")
}

// setAndClear sets the override and clears it, judged by the true state.
func setAndClear(t *testing.T, b *bench, want bmc.BootOverride) {
	t.Helper()
	c := b.open()
	if err := c.SetBoot(b.ctx(), want); err != nil {
		t.Fatal(err)
	}
	if !overrideIs(b, "Once", "Cd") {
		t.Fatalf("override is %+v", b.m.View(false).Override)
	}
	if o, err := c.Boot(b.ctx()); err != nil || o.Target != bmc.BootCD {
		t.Errorf("read %+v, %v", o, err)
	}
	n := len(patches(b))
	set := patches(b)[n-1].At
	if err := c.SetBoot(b.ctx(), want); err != nil || len(patches(b)) != n {
		t.Errorf("%v; an override that is as wanted was written again", err)
	}
	if err := c.SetBoot(b.ctx(), wantNone); err != nil {
		t.Fatal(err)
	}
	if !overrideIs(b, "Disabled", "None") {
		t.Errorf("override is %+v after clearing", b.m.View(false).Override)
	}
	if gap := patches(b)[n].At.Sub(set); gap < 10*time.Second {
		t.Errorf("it was cleared %v after it was set", gap)
	}
}

func TestC06IfMatch(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"", "c06-if-match-428-header", "c06-if-match-428-body", "c06-if-match-412-header", "c06-if-match-412-body"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("Off"))
			if fault != "" {
				b.fault(fault)
			}
			setAndClear(t, b, wantCD)
			for _, p := range patches(b) {
				if fault != "" && p.IfMatch == "" {
					t.Errorf("PATCH without a tag: %+v", p)
				}
			}
			if n := len(patches(b)); n != 2 {
				t.Errorf("%d PATCHes", n)
			}
		})
	}
}

func TestC06NoTagShown(t *testing.T) {
	t.Parallel()
	spec := found("Off")
	spec.ETag = "none"
	b := newBench(t, spec)
	setAndClear(t, b, wantCD)
	for _, p := range patches(b) {
		if p.IfMatch != "" {
			t.Errorf("a tag that was never shown: %q", p.IfMatch)
		}
	}
}

func TestC06ConcurrentChange(t *testing.T) {
	t.Parallel()
	b := newBench(t, found("Off"))
	b.fault("c06-concurrent-change")
	if err := b.open().SetBoot(b.ctx(), wantCD); err != nil {
		t.Fatal(err)
	}
	p := patches(b)
	if len(p) != 2 || p[0].IfMatch == p[1].IfMatch || p[0].IfMatch == "" {
		t.Errorf("%+v", p)
	}
}

func TestC07ModeReadOnlyOrAbsent(t *testing.T) {
	t.Parallel()
	for fault, ok := range map[string]bool{"": true, "c07-mode-readonly-wanted": true, "c07-mode-absent-wanted": true,
		"c07-mode-readonly-other": false, "c07-mode-absent-other": false} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("Off"))
			if fault != "" {
				b.fault(fault)
			}
			if ok {
				setAndClear(t, b, wantCDuei)
				return
			}
			err := b.open().SetBoot(b.ctx(), wantCDuei)
			wantKind(t, err, bmc.KindRefused)
			if !strings.Contains(err.Error(), "Legacy") || !strings.Contains(err.Error(), "UEFI") {
				t.Errorf("%v names no modes", err)
			}
			if !overrideIs(b, "Disabled", "None") {
				t.Errorf("an override was left: %+v", b.m.View(false).Override)
			}
			// Without a demand for a mode it is no failure.
			setAndClear(t, b, wantCD)
		})
	}
}

func TestC08ModeMustBeRepeated(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"", "c08-mode-required", "c08-mode-reset-if-omitted"} {
		for _, want := range []bmc.BootOverride{wantCD, wantCDuei} {
			t.Run(fault, func(t *testing.T) {
				t.Parallel()
				spec := found("Off")
				spec.BootMode = "UEFI"
				b := newBench(t, spec)
				if fault != "" {
					b.fault(fault)
				}
				setAndClear(t, b, want)
				if mode := b.m.View(false).Override.Mode; mode != "UEFI" {
					t.Errorf("the mode is %s now", mode)
				}
			})
		}
	}
}

// What one client learned of the mode, the next one begins with: it is told at
// once, and costs no second refusal.
func TestModeIsLearned(t *testing.T) {
	t.Parallel()
	for fault, quirk := range map[string]string{"c08-mode-required": "boot-mode-must-be-sent", "c08-mode-reset-if-omitted": "boot-mode-must-be-sent",
		"c07-mode-readonly-other": "boot-mode-not-writable"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("Off"))
			b.fault(fault)
			var told []string
			b.opts.Learned = func(quirks []string) { told = quirks }
			want, kind := wantCD, bmc.Kind("")
			if quirk == "boot-mode-not-writable" {
				want, kind = wantCDuei, bmc.KindRefused
			}
			wantKind(t, b.open().SetBoot(b.ctx(), want), kind)
			if !slices.Equal(told, []string{quirk}) {
				t.Fatalf("told %q, want %s", told, quirk)
			}
			first := len(patches(b))
			wantKind(t, b.open().SetBoot(b.ctx(), bmc.BootOverride{Target: bmc.BootNone}), "")
			cleared := len(patches(b))
			b.quirks = told
			wantKind(t, b.open().SetBoot(b.ctx(), want), kind)
			again := len(patches(b)) - cleared
			if kind == "" && again != 1 || kind != "" && again != 0 || first < 1 {
				t.Errorf("%d PATCHes at first, %d with what was learned", first, again)
			}
		})
	}
}

func TestC09SettingsResource(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"", "c09-settings", "c09-decoy-settings"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("Off"))
			if fault != "" {
				b.fault(fault)
			}
			setAndClear(t, b, wantCD)
			for _, p := range patches(b) {
				if p.Status >= 400 {
					t.Errorf("refused: %+v", p)
				}
			}
		})
	}
}

// TestC09DecoyWithBoot: the settings resource shows a Boot and refuses it.
func TestC09DecoyWithBoot(t *testing.T) {
	t.Parallel()
	spec := found("Off")
	spec.BootHome = "liveWithDecoy"
	b := newBench(t, spec)
	b.rules(`faults:
  - name: shown-there-too
    match: {method: GET, path: "**/Systems/*/*"}
    patch: {Boot: {BootSourceOverrideEnabled: Disabled, BootSourceOverrideTarget: None}}`)
	setAndClear(t, b, wantCD)
}

func TestC10RefusedDuringPost(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"", "c10-refused-during-post"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("Off"))
			if fault != "" {
				b.fault(fault)
			}
			c := b.open()
			if _, err := c.SetPower(b.ctx(), bmc.PowerChange{Aim: bmc.AimOn}); err != nil {
				t.Fatal(err)
			}
			if err := c.SetBoot(b.ctx(), wantCD); err != nil {
				t.Fatal(err)
			}
			if !overrideIs(b, "Once", "Cd") {
				t.Errorf("override is %+v", b.m.View(false).Override)
			}
			p := patches(b)
			for i := range p[1:] {
				if gap := p[i+1].At.Sub(p[i].At); gap < 10*time.Second {
					t.Errorf("two PATCHes %v apart", gap)
				}
			}
		})
	}
}

// TestBootByHTTP sets the boot URI where the machine takes one.
func TestBootByHTTP(t *testing.T) {
	t.Parallel()
	for _, profile := range sim.Profiles() {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, sim.MachineSpec{Profile: profile, Seed: 3})
			c := b.open()
			f, err := c.Identify(b.ctx())
			if err != nil {
				t.Fatal(err)
			}
			const url = "http://127.0.0.1:9/boot/1/boot.efi"
			err = c.SetBoot(b.ctx(), bmc.BootOverride{Target: bmc.BootHTTP, HTTPURL: url, UEFI: true})
			if !f.Capabilities.HTTPBoot {
				wantKind(t, err, bmc.KindUnsupported)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if o, err := c.Boot(b.ctx()); err != nil || o.HTTPURL != url || o.Target != bmc.BootHTTP {
				t.Errorf("%+v, %v", o, err)
			}
			if err := c.SetBoot(b.ctx(), wantNone); err != nil {
				t.Fatal(err)
			}
		})
	}
}
