package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/bmc/ipmi/ipmisim"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/sim"
)

// caseTests are the cases that take more than one operation.
var caseTests = map[string]func(t *testing.T, r *rig){
	"c05 several systems":        severalSystems,
	"c05 renamed between":        renamedBetween,
	"c10 aborted in POST":        abortedInPost,
	"c13 mixed operations":       mixedOperations,
	"c16 not trusted":            notTrusted,
	"c16 trusted":                trusted,
	"c16 changed mid-run":        certificateChanged,
	"c18 IPMI in either state":   ipmiStates,
	"password must be changed":   mustChangePassword,
	"rotation refused":           rotationRefused,
	"rotation cut off":           rotationCutOff,
	"old system boots":           oldSystemBoots,
	"plain HTTP needs insecure":  plainHTTP,
	"learned anew with firmware": learnedAnew,
}

// changes are a machine's requests that changed something, logins apart.
func (h *host) changes() []sim.Request {
	return slices.DeleteFunc(h.Requests(), func(q sim.Request) bool { return q.Method == "GET" || strings.Contains(q.Path, "/Sessions") })
}

// failed says that an operation failed with a code, naming each of the words.
func failed(t *testing.T, o fleet.Operation, code string, words ...string) {
	t.Helper()
	if o.State != fleet.OpFailed || o.Error == nil || o.Error.Code != code || o.Error.Remedy == "" {
		t.Fatalf("%s is %s: %+v, want %s", o.Verb, o.State, o.Error, code)
	}
	for _, w := range words {
		if !strings.Contains(o.Error.Cause, w) {
			t.Errorf("%q does not name %q", o.Error.Cause, w)
		}
	}
}

func succeeded(t *testing.T, o fleet.Operation) {
	t.Helper()
	if o.State != fleet.OpSucceeded {
		t.Fatalf("%s is %s: %+v", o.Verb, o.State, o.Error)
	}
}

// at enrolls the machine by another address than its plain one.
func (h *host) at(address string) fleet.Operation {
	h.t.Helper()
	return h.enroll(obj{"bmc": obj{"address": address, "username": h.Username(), "password": h.Password(), "tls": h.tls}})
}

func severalSystems(t *testing.T, r *rig) {
	for _, file := range []string{"c05-three-systems", "c05-equal-names"} {
		f := caseFile(t, file)
		spec := *f.Machine
		spec.Power = "On"
		h := r.add(t, spec)
		h.faults(&sim.FaultFile{Faults: f.Faults})
		systems := h.View(true).State.Systems
		failed(t, h.enroll(nil), "wrong-machine", systems[0].ID, systems[1].ID, systems[2].ID)
		if n := len(h.changes()); n != 0 {
			t.Errorf("%d changes of a machine that was not found", n)
		}
		other := r.add(t, spec)
		failed(t, other.at(other.Address()+"/redfish/v1/Systems/No-such"), "wrong-machine", other.View(true).State.Systems[0].ID)
		if n := len(other.changes()); n != 0 {
			t.Errorf("%d changes of a machine that was not found", n)
		}
	}
	// Named, it is that one and no other.
	h := r.add(t, sim.MachineSpec{Systems: 3, Power: "On"})
	succeeded(t, h.at(h.Address()+"/redfish/v1/Systems/"+h.View(true).State.Systems[1].ID))
	succeeded(t, h.do("power", obj{"action": "off"}))
	for i, s := range h.View(true).State.Systems {
		if want := map[bool]string{true: "Off", false: "On"}[i == 1]; s.Power != want {
			t.Errorf("system %d is %s, want %s", i, s.Power, want)
		}
	}
}

func renamedBetween(t *testing.T, r *rig) {
	h := r.add(t, sim.MachineSpec{Systems: 3, Power: "On"})
	succeeded(t, h.at(h.Address()+"/redfish/v1/Systems/"+h.View(true).State.Systems[0].ID))
	if err := h.Change(map[string]any{"/systems/0/id": "Renamed-1"}); err != nil {
		t.Fatal(err)
	}
	failed(t, h.do("power", obj{"action": "cycle"}), "wrong-machine", "Renamed-1")
	if n := len(h.changes()); n != 0 {
		t.Errorf("%d changes after the system was renamed", n)
	}
}

