package redfish_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/redfish"
	"github.com/bettercompute/compute/sim"
)

// changePower makes one change and returns what came of it.
func changePower(b *bench, aim bmc.PowerAim) (bmc.PowerResult, error) {
	return b.open().SetPower(b.ctx(), bmc.PowerChange{Aim: aim})
}

// found is a machine in a power state.
func found(power string) sim.MachineSpec { return sim.MachineSpec{Seed: 3, Power: power} }

func TestC01AlreadySo(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"", "c01-same-state-409", "c01-same-state-400", "c01-same-state-204"} {
		for _, power := range []string{"Off", "On"} {
			t.Run(fault+"/"+power, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, found(power))
				if fault != "" {
					b.fault(fault)
				}
				aim := map[string]bmc.PowerAim{"Off": bmc.AimOff, "On": bmc.AimOn}[power]
				r, err := changePower(b, aim)
				if err != nil || !r.AlreadySo {
					t.Fatalf("%+v, %v", r, err)
				}
				if n := b.resets(); n > 1 {
					t.Errorf("%d resets", n)
				}
			})
		}
	}
}

// TestC01StaleState: the service shows the old state, so the change is sent,
// and refused because it is so already.
func TestC01StaleState(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"409", "400"} {
		t.Run(status, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("Off"))
			b.rules(`faults:
  - {name: stale, match: {method: GET, path: "**/Systems/*", times: 2}, set: {"/PowerState": "On"}}
  - {name: so, match: {method: POST, path: "**/ComputerSystem.Reset", state: {power: "Off"}}, apply: false, reply: {status: ` + status + `, body: {}}}`)
			r, err := changePower(b, bmc.AimOff)
			if err != nil || r.State != bmc.PowerOff || !r.AlreadySo {
				t.Fatalf("%+v, %v", r, err)
			}
			if n := b.resets(); n != 1 {
				t.Errorf("%d resets", n)
			}
		})
	}
}

