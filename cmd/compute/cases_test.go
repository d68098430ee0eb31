package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/sim"
)

// caseFile reads a fault file of testdata/cases, or one built into the
// simulator; "" has no faults.
func caseFile(t testing.TB, name string) *sim.FaultFile {
	t.Helper()
	if name == "" {
		return &sim.FaultFile{}
	}
	raw, err := os.ReadFile(filepath.Join("testdata", "cases", name+".yaml"))
	if os.IsNotExist(err) {
		f, err := sim.NamedFaults(name)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := sim.ParseFaults(raw)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// caseRun is one run of an operation on a machine with a fault file, judged by
// the machine.
type caseRun struct {
	// file is the fault file; each run is made without it too, once for all runs
	// that differ in nothing else.
	file string
	// spec is the machine, as it is found.
	spec sim.MachineSpec
	// run is what is done, in the words of plays.
	run string
	// fails is the code of the failure that is wanted with the fault; says must
	// be in its cause, or in the detail of the last step of a success.
	fails, says string
	// judge is asked with the fault and without it.
	judge func(t *testing.T, h *host, o fleet.Operation)
}

// plays are what is done with a machine: enrolled first, without the faults
// where they are about a later operation.
var plays = map[string]func(h *host, faults *sim.FaultFile) fleet.Operation{
	"on":    powerPlay("on"),
	"off":   powerPlay("off"),
	"cycle": powerPlay("cycle"),
	"reset": powerPlay("reset"),
	"commission": func(h *host, faults *sim.FaultFile) fleet.Operation {
		h.faults(faults)
		return h.enroll(obj{"advance": "ready"})
	},
	"deploy": func(h *host, faults *sim.FaultFile) fleet.Operation {
		h.ready()
		h.faults(faults)
		return h.do("deploy", h.r.deployIn(h.t, nil))
	},
	"deploy by HTTP boot": func(h *host, faults *sim.FaultFile) fleet.Operation {
		h.ready()
		h.faults(faults)
		return h.do("deploy", h.r.deployIn(h.t, obj{"bootVia": "httpBoot"}))
	},
	"deploy an ISO": func(h *host, faults *sim.FaultFile) fleet.Operation {
		h.ready()
		h.faults(faults)
		return h.do("deploy", obj{"image": obj{"url": h.r.images + "demo.iso", "format": "iso", "checksum": "sha256:" + h.r.sum(h.t, "demo.iso")}})
	},
}

func powerPlay(action string) func(h *host, faults *sim.FaultFile) fleet.Operation {
	return func(h *host, faults *sim.FaultFile) fleet.Operation {
		h.enrolled()
		h.faults(faults)
		return h.do("power", obj{"action": action})
	}
}

// enrolled enrolls the machine, which must succeed.
func (h *host) enrolled() {
	h.t.Helper()
	if o := h.enroll(nil); o.State != fleet.OpSucceeded {
		h.t.Fatalf("enroll: %+v", o.Error)
	}
}

// ready brings the machine to the state ready.
func (h *host) ready() {
	h.t.Helper()
	if o := h.enroll(obj{"advance": "ready"}); o.State != fleet.OpSucceeded || h.metal().ProvisionState != fleet.Ready {
		h.t.Fatalf("%s: %+v", o.Verb, o.Error)
	}
}

func machineFound(power string) sim.MachineSpec { return sim.MachineSpec{Seed: 3, Power: power} }

// resetsOf is what a machine was asked for by reset type.
func resetsOf(want string) func(*testing.T, *host, fleet.Operation) {
	return func(t *testing.T, h *host, _ fleet.Operation) {
		var got []string
		for kind, n := range h.Counts().Resets {
			for range n {
				got = append(got, kind)
			}
		}
		slices.Sort(got)
		if s := strings.Join(got, " "); s != want {
			t.Errorf("resets %q, want %q", s, want)
		}
	}
}

// atMostOneReset and the power that is wanted.
func oneReset(power string) func(*testing.T, *host, fleet.Operation) {
	return func(t *testing.T, h *host, _ fleet.Operation) {
		n := 0
		for _, c := range h.Counts().Resets {
			n += c
		}
		if is := h.View(false).Power; n > 1 || is != power {
			t.Errorf("%d resets, the machine is %s, want %s", n, is, power)
		}
	}
}

// cleanOverride says that nothing of an override or medium is left.
func cleanOverride(t *testing.T, h *host, _ fleet.Operation) {
	v := h.View(true)
	if s := v.State.Systems[0]; s.Override.Enabled != "Disabled" || s.Pending != nil && s.Pending.Enabled != "Disabled" {
		t.Errorf("override %+v, pending %+v", s.Override, s.Pending)
	}
	for _, m := range v.Media {
		if m.Inserted {
			t.Errorf("%s still holds %s", m.ID, m.Image)
		}
	}
}

// inserted counts the requests to insert a medium. One with a token that the BMC
// had forgotten was never taken up, and is rightly sent again.
func inserted(h *host) int {
	n := h.Counts().InsertMedia
	for _, q := range h.Requests() {
		if q.Status == http.StatusUnauthorized && strings.HasSuffix(q.Path, "VirtualMedia.InsertMedia") {
			n--
		}
	}
	return n
}

// deployedBy judges a deploy: our medium was booted once, from the source, with
// at most so many requests to insert it, then the disk.
func deployedBy(source string, inserts int) func(*testing.T, *host, fleet.Operation) {
	return func(t *testing.T, h *host, _ fleet.Operation) {
		var sources []string
		for _, b := range h.BootLog() {
			sources = append(sources, b.Source)
		}
		sources = slices.DeleteFunc(sources, func(s string) bool { return s == "none" }) // commission finds an empty disk
		if want := []string{source, "disk"}; !slices.Equal(sources, want) {
			t.Errorf("boots %q, want %q", sources, want)
		}
		if n := inserted(h); n > inserts {
			t.Errorf("%d InsertMedia, want at most %d", n, inserts)
		}
		if s := h.metal().ProvisionState; s != fleet.Deployed {
			t.Errorf("the node is %s", s)
		}
		cleanOverride(t, h, fleet.Operation{})
	}
}

// bootedISO judges the deploy of an ISO: it is what was booted last, and its
// medium stays in.
func bootedISO(inserts int) func(*testing.T, *host, fleet.Operation) {
	return func(t *testing.T, h *host, o fleet.Operation) {
		log := h.BootLog()
		if last := log[len(log)-1]; last.Source != "cd" || !strings.HasSuffix(last.URL, "demo.iso") {
			t.Errorf("booted %+v last", last)
		}
		if n := inserted(h); n > inserts {
			t.Errorf("%d InsertMedia, want at most %d", n, inserts)
		}
		if !slices.ContainsFunc(h.View(false).Media, func(m sim.Medium) bool { return m.Inserted }) {
			t.Error("the medium is gone")
		}
	}
}

var caseRuns = []caseRun{
	{file: "c01-same-state-409", run: "off", spec: machineFound("Off"), says: "it was already off", judge: oneReset("Off")},
	{file: "c01-same-state-400", run: "on", spec: machineFound("On"), says: "it was already on", judge: oneReset("On")},
	{file: "c01-same-state-204", run: "off", spec: machineFound("Off"), says: "it was already off", judge: oneReset("Off")},
	{file: "c01-stale-409", run: "off", spec: machineFound("Off"), says: "it was already off", judge: oneReset("Off")},
	{file: "c01-stale-400", run: "off", spec: machineFound("Off"), says: "it was already off", judge: oneReset("Off")},
	{file: "c01-stale-500", run: "off", spec: machineFound("Off"), judge: oneReset("Off")},
	{file: "c02-few-types-inline", run: "cycle", spec: machineFound("On"), judge: resetsOf("ForceOff On")},
	{file: "c02-few-types-actioninfo", run: "cycle", spec: machineFound("On"), judge: resetsOf("ForceOff On")},
	{file: "c02-no-list", run: "cycle", spec: machineFound("On"), judge: resetsOf("ForceOff On")},
	{file: "c02-no-list", run: "reset", spec: machineFound("On"), judge: resetsOf("ForceRestart")},
	{file: "c03-settle-13s-transitional", run: "on", spec: machineFound("Off"), judge: oneReset("On")},
	{file: "c03-settle-60s-null", run: "on", spec: machineFound("Off"), judge: oneReset("On")},
	{file: "c03-settle-60s-old", run: "off", spec: machineFound("On"), judge: oneReset("Off")},
	{file: "c03-unknown-word", run: "on", spec: machineFound("Off"), judge: oneReset("On")},
	{file: "c03-stuck", run: "on", spec: machineFound("Off"), fails: "timeout", says: "last read was off"},
	{file: "c04-task-odd-state-then-ok", run: "on", spec: machineFound("Off"), judge: oneReset("On")},
	{file: "c04-task-cancelled", run: "on", spec: machineFound("Off"), fails: "refused", says: "Cancelled"},
	{file: "c04-task-exception", run: "on", spec: machineFound("Off"), fails: "refused", says: "Exception"},
	{file: "c04-task-killed", run: "on", spec: machineFound("Off"), fails: "refused", says: "Killed"},
	{file: "c04-task-completed-critical", run: "on", spec: machineFound("Off"), fails: "refused", says: "Critical"},
	{file: "c04-task-completed-warning", run: "on", spec: machineFound("Off"), fails: "refused", says: "Warning"},
	{file: "c06-if-match-428-header", run: "commission", judge: cleanOverride},
	{file: "c06-if-match-412-body", run: "commission", judge: cleanOverride},
	{file: "c06-concurrent-change", run: "commission", judge: cleanOverride},
	{file: "c07-mode-readonly-wanted", run: "deploy by HTTP boot", judge: deployedBy("http", 0)},
	{file: "c07-mode-readonly-other", run: "deploy by HTTP boot", fails: "refused", says: "Legacy"},
	{file: "c07-mode-absent-other", run: "deploy by HTTP boot", fails: "refused", says: "Legacy"},
	{file: "c07-mode-readonly-other", run: "commission", judge: cleanOverride},
	{file: "c08-mode-required", run: "commission", judge: cleanOverride},
	{file: "c08-mode-reset-if-omitted", run: "commission", judge: func(t *testing.T, h *host, o fleet.Operation) {
		if mode := h.View(false).Override.Mode; mode != "UEFI" {
			t.Errorf("the mode is %s now", mode)
		}
		cleanOverride(t, h, o)
	}},
	{file: "c09-settings", run: "deploy", judge: deployedBy("cd", 1)},
	{file: "c09-decoy-settings", run: "deploy", judge: deployedBy("cd", 1)},
	{file: "c10-refused-during-post", run: "commission", judge: cleanOverride},
	{file: "c10-refused-otherwise", run: "deploy", judge: deployedBy("cd", 1)},
	{file: "c10-after-change", run: "commission", judge: cleanOverride},
	{file: "c11-protocol-required-a-unlisted", run: "deploy an ISO", judge: bootedISO(2)},
	{file: "c11-protocol-required-b-listed", run: "deploy an ISO", judge: bootedISO(1)},
	{file: "c11-protocol-required-other", run: "deploy an ISO", judge: bootedISO(2)},
	{file: "c12-insert-task-location", run: "deploy", judge: deployedBy("cd", 1)},
	{file: "c12-insert-task-none", run: "deploy an ISO", judge: bootedISO(1)},
	{file: "c12-insert-hold-409", run: "deploy an ISO", judge: bootedISO(1)},
	{file: "c12-insert-lost", run: "deploy an ISO", judge: bootedISO(1)},
	{file: "c13-table-full", run: "on", spec: machineFound("Off"), judge: oneReset("On")},
	{file: "c13-table-full-403", run: "off", spec: machineFound("On"), judge: oneReset("Off")},
	{file: "c14-token-invalid", run: "deploy", judge: deployedBy("cd", 1)},
	{file: "c14-token-invalid-403", run: "commission", judge: cleanOverride},
	{file: "c15-not-ready-503", run: "on", spec: machineFound("Off"), judge: oneReset("On")},
	{file: "c15-not-ready-503-header", run: "commission", judge: cleanOverride},
	{file: "c15-not-ready-after-change", run: "cycle", spec: machineFound("On"), judge: resetsOf("ForceOff On")},
	{file: "c15-not-ready-400", run: "on", spec: machineFound("Off"), judge: oneReset("On")},
	{file: "c15-not-ready-429", run: "commission", judge: cleanOverride},
	{file: "c15-not-ready-500", run: "off", spec: machineFound("On"), judge: oneReset("Off")},
}

// TestCases runs every case through the whole stack: the fault on a simulated
// machine, the real operation, judged by the machine's true state. All runs
// share one stack and go on at once.
func TestCases(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.startWorker()
	t.Run("runs", func(t *testing.T) {
		for name, test := range caseTests {
			t.Run(name, func(t *testing.T) { t.Parallel(); test(t, r) })
		}
		without := map[string]bool{}
		for _, c := range caseRuns {
			t.Run(c.file+"/"+c.run, func(t *testing.T) { t.Parallel(); c.play(t, r, true) })
			spec, err := json.Marshal(c.spec)
			if err != nil {
				t.Fatal(err)
			}
			if key := c.run + string(spec); !without[key] && c.judge != nil {
				without[key] = true
				t.Run("without fault/"+c.run+" "+c.spec.Power, func(t *testing.T) { t.Parallel(); c.play(t, r, false) })
			}
		}
	})
}

func (c caseRun) play(t *testing.T, r *rig, fault bool) {
	f := &sim.FaultFile{}
	spec := c.spec
	if fault {
		f = caseFile(t, c.file)
		if f.Machine != nil {
			spec = *f.Machine
			spec.Power = c.spec.Power
		}
	}
	spec.Profile, spec.Seed = "generic", 3
	h := r.add(t, spec)
	before := h.Counts().Logins
	o := plays[c.run](h, &sim.FaultFile{Faults: f.Faults})
	if fault && c.fails != "" {
		if o.State != fleet.OpFailed || o.Error == nil || o.Error.Code != c.fails || !strings.Contains(o.Error.Cause, c.says) || o.Error.Remedy == "" {
			t.Errorf("%s: %+v, want %s saying %q", o.State, o.Error, c.fails, c.says)
		}
		failedWithoutHarm(t, h)
	} else {
		if o.State != fleet.OpSucceeded {
			t.Fatalf("%s %s: %+v", o.Verb, o.State, o.Error)
		}
		if last := o.Steps[len(o.Steps)-1]; fault && !strings.Contains(last.Detail, c.says) {
			t.Errorf("the last step says %q, want %q", last.Detail, c.says)
		}
		if c.judge != nil {
			c.judge(t, h, o)
		}
		if fault && c.says != "" && !strings.Contains(h.told(o.ID, "node.operation.succeeded"), c.says) {
			t.Errorf("the event does not say %q", c.says)
		}
	}
	alwaysSo(t, h, f, before)
}

// failedWithoutHarm: the machine that failed to switch on or to be prepared is
// off, was asked once, and booted nothing.
func failedWithoutHarm(t *testing.T, h *host) {
	if is := h.View(false).Power; is != "Off" {
		t.Errorf("the machine is %s", is)
	}
	if log := h.BootLog(); slices.ContainsFunc(log, func(b sim.Boot) bool { return b.Source != "none" }) {
		t.Errorf("it booted: %+v", log)
	}
	cleanOverride(t, h, fleet.Operation{})
}

// noSession waits until no session is open: after an operation the sweep may be
// looking at the machine.
func (h *host) noSession() {
	h.t.Helper()
	h.poll("the end of its sessions", func() bool { return h.Counts().SessionsOpen == 0 })
}

// alwaysSo are the rules that hold whatever the fault: one change at a time,
// one session, closed at the end, no refused login, hints obeyed, no boot
// setting written more often than every ten seconds while the machine refuses.
func alwaysSo(t *testing.T, h *host, f *sim.FaultFile, logins int) {
	h.noSession()
	c := h.Counts()
	if c.ChangesInFlightMax > 1 || c.SessionsOpenMax > 1 {
		t.Errorf("%d changes at once, %d sessions at once", c.ChangesInFlightMax, c.SessionsOpenMax)
	}
	if c.LoginsFailed > 0 {
		t.Errorf("%d logins were refused", c.LoginsFailed)
	}
	for _, kind := range []string{"BmcReachable", "BmcTrusted", "BmcAuthenticated"} {
		if h.condition(kind) == fleet.ConditionFalse {
			t.Errorf("%s is False", kind)
		}
	}
	hinted := map[string]time.Duration{}
	for _, rule := range f.Faults {
		raw, err := json.Marshal(rule.Reply)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), `"30"`) {
			hinted[rule.Name] = 29 * time.Second // of 30: the answer was written after the log
		}
	}
	var quiet, patch time.Time
	for _, q := range h.Requests() {
		if q.At.Before(quiet) {
			t.Errorf("%s %s came %v before the BMC asked for", q.Method, q.Path, quiet.Sub(q.At))
		}
		for _, name := range q.Rules {
			if d := hinted[name]; d > 0 {
				quiet = q.At.Add(d)
			}
			if name != "in-post" {
				continue
			}
			if !patch.IsZero() && q.At.Sub(patch) < 10*time.Second {
				t.Errorf("two PATCHes %v apart while the machine refuses", q.At.Sub(patch))
			}
			patch = q.At
		}
	}
}