// abortedInPost: an abort while the machine is in POST, where the override
// cannot be cleared, leaves the machine clean, and asks no more often than every
// ten seconds.
func abortedInPost(t *testing.T, r *rig) {
	for _, file := range []string{"", "c10-refused-during-post"} {
		f := caseFile(t, file)
		h := r.add(t, sim.MachineSpec{Profile: "generic", Seed: 3})
		h.ready()
		h.faults(&sim.FaultFile{Faults: f.Faults})
		op := h.begin("deploy", r.deployIn(t, nil))
		h.poll("POST with our medium", func() bool {
			v := h.View(true)
			return v.Post && slices.ContainsFunc(v.Media, func(m sim.Medium) bool { return m.Inserted })
		})
		if err := r.call(t, "metal/abort", obj{"nodeId": h.node}, nil); err != nil {
			t.Fatal(err)
		}
		o := h.until(op.ID, func(o fleet.Operation) bool { return o.EndedAt != nil })
		if o.State != fleet.OpAborted || len(o.LeftBehind) != 0 {
			t.Errorf("%s, left behind %q", o.State, o.LeftBehind)
		}
		cleanOverride(t, h, o)
		alwaysSo(t, h, f, 0)
	}
}

// mixedOperations: many operations, some refused and some cancelled, never have
// more than one session, and leave none.
func mixedOperations(t *testing.T, r *rig) {
	f := caseFile(t, "c13-four-sessions")
	for _, limited := range []bool{true, false} {
		spec := sim.MachineSpec{Profile: "generic", Seed: 3}
		n := 4
		if limited {
			spec, n = *f.Machine, 14
		}
		h := r.add(t, spec)
		h.enrolled()
		h.faults(&sim.FaultFile{Faults: []sim.Rule{{Name: "refused", Match: sim.Match{Method: "POST", Path: "**/ComputerSystem.Reset", Skip: 2, Every: 3},
			Apply: new(bool), Reply: &sim.Reply{Status: 400}}}})
		for i := range n {
			op := h.begin("power", obj{"action": []string{"on", "off", "reset"}[i%3], "force": true, "reason": "a test"})
			if i%5 == 4 {
				h.until(op.ID, func(o fleet.Operation) bool { return o.State != fleet.OpPending })
				if err := r.temporal.CancelWorkflow(t.Context(), fleet.WorkflowID(op.ID), ""); err != nil {
					t.Log(err) // it has ended already
				}
			}
			h.await(op.ID)
		}
		h.noSession()
		if c := h.Counts(); c.SessionsOpenMax > 1 || c.ChangesInFlightMax > 1 || c.LoginsFailed != 0 {
			t.Errorf("%d sessions at once, %d changes at once, %d logins refused", c.SessionsOpenMax, c.ChangesInFlightMax, c.LoginsFailed)
		}
	}
}

// notTrusted: no HTTP request is sent to a BMC whose certificate is not
// trusted, and what to do is said.
func notTrusted(t *testing.T, r *rig) {
	ca := string(r.rack.CA())
	for _, c := range []struct {
		mode string
		tls  obj
	}{
		{"selfSigned", obj{"mode": "verify"}},
		{"selfSigned", obj{"mode": "verify", "ca": ca}},
		{"wrongName", obj{"mode": "verify", "ca": ca}},
		{"expired", obj{"mode": "verify", "ca": ca}},
		{"selfSigned", obj{"mode": "pin", "fingerprint": "sha256:" + strings.Repeat("0", 64)}},
	} {
		h := r.add(t, sim.MachineSpec{TLS: sim.TLSSpec{Mode: c.mode}})
		h.tls = c.tls
		failed(t, h.enroll(nil), "trust")
		if n := len(h.Requests()); n != 0 {
			t.Errorf("%s %v: %d requests", c.mode, c.tls, n)
		}
		if s := h.condition("BmcTrusted"); s != fleet.ConditionFalse {
			t.Errorf("BmcTrusted is %q", s)
		}
	}
}

func trusted(t *testing.T, r *rig) {
	for mode, tls := range map[string]obj{"ownCA": {"mode": "verify", "ca": string(r.rack.CA())}, "selfSigned": {"mode": "insecure"}, "wrongName": {"mode": "pin"}} {
		h := r.add(t, sim.MachineSpec{TLS: sim.TLSSpec{Mode: mode}})
		h.tls = tls
		succeeded(t, h.enroll(nil))
		succeeded(t, h.do("power", obj{"action": "on"}))
	}
}