func TestC02OfferedTypes(t *testing.T) {
	t.Parallel()
	type want struct {
		sent  []string
		state bmc.PowerState
		kind  bmc.Kind
	}
	on, off := bmc.PowerOn, bmc.PowerOff
	for _, c := range []struct {
		fault string
		types []string
		from  string
		start string
		aim   bmc.PowerAim
		want  want
	}{
		{fault: "c02-few-types-inline", start: "On", aim: bmc.AimCycle, want: want{sent: []string{"ForceOff", "On"}, state: on}},
		{fault: "c02-few-types-actioninfo", start: "On", aim: bmc.AimCycle, want: want{sent: []string{"ForceOff", "On"}, state: on}},
		{fault: "c02-few-types-actioninfo", start: "On", aim: bmc.AimReset, want: want{sent: []string{"ForceRestart"}, state: on}},
		{fault: "c02-no-force-off", start: "On", aim: bmc.AimCycle, want: want{sent: []string{"PowerCycle"}, state: on}},
		{fault: "c02-no-force-off", start: "On", aim: bmc.AimOff, want: want{sent: []string{"GracefulShutdown"}, state: off}},
		{fault: "c02-no-list", start: "On", aim: bmc.AimCycle, want: want{sent: []string{"ForceOff", "On"}, state: on}},
		{fault: "c02-no-list", start: "On", aim: bmc.AimReset, want: want{sent: []string{"ForceRestart"}, state: on}},
		{fault: "c02-no-list", start: "Off", aim: bmc.AimReset, want: want{sent: []string{"On"}, state: on}},
		{types: []string{"On", "ForceOff"}, start: "On", aim: bmc.AimReset, want: want{sent: []string{"ForceOff", "On"}, state: on}},
		{types: []string{"ForceOn", "ForceOff"}, start: "Off", aim: bmc.AimOn, want: want{sent: []string{"ForceOn"}, state: on}},
		{types: []string{"On", "ForceOff", "PowerCycle"}, from: "actionInfo", start: "On", aim: bmc.AimReset, want: want{sent: []string{"PowerCycle"}, state: on}},
		{types: []string{"On", "ForceOff", "PushPowerButton"}, start: "On", aim: bmc.AimSoftOff, want: want{sent: []string{"PushPowerButton"}, state: off}},
		{types: []string{"On", "ForceOff"}, start: "On", aim: bmc.AimSoftOff, want: want{kind: bmc.KindUnsupported, state: on}},
		{types: []string{"On", "Nmi"}, start: "On", aim: bmc.AimCycle, want: want{kind: bmc.KindUnsupported, state: on}},
		// Neither list: the standard value once, and its 400 is the end.
		{types: []string{"GracefulRestart"}, from: "none", start: "Off", aim: bmc.AimOn, want: want{sent: []string{"On"}, kind: bmc.KindRefused, state: off}},
	} {
		name := c.fault + strings.Join(c.types, ",") + "/" + c.start + "/" + string(c.aim)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := found(c.start)
			spec.ResetTypes, spec.ResetTypesFrom = c.types, c.from
			b := newBench(t, spec)
			if c.fault != "" {
				b.fault(c.fault)
			}
			r, err := changePower(b, c.aim)
			got := want{state: r.State, kind: bmc.KindOf(err)}
			for _, s := range r.Sent {
				got.sent = append(got.sent, strings.TrimPrefix(s, "Reset "))
			}
			if c.want.kind == bmc.KindRefused {
				if len(r.Sent) != 0 {
					t.Errorf("%q is said to have been acted upon", r.Sent)
				}
				got.sent = c.want.sent // judged by the machine's count below
			}
			if d := cmp.Diff(c.want, got, cmp.AllowUnexported(want{})); d != "" {
				t.Fatalf("%s\n%v", d, err)
			}
			counted := 0
			for typ, n := range b.m.Counts().Resets {
				counted += n
				if !slices.Contains(c.want.sent, typ) || n != 1 {
					t.Errorf("%d resets %s", n, typ)
				}
			}
			if counted != len(c.want.sent) {
				t.Errorf("%d resets counted, %d said", counted, len(c.want.sent))
			}
		})
	}
}

func TestC03OldAndInBetweenStates(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"", "c03-settle-13s-old", "c03-settle-13s-transitional", "c03-settle-13s-null", "c03-settle-60s-old", "c03-settle-60s-transitional", "c03-settle-60s-null"} {
		for _, aim := range []bmc.PowerAim{bmc.AimOn, bmc.AimOff} {
			t.Run(fault+"/"+string(aim), func(t *testing.T) {
				t.Parallel()
				power := map[bmc.PowerAim]string{bmc.AimOn: "Off", bmc.AimOff: "On"}[aim]
				b := newBench(t, found(power))
				if fault != "" {
					b.fault(fault)
				}
				var seen []string
				r, err := b.open().SetPower(b.ctx(), bmc.PowerChange{Aim: aim, Progress: func(d string) { seen = append(seen, d) }})
				if err != nil || string(r.State) != string(aim) {
					t.Fatalf("%+v, %v; seen %q", r, err, seen)
				}
				if n := b.resets(); n != 1 {
					t.Errorf("%d resets", n)
				}
			})
		}
	}
}

func TestC03Stuck(t *testing.T) {
	t.Parallel()
	b := newBench(t, found("Off"))
	b.fault("c03-stuck")
	r, err := changePower(b, bmc.AimOn)
	wantKind(t, err, bmc.KindTimeout)
	if !strings.Contains(err.Error(), "last read was off") || r.State != bmc.PowerOff {
		t.Errorf("%+v: %v", r, err)
	}
	if n := b.resets(); n != 1 {
		t.Errorf("%d resets", n)
	}
}

