package sim_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/sim"
	"github.com/google/go-cmp/cmp"
)

// TestEveryCaseHasItsFiles puts every fault file that is built in on a machine
// made for it.
func TestEveryCaseHasItsFiles(t *testing.T) {
	t.Parallel()
	r := newRack(t, sim.Options{})
	var cases []string
	for _, name := range sim.FaultNames() {
		cases = append(cases, name[:3])
		f, err := sim.NamedFaults(name)
		if err != nil {
			t.Fatal(err)
		}
		spec := sim.MachineSpec{Profile: "generic"}
		if f.Machine != nil {
			spec = *f.Machine
		}
		m, err := r.Add(spec)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := m.SetFaults(f); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	want := strings.Fields("c01 c02 c03 c04 c05 c06 c07 c08 c09 c10 c11 c12 c13 c14 c15 c16")
	if diff := cmp.Diff(want, slices.Compact(cases)); diff != "" {
		t.Errorf("cases (-want +got):\n%s", diff)
	}
	if _, err := sim.NamedFaults("c99"); err == nil {
		t.Error("a file that is not there was found")
	}
}

// TestCaseFiles shows, case by case, what a client sees on the wire.
func TestCaseFiles(t *testing.T) {
	t.Parallel()
	status := func(want ...int) func(*response) bool {
		return func(r *response) bool { return r != nil && slices.Contains(want, r.status) }
	}
	accepted := func(r *response) bool { return r != nil && r.status < 300 }
	type step struct {
		do func(*bmc) *response
		ok func(*response) bool
	}
	reset := func(kind string) func(*bmc) *response { return func(b *bmc) *response { return b.reset(kind) } }
	cd := func(b *bmc) *response { return b.override("Once", "Cd") }
	get := func(b *bmc) *response { return b.call(http.MethodGet, sysPath, nil) }
	insert := func(b *bmc) *response { return b.insert(iso) }
	wait := func(d time.Duration) step {
		return step{func(b *bmc) *response { b.r.Advance(d); return nil }, func(*response) bool { return true }}
	}
	shows := func(pointer ...any) func(any) func(*response) bool {
		return func(want any) func(*response) bool {
			return func(r *response) bool { return cmp.Equal(at(r.body, pointer...), want) }
		}
	}
	power := shows("PowerState")
	withMode := func(b *bmc) *response {
		return b.call(http.MethodPatch, sysPath, map[string]any{"Boot": map[string]any{"BootSourceOverrideEnabled": "Once",
			"BootSourceOverrideTarget": "Cd", "BootSourceOverrideMode": "UEFI"}})
	}
	mode := shows("Boot", "BootSourceOverrideMode")
	tests := map[string][]step{
		"c01-same-state-409":          {{reset("ForceOff"), status(409)}, {reset("On"), accepted}, wait(time.Minute), {reset("On"), status(409)}, {reset("ForceOff"), accepted}},
		"c01-same-state-400":          {{reset("ForceOff"), status(400)}},
		"c01-same-state-204":          {{reset("ForceOff"), status(204)}},
		"c02-few-types-inline":        {{reset("PowerCycle"), status(400)}, {reset("ForceRestart"), accepted}},
		"c02-few-types-actioninfo":    {{reset("PowerCycle"), status(400)}, {get, shows("Actions", "#ComputerSystem.Reset", "@Redfish.ActionInfo")(sysPath + "/ResetActionInfo")}},
		"c02-no-list":                 {{get, shows("Actions", "#ComputerSystem.Reset")(map[string]any{"target": resetPath})}, {reset("PowerCycle"), status(400)}},
		"c03-settle-13s-old":          {{reset("On"), accepted}, wait(12 * time.Second), {get, power("Off")}, wait(2 * time.Second), {get, power("On")}},
		"c03-settle-60s-transitional": {{reset("On"), accepted}, wait(50 * time.Second), {get, power("PoweringOn")}, wait(11 * time.Second), {get, power("On")}, {reset("ForceOff"), accepted}, {get, power("PoweringOff")}},
		"c03-settle-13s-null":         {{reset("On"), accepted}, {get, power(nil)}, wait(14 * time.Second), {get, power("On")}},
		"c03-stuck":                   {{reset("On"), accepted}, wait(time.Hour), {get, power("Off")}},
		"c04-task-cancelled":          {{reset("On"), status(202)}, wait(time.Hour), {get, power("Off")}},
		"c04-task-odd-state-then-ok":  {{reset("On"), status(202)}, wait(time.Minute), {get, power("On")}},
		"c06-if-match-428-header":     {{cd, status(428)}},
		"c06-if-match-412-body":       {{cd, status(412)}},
		"c07-mode-readonly-wanted":    {{withMode, status(400)}, {cd, accepted}},
		"c07-mode-absent-other":       {{get, mode(nil)}, {withMode, status(400)}, {cd, accepted}},
		"c08-mode-reset-if-omitted":   {{get, mode("UEFI")}, {cd, accepted}, {get, mode("Legacy")}, {withMode, accepted}, {get, mode("UEFI")}},
		"c08-mode-required":           {{cd, status(400)}, {withMode, accepted}},
		"c09-settings":                {{cd, status(400)}},
		"c10-refused-during-post":     {{reset("On"), accepted}, wait(30 * time.Second), {cd, status(400)}, wait(2 * time.Minute), {cd, accepted}},
		"c11-protocol-required-a-listed": {{insert, status(400)}, {func(b *bmc) *response { return b.call(http.MethodGet, cdPath, nil) },
			shows("Actions", "#VirtualMedia.InsertMedia", "TransferProtocolType@Redfish.AllowableValues", 0)("HTTP")}},
		"c12-insert-task-location": {{insert, status(202)}, {insert, status(409)}, wait(51 * time.Second),
			{func(b *bmc) *response { return b.call(http.MethodGet, cdPath, nil) }, shows("Inserted")(true)}},
		"c13-four-sessions":          {{(*bmc).login, status(201)}, {(*bmc).login, status(201)}, {(*bmc).login, status(201)}, {(*bmc).login, status(201)}, {(*bmc).login, status(503)}},
		"c15-not-ready-503":          {{get, status(503)}, {get, status(503)}, {get, status(503)}, {get, status(200)}},
		"c15-not-ready-400":          {{get, status(400)}},
		"c15-not-ready-after-change": {{get, status(200)}, {reset("On"), accepted}, {get, status(503)}, wait(91 * time.Second), {get, status(200)}},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBMC(t, plain())
			f, err := sim.NamedFaults(name)
			if err != nil {
				t.Fatal(err)
			}
			if f.Machine != nil {
				f.Machine.Systems = 0
			}
			if err := b.m.SetFaults(f); err != nil {
				t.Fatal(err)
			}
			for i, s := range steps {
				if r := s.do(b); !s.ok(r) {
					t.Fatalf("step %d: %v", i+1, r)
				}
			}
		})
	}
}

// TestCaseTokenInvalid loses the session at every fifth request, with a page of HTML.
func TestCaseTokenInvalid(t *testing.T) {
	t.Parallel()
	b := newBMC(t, plain())
	f, err := sim.NamedFaults("c14-token-invalid")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.m.SetFaults(f); err != nil {
		t.Fatal(err)
	}
	token := b.login().header.Get("X-Auth-Token")
	var got []int
	for range 6 {
		r := b.withToken(token, http.MethodGet, sysPath)
		got = append(got, r.status)
		if r.status == http.StatusUnauthorized && len(got) == 5 && !strings.Contains(string(r.raw), "<html>") {
			t.Errorf("the fifth answer is no HTML: %s", r.raw)
		}
	}
	if diff := cmp.Diff([]int{200, 200, 200, 200, 401, 401}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