// certificateChanged: a certificate that changes in the middle of an operation
// stops it before the next request, on that machine only; accepted, it goes on.
func certificateChanged(t *testing.T, r *rig) {
	h, other := r.add(t, sim.MachineSpec{Profile: "generic", Seed: 3}), r.add(t, sim.MachineSpec{})
	other.enrolled()
	h.faults(&sim.FaultFile{Faults: caseFile(t, "c16-rotated-mid-run").Faults})
	o := h.enroll(obj{"advance": "ready"})
	failed(t, o, "trust")
	before := len(h.Requests())
	if s := h.condition("BmcTrusted"); s != fleet.ConditionFalse {
		t.Errorf("BmcTrusted is %q", s)
	}
	if !h.heard("security.bmc.certificate-changed") {
		t.Error("the event is missing")
	}
	if err := r.call(t, "metal/retry", obj{"nodeId": h.node}, nil); err != nil {
		t.Fatal(err)
	}
	h.until(o.ID, func(again fleet.Operation) bool {
		return attempts(again) > attempts(o) && again.State == fleet.OpFailed
	})
	if n := len(h.Requests()); n != before {
		t.Errorf("%d requests after the certificate changed", n-before)
	}
	succeeded(t, other.do("power", obj{"action": "on"}))
	_, fingerprint, ok := strings.Cut(o.Error.Cause, "its certificate is ")
	fingerprint, _, _ = strings.Cut(fingerprint, ",")
	if !ok {
		t.Fatalf("the new fingerprint is not in %q", o.Error.Cause)
	}
	if err := r.call(t, "metal/update", obj{"nodeId": h.node, "bmc": obj{"tls": obj{"fingerprint": fingerprint}}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.call(t, "metal/retry", obj{"nodeId": h.node}, nil); err != nil {
		t.Fatal(err)
	}
	succeeded(t, h.until(o.ID, func(o fleet.Operation) bool { return o.EndedAt != nil }))
	if s := h.condition("BmcTrusted"); s != fleet.ConditionTrue {
		t.Errorf("BmcTrusted is %q after the new certificate was accepted", s)
	}
}

// attempts is how often the steps of an operation were begun.
func attempts(o fleet.Operation) (n int) {
	for _, s := range o.Steps {
		n += s.Attempts
	}
	return n
}

// ipmiStates: over IPMI too a power that is already so is a success without a
// change, and a cycle or reset of a machine that is off switches it on.
func ipmiStates(t *testing.T, r *rig) {
	chassis := ipmisim.Start(t)
	h := &host{r: r, t: t}
	var out fleet.MetalOperationOut
	if err := r.call(t, "metal/enroll", obj{"siteId": r.site, "name": "ipmi-1", "inUse": false, "bmc": obj{"address": fmt.Sprintf("ipmi://127.0.0.1:%d", chassis.Port),
		"username": ipmisim.User, "password": ipmisim.Password}}, &out); err != nil {
		t.Fatal(err)
	}
	h.node = out.Node.ID
	succeeded(t, h.await(out.Operation.ID))
	for _, c := range []struct{ found, action, power, calls string }{
		{"0", "off", "0", ""}, {"1", "on", "1", ""}, {"0", "cycle", "1", "power 1"}, {"0", "reset", "1", "power 1"}, {"1", "off", "0", "power 0"}, {"0", "on", "1", "power 1"},
	} {
		chassis.Write("power", c.found+"\n", 0o600)
		chassis.Write("calls", "", 0o600)
		succeeded(t, h.do("power", obj{"action": c.action}))
		if power, calls := strings.TrimSpace(chassis.Read("power")), strings.TrimSpace(chassis.Read("calls")); power != c.power || calls != c.calls {
			t.Errorf("%s of a machine with power %s: power %s after %q, want %s after %q", c.action, c.found, power, calls, c.power, c.calls)
		}
	}
}

// mustChangePassword: a machine as it is delivered enrolls once its password
// was changed by a rotation, as the failure says.
func mustChangePassword(t *testing.T, r *rig) {
	h := r.add(t, sim.MachineSpec{Profile: "generic", Seed: 3, MustChangePassword: true})
	o := h.enroll(nil)
	failed(t, o, "authentication", "change its password")
	if !strings.Contains(o.Error.Remedy, "rotate") {
		t.Errorf("remedy %q", o.Error.Remedy)
	}
	succeeded(t, h.do("setCredentials", obj{"username": h.Username(), "password": "A-new-Passw0rd", "rotate": true}))
	if h.Password() != "A-new-Passw0rd" {
		t.Error("the password was not set")
	}
	if err := r.call(t, "metal/retry", obj{"nodeId": h.node}, nil); err != nil {
		t.Fatal(err)
	}
	succeeded(t, h.until(o.ID, func(o fleet.Operation) bool { return o.EndedAt != nil }))
	if n := h.Counts().LoginsFailed; n != 0 {
		t.Errorf("%d logins were refused", n)
	}
}

// rotationRefused: a BMC that refuses the new password, or says that it took it
// and did not, keeps the old one, which goes on to work.
func rotationRefused(t *testing.T, r *rig) {
	for _, status := range []int{400, 200} {
		h := r.add(t, sim.MachineSpec{Profile: "generic", Seed: 3})
		h.enrolled()
		old := h.Password()
		h.faults(&sim.FaultFile{Faults: []sim.Rule{{Name: "refused", Match: sim.Match{Method: "PATCH", Path: "**/Accounts/*"}, Apply: new(bool), Reply: &sim.Reply{Status: status}}}})
		o := h.do("setCredentials", obj{"username": h.Username(), "password": "A-new-Passw0rd", "rotate": true})
		failed(t, o, "refused")
		h.ClearFaults()
		if h.Password() != old {
			t.Error("the password changed")
		}
		succeeded(t, h.do("power", obj{"action": "on"}))
	}
}

// rotationCutOff: a rotation that ends between setting the password and
// recording it, or before it was set, leaves a way in: the next operation finds
// it by itself, with one refused login at most.
func rotationCutOff(t *testing.T, r *rig) {
	for _, apply := range []bool{true, false} {
		h := r.add(t, sim.MachineSpec{Profile: "generic", Seed: 3})
		h.enrolled()
		h.faults(&sim.FaultFile{Faults: []sim.Rule{{Name: "slow", Match: sim.Match{Method: "PATCH", Path: "**/Accounts/*"}, Apply: &apply, Reply: &sim.Reply{Delay: sim.Duration(120 * time.Second)}}}})
		op := h.begin("setCredentials", obj{"username": h.Username(), "password": "A-new-Passw0rd", "rotate": true})
		h.poll("the rotation", func() bool { return len(h.changes()) == 1 })
		if err := r.temporal.TerminateWorkflow(t.Context(), fleet.WorkflowID(op.ID), "", "cut off"); err != nil {
			t.Fatal(err)
		}
		if o := h.await(op.ID); o.State != fleet.OpFailed {
			t.Errorf("the operation is %s", o.State)
		}
		h.ClearFaults()
		for _, action := range []string{"on", "off"} {
			succeeded(t, h.do("power", obj{"action": action}))
		}
		if apply && h.Password() != "A-new-Passw0rd" {
			t.Error("the password is not the new one")
		}
		if n := h.Counts().LoginsFailed; n > 1 {
			t.Errorf("%d logins were refused", n)
		}
		succeeded(t, h.do("setCredentials", obj{"username": h.Username(), "password": "Another-Passw0rd", "rotate": true}))
		if h.Password() != "Another-Passw0rd" {
			t.Error("the next rotation did not come through")
		}
	}
}

// oldSystemBoots: a machine that boots the old system on its disk instead of our
// medium is noticed long before the wait for its call-in is over, where the BMC
// shows how far a boot has come. The old system is left alone.
func oldSystemBoots(t *testing.T, r *rig) {
	h := r.add(t, sim.MachineSpec{Profile: "openbmc", Seed: 3})
	h.ready()
	gone, disks := map[string]any{}, map[string]any{}
	v := h.View(true)
	for i := range v.Media {
		gone[fmt.Sprintf("/systems/0/media/%d/inserted", i)] = false
	}
	for i := range v.Disks {
		disks[fmt.Sprintf("/systems/0/disks/%d/content", i)] = sim.ContentData
	}
	if err := h.Change(disks); err != nil {
		t.Fatal(err)
	}
	h.faults(&sim.FaultFile{Faults: []sim.Rule{{Name: "does not boot media", Match: sim.Match{Method: "POST", Path: "**/ComputerSystem.Reset", Body: map[string]any{"ResetType": "On"}}, Effect: gone}}})
	o := h.do("deploy", r.deployIn(t, obj{"bootVia": "virtualMedia"}))
	failed(t, o, "no-call-in", "something else than our medium")
	log := h.BootLog()
	if last := log[len(log)-1]; last.Source != "disk" {
		t.Errorf("booted %+v", last)
	}
	if d := h.View(true).Disks[0]; d.Content != sim.ContentData {
		t.Errorf("the disk holds %s", d.Content)
	}
	cleanOverride(t, h, o)
}

// plainHTTP: an address without TLS is refused until it is said that nothing is
// to be trusted, whenever it is given.
func plainHTTP(t *testing.T, r *rig) {
	h := r.add(t, sim.MachineSpec{})
	h.enrolled()
	for i, address := range []string{"http://127.0.0.1:1", "redfish+http://127.0.0.1:1/redfish/v1/Systems/1"} {
		for mode, want := range map[string]fleet.Code{"": fleet.CodeInvalidInput, "verify": fleet.CodeInvalidInput, "pin": fleet.CodeInvalidInput, "insecure": ""} {
			bmc := obj{"address": address, "username": "root", "password": "sesame"}
			if mode != "" {
				bmc["tls"] = obj{"mode": mode}
			}
			err := r.call(t, "metal/enroll", obj{"siteId": r.site, "name": fmt.Sprintf("plain-%d", i), "bmc": bmc, "dryRun": true}, nil)
			if got := fleet.CodeOf(errOf(err)); got != want || want != "" && !strings.Contains(err.Detail, "tls.mode insecure") {
				t.Errorf("%s with mode %q: %v, want %q", address, mode, err, want)
			}
		}
		change := obj{"nodeId": h.node, "dryRun": true, "bmc": obj{"address": address}}
		if err := r.call(t, "metal/update", change, nil); err == nil || err.Code != fleet.CodeInvalidInput {
			t.Errorf("update to %s: %v", address, err)
		}
		change["bmc"] = obj{"address": address, "tls": obj{"mode": "insecure"}}
		if err := r.call(t, "metal/update", change, nil); err != nil {
			t.Errorf("update to %s, insecure: %v", address, err)
		}
	}
}

// errOf is an error without a value where there is none.
func errOf(e *fleet.Error) error {
	if e == nil {
		return nil
	}
	return e
}

// learnedAnew: what a BMC was learned to need is kept over operations, and read
// anew by the first inspect after its firmware changed.
func learnedAnew(t *testing.T, r *rig) {
	h := r.add(t, sim.MachineSpec{Profile: "generic", Seed: 3, BootHome: "live"})
	h.faults(&sim.FaultFile{Faults: caseFile(t, "c08-mode-required").Faults})
	succeeded(t, h.enroll(obj{"advance": "ready"}))
	before := h.metal().BMC
	if !slices.Contains(before.Quirks, "boot-mode-must-be-sent") {
		t.Fatalf("quirks %q", before.Quirks)
	}
	h.ClearFaults()
	succeeded(t, h.do("inspect", nil))
	if is := h.metal().BMC.Quirks; !slices.Equal(is, before.Quirks) {
		t.Errorf("quirks %q after an inspect of the same firmware, were %q", is, before.Quirks)
	}
	h.faults(&sim.FaultFile{Faults: []sim.Rule{
		{Name: "new firmware", Match: sim.Match{Method: "GET", Path: "**/Managers/*"}, Set: map[string]any{"/FirmwareVersion": "99.1"}},
		{Name: "offers less", Match: sim.Match{Method: "GET", Path: "**/Systems/*"}, Set: map[string]any{"/Boot/BootSourceOverrideTarget@Redfish.AllowableValues": []any{"None", "Pxe", "Cd"}}},
	}})
	o := h.do("inspect", nil)
	succeeded(t, o)
	after := h.metal().BMC
	if len(after.Quirks) != 0 || after.Capabilities.FirmwareVersion != "99.1" || slices.Equal(after.Capabilities.BootTargets, before.Capabilities.BootTargets) {
		t.Errorf("quirks %q, capabilities %+v", after.Quirks, after.Capabilities)
	}
	if d := o.Steps[len(o.Steps)-1].Detail; !strings.Contains(d, "firmware is 99.1 now") {
		t.Errorf("the step says %q", d)
	}
}