// TestC03InBetweenAtStart: a machine that is in between when it is asked gets
// no Reset before its state is known.
func TestC03InBetweenAtStart(t *testing.T) {
	t.Parallel()
	b := newBench(t, found("On"))
	b.rules(`faults:
  - {name: between, match: {method: GET, path: "**/Systems/*", times: 5}, set: {"/PowerState": PoweringOff}}`)
	if r, err := changePower(b, bmc.AimOn); err != nil || !r.AlreadySo || b.resets() != 0 {
		t.Errorf("%+v, %v, %d resets", r, err, b.resets())
	}
	b.rules(`faults:
  - {name: never, match: {method: GET, path: "**/Systems/*"}, set: {"/PowerState": null}}`)
	_, err := changePower(b, bmc.AimOff)
	wantKind(t, err, bmc.KindTimeout)
	if n := b.resets(); n != 0 {
		t.Errorf("%d resets of a machine whose state is not known", n)
	}
}

func TestC04Tasks(t *testing.T) {
	t.Parallel()
	for fault, kind := range map[string]bmc.Kind{"": "", "c04-task-odd-state-then-ok": "", "c04-task-cancelled": bmc.KindRefused,
		"c04-task-exception": bmc.KindRefused, "c04-task-completed-critical": bmc.KindRefused} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("Off"))
			if fault != "" {
				b.fault(fault)
			}
			r, err := changePower(b, bmc.AimOn)
			wantKind(t, err, kind)
			if on := b.m.View(false).Power == "On"; on != (kind == "") {
				t.Errorf("the machine is on: %v; %+v", on, r)
			}
			if n := b.resets(); n != 1 {
				t.Errorf("%d resets", n)
			}
		})
	}
}

// TestC04TaskRefs: the task is found wherever it is named, and one that is of
// another machine is not followed.
func TestC04TaskRefs(t *testing.T) {
	t.Parallel()
	for _, ref := range []string{"location", "link", "body", "none"} {
		t.Run(ref, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("Off"))
			b.rules(`faults:
  - {name: task, match: {method: POST, path: "**/ComputerSystem.Reset"}, reply: {task: {ref: ` + ref + `, for: 30s, states: [New, Running, Completed]}}}`)
			r, err := changePower(b, bmc.AimOn)
			if err != nil || r.State != bmc.PowerOn || b.resets() != 1 {
				t.Fatalf("%+v, %v, %d resets", r, err, b.resets())
			}
		})
	}
	for _, location := range []string{"https://127.0.0.9/redfish/v1/TaskService/Tasks/1", "//127.0.0.9/redfish/v1/Tasks/1", "http:x", "https://user@127.0.0.9/x"} {
		t.Run(location, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("Off"))
			b.rules(`faults:
  - {name: task, match: {method: POST, path: "**/ComputerSystem.Reset"}, reply: {status: 202, headers: {Location: "` + location + `"}, body: {}}}`)
			_, err := changePower(b, bmc.AimOn)
			wantKind(t, err, bmc.KindWrongMachine)
		})
	}
}

func TestC05SeveralSystems(t *testing.T) {
	t.Parallel()
	t.Run("one system", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, found("On"))
		f, err := b.open().Identify(b.ctx())
		if err != nil {
			t.Fatal(err)
		}
		b.system, b.identity = f.System, &f.Identity
		if r, err := changePower(b, bmc.AimCycle); err != nil || r.State != bmc.PowerOn || b.m.Counts().Resets["On"] != 1 {
			t.Errorf("%+v, %v, %v", r, err, b.m.Counts().Resets)
		}
	})
	for _, fault := range []string{"c05-three-systems", "c05-equal-names"} {
		for _, system := range []string{"", "/redfish/v1/Systems/No-such"} {
			t.Run(fault+system, func(t *testing.T) {
				t.Parallel()
				f, err := sim.NamedFaults(fault)
				if err != nil {
					t.Fatal(err)
				}
				spec := *f.Machine
				spec.Seed = 3
				b := newBench(t, spec)
				b.fault(fault)
				b.system = system
				c := b.open()
				for name, change := range changes(b, c) {
					err := change()
					wantKind(t, err, bmc.KindWrongMachine)
					if n := strings.Count(err.Error(), "/redfish/v1/Systems/"); n < 3 {
						t.Errorf("%s: %v names %d candidates", name, err, n)
					}
				}
				if changed(b) {
					t.Error("something was changed")
				}
			})
		}
	}
}

// TestC05Named: the named one of several is the only one that is touched.
func TestC05Named(t *testing.T) {
	t.Parallel()
	b := newBench(t, sim.MachineSpec{Seed: 3, Systems: 3, Power: "Off"})
	c := b.open()
	_, err := c.Identify(b.ctx())
	var be *bmc.Error
	if !errors.As(err, &be) || len(be.Candidates) != 3 {
		t.Fatalf("%v", err)
	}
	b.system, _, _ = strings.Cut(be.Candidates[1], " ")
	if _, err := changePower(b, bmc.AimOn); err != nil {
		t.Fatal(err)
	}
	st := b.m.View(true).State.Systems
	if st[0].Power != "Off" || st[1].Power != "On" || st[2].Power != "Off" {
		t.Errorf("powers are %s %s %s", st[0].Power, st[1].Power, st[2].Power)
	}
}

func TestC05RenamedMidRun(t *testing.T) {
	t.Parallel()
	b := newBench(t, sim.MachineSpec{Seed: 3, Systems: 3, Power: "On"})
	c := b.open()
	_, err := c.Identify(b.ctx())
	var be *bmc.Error
	if !errors.As(err, &be) {
		t.Fatal(err)
	}
	b.system, _, _ = strings.Cut(be.Candidates[0], " ")
	c = b.open()
	if _, err := c.Identify(b.ctx()); err != nil {
		t.Fatal(err)
	}
	b.set(map[string]any{"/systems/0/id": "Renamed-1"})
	for name, change := range changes(b, c) {
		err := change()
		wantKind(t, err, bmc.KindWrongMachine)
		if !strings.Contains(err.Error(), "Renamed-1") {
			t.Errorf("%s: %v does not name the candidates", name, err)
		}
	}
	if changed(b) {
		t.Error("something was changed")
	}
}

// TestIdentityBeforeChange: another machine at the recorded path gets no
// change, whichever member tells it.
func TestIdentityBeforeChange(t *testing.T) {
	t.Parallel()
	for pointer, value := range map[string]string{"/UUID": "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee", "/SerialNumber": "OTHER-BOARD"} {
		t.Run(pointer, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("On"))
			f, err := b.open().Identify(b.ctx())
			if err != nil {
				t.Fatal(err)
			}
			b.identity = &f.Identity
			if _, err := changePower(b, bmc.AimReset); err != nil {
				t.Fatalf("the recorded machine itself: %v", err)
			}
			before := b.resets()
			b.set(map[string]any{pointer: value})
			c := b.open()
			for name, change := range changes(b, c) {
				if k := bmc.KindOf(change()); k != bmc.KindWrongMachine {
					t.Errorf("%s: kind %q", name, k)
				}
			}
			if b.resets() != before {
				t.Error("it was reset")
			}
		})
	}
}

// changes is every change of a client.
func changes(b *bench, c *redfish.Client) map[string]func() error {
	ctx := b.ctx()
	return map[string]func() error{
		"power":    func() error { _, err := c.SetPower(ctx, bmc.PowerChange{Aim: bmc.AimCycle}); return err },
		"boot":     func() error { return c.SetBoot(ctx, bmc.BootOverride{Target: bmc.BootCD}) },
		"insert":   func() error { return c.InsertMedia(ctx, "http://127.0.0.1:9/x.iso") },
		"eject":    func() error { return c.EjectMedia(ctx, nil) },
		"erase":    func() error { _, err := c.EraseDrives(ctx, []string{"any"}); return err },
		"password": func() error { return c.SetPassword(ctx, "another-password-1") },
	}
}

// changed says whether any changing request but a login was received.
func changed(b *bench) bool {
	return slices.ContainsFunc(b.m.Requests(), func(r sim.Request) bool {
		return r.Method != "GET" && !strings.Contains(r.Path, "/SessionService/")
	})
}

// TestSpent: what an earlier run may have sent is looked for before it is sent
// again, and a restart is never sent twice.
func TestSpent(t *testing.T) {
	t.Parallel()
	t.Run("sent and on its way", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, found("Off"))
		b.fault("c03-settle-13s-old")
		ctx := b.ctx()
		c := b.open()
		acting := make(chan struct{})
		go func() {
			defer close(acting)
			_, _ = b.open().SetPower(ctx, bmc.PowerChange{Aim: bmc.AimOn})
		}()
		for b.resets() == 0 && ctx.Err() == nil {
			if _, err := c.Power(ctx); err != nil {
				t.Error(err)
			}
		}
		r, err := c.SetPower(ctx, bmc.PowerChange{Aim: bmc.AimOn, Spent: true})
		<-acting
		if err != nil || r.State != bmc.PowerOn || b.resets() != 1 {
			t.Errorf("%+v, %v, %d resets", r, err, b.resets())
		}
	})
	t.Run("never sent", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, found("Off"))
		r, err := b.open().SetPower(b.ctx(), bmc.PowerChange{Aim: bmc.AimOn, Spent: true})
		if err != nil || r.State != bmc.PowerOn || b.resets() != 1 {
			t.Errorf("%+v, %v, %d resets", r, err, b.resets())
		}
	})
	t.Run("restart", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, found("On"))
		r, err := b.open().SetPower(b.ctx(), bmc.PowerChange{Aim: bmc.AimReset, Spent: true})
		if err != nil || r.State != bmc.PowerOn || b.resets() != 0 {
			t.Errorf("%+v, %v, %d resets", r, err, b.resets())
		}
	})
	t.Run("cycle that stopped between off and on", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, found("Off"))
		r, err := b.open().SetPower(b.ctx(), bmc.PowerChange{Aim: bmc.AimCycle, Spent: true})
		if err != nil || r.State != bmc.PowerOn {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// TestLostReplies: an answer that did not come is no reason to do it again.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	for _, drop := range []string{"before", "after", "midway"} {
		for _, aim := range []bmc.PowerAim{bmc.AimOn, bmc.AimReset} {
			t.Run(drop+"/"+string(aim), func(t *testing.T) {
				t.Parallel()
				power := map[bmc.PowerAim]string{bmc.AimOn: "Off", bmc.AimReset: "On"}[aim]
				b := newBench(t, found(power))
				b.rules(`faults:
  - {name: lost, match: {method: POST, path: "**/ComputerSystem.Reset", times: 1}, reply: {drop: ` + drop + `}}`)
				r, err := changePower(b, aim)
				acted := drop != "before"
				switch {
				case aim == bmc.AimOn:
					if err != nil || r.State != bmc.PowerOn {
						t.Fatalf("%+v, %v", r, err)
					}
				case acted && err != nil && bmc.KindOf(err) != bmc.KindTimeout:
					t.Fatal(err)
				case !acted:
					wantKind(t, err, bmc.KindTimeout)
				}
				if n := b.resets(); n > 1 && (acted || aim == bmc.AimReset) {
					t.Errorf("%d resets", n)
				}
			})
		}
	}
}

// TestActingStops: a caller that cannot record its intent, or has lost its
// lease, sends nothing.
func TestActingStops(t *testing.T) {
	t.Parallel()
	b := newBench(t, found("Off"))
	b.opts.BeforeChange = func(context.Context) error {
		return &bmc.Error{Kind: bmc.KindBusy, Doing: "change", Cause: "lease lost"}
	}
	c := b.open()
	for name, change := range changes(b, c) {
		if name == "erase" || name == "eject" {
			continue // there is nothing to change
		}
		wantKind(t, change(), bmc.KindBusy)
	}
	if changed(b) {
		t.Error("something was sent")
	}

}
