package sim_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/sim"
	"github.com/google/go-cmp/cmp"
)

// TestRuleMatch has one rule that refuses with 418, and says which of a series
// of requests it is for.
func TestRuleMatch(t *testing.T) {
	t.Parallel()
	reset := func(kind string, headers ...string) func(*bmc) *response {
		return func(b *bmc) *response {
			return b.call(http.MethodPost, resetPath, map[string]any{"ResetType": kind}, headers...)
		}
	}
	get := func(path string, headers ...string) func(*bmc) *response {
		return func(b *bmc) *response { return b.call(http.MethodGet, path, nil, headers...) }
	}
	patch := func(boot map[string]any) func(*bmc) *response {
		return func(b *bmc) *response {
			return b.call(http.MethodPatch, sysPath, map[string]any{"Boot": boot})
		}
	}
	advance := func(d time.Duration) func(*bmc) *response {
		return func(b *bmc) *response { b.r.Advance(d); return nil }
	}
	tests := map[string]struct {
		match string
		steps []func(*bmc) *response
		want  []bool
	}{
		"method":      {`{method: POST}`, []func(*bmc) *response{reset("On"), get(sysPath)}, []bool{true, false}},
		"two methods": {`{method: POST|PATCH}`, []func(*bmc) *response{reset("On"), patch(nil), get(sysPath)}, []bool{true, true, false}},
		"path": {`{path: "**/Actions/ComputerSystem.Reset"}`,
			[]func(*bmc) *response{reset("On"), get(sysPath)}, []bool{true, false}},
		"one element": {`{path: "**/Systems/*"}`,
			[]func(*bmc) *response{get(sysPath), get(sysPath + "/Bios"), get("/redfish/v1/Systems")}, []bool{true, false, false}},
		"query present": {`{query: {"$expand": present}}`,
			[]func(*bmc) *response{get("/redfish/v1/Systems?$expand=."), get("/redfish/v1/Systems")}, []bool{true, false}},
		"query value": {`{query: {"$expand": "*($levels=1)"}}`,
			[]func(*bmc) *response{get("/redfish/v1/Systems?$expand=*($levels=1)"), get("/redfish/v1/Systems?$expand=.")}, []bool{true, false}},
		"header absent": {`{headers: {If-Match: absent}}`,
			[]func(*bmc) *response{reset("On"), reset("On", "If-Match", "*")}, []bool{true, false}},
		"header glob": {`{headers: {X-Probe: "a*"}}`,
			[]func(*bmc) *response{get(sysPath, "X-Probe", "abc"), get(sysPath, "X-Probe", "bcd"), get(sysPath)}, []bool{true, false, false}},
		"body subset": {`{body: {Boot: {BootSourceOverrideTarget: Cd}}}`,
			[]func(*bmc) *response{
				patch(map[string]any{"BootSourceOverrideTarget": "Cd", "BootSourceOverrideEnabled": "Once"}),
				patch(map[string]any{"BootSourceOverrideTarget": "Pxe"}), reset("On")}, []bool{true, false, false}},
		"bodyHas": {`{bodyHas: [/Boot/BootSourceOverrideMode]}`,
			[]func(*bmc) *response{patch(map[string]any{"BootSourceOverrideMode": "UEFI"}), patch(map[string]any{})}, []bool{true, false}},
		"bodyLacks": {`{method: PATCH, bodyLacks: [/Boot/BootSourceOverrideMode]}`,
			[]func(*bmc) *response{patch(map[string]any{"BootSourceOverrideMode": "UEFI"}), patch(map[string]any{})}, []bool{false, true}},
		"power": {`{method: GET, state: {power: "Off"}}`,
			[]func(*bmc) *response{get(sysPath), reset("On"), advance(20 * time.Second), get(sysPath)}, []bool{true, false, false, false}},
		"post": {`{method: GET, state: {post: true}}`,
			[]func(*bmc) *response{get(sysPath), reset("On"), advance(21 * time.Second), get(sysPath), advance(2 * time.Minute), get(sysPath)},
			[]bool{false, false, false, true, false, false}},
		"media": {`{method: GET, state: {media: inserted}}`,
			[]func(*bmc) *response{get(sysPath), func(b *bmc) *response { return b.insert("http://img/x.iso") }, get(sysPath)}, []bool{false, false, true}},
		"no media": {`{method: GET, state: {media: empty}}`,
			[]func(*bmc) *response{get(sysPath), func(b *bmc) *response { return b.insert("http://img/x.iso") }, get(sysPath)}, []bool{true, false, false}},
		"sessions": {`{method: GET, state: {sessions: ">=1"}}`,
			[]func(*bmc) *response{get(sysPath), func(b *bmc) *response { return b.login() }, get(sysPath)}, []bool{false, false, true}},
		"just changed": {`{method: GET, sinceChange: "<90s"}`,
			[]func(*bmc) *response{get(sysPath), reset("On"), get(sysPath), advance(91 * time.Second), get(sysPath)}, []bool{false, false, true, false, false}},
		"long unchanged": {`{method: GET, sinceChange: ">90s"}`,
			[]func(*bmc) *response{get(sysPath), reset("On"), get(sysPath), advance(91 * time.Second), get(sysPath)}, []bool{true, false, false, false, true}},
		"skip":  {`{skip: 2}`, []func(*bmc) *response{get(sysPath), get(sysPath), get(sysPath), get(sysPath)}, []bool{false, false, true, true}},
		"times": {`{times: 2}`, []func(*bmc) *response{get(sysPath), get(sysPath), get(sysPath)}, []bool{true, true, false}},
		"every": {`{every: 3}`, []func(*bmc) *response{get(sysPath), get(sysPath), get(sysPath), get(sysPath)}, []bool{true, false, false, true}},
		"skip, every and times": {`{skip: 1, every: 2, times: 2}`,
			[]func(*bmc) *response{get(sysPath), get(sysPath), get(sysPath), get(sysPath), get(sysPath), get(sysPath)}, []bool{false, true, false, true, false, false}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBMC(t, plain())
			b.faults("faults: [{name: probe, match: " + tt.match + ", apply: false, reply: {status: 418}}]")
			var got []bool
			for _, step := range tt.steps {
				r := step(b)
				got = append(got, r != nil && r.status == http.StatusTeapot)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("acted (-want +got):\n%s", diff)
			}
			hits := 0
			for _, w := range tt.want {
				if w {
					hits++
				}
			}
			if got := b.m.Faults()[0].Hits; got != hits {
				t.Errorf("hits: got %d, want %d", got, hits)
			}
		})
	}
}

func (b *bmc) login() *response {
	return b.as("", "", http.MethodPost, "/redfish/v1/SessionService/Sessions",
		map[string]any{"UserName": b.m.Username(), "Password": b.m.Password()})
}

func TestRuleApplyAndAfter(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		rule string
		// power after the reset was answered and settled, and 13 s later.
		soon, later string
	}{
		"no rule":        {``, "On", "On"},
		"apply true":     {`- {name: r, match: {method: POST}, apply: true}`, "On", "On"},
		"apply false":    {`- {name: r, match: {method: POST}, apply: false}`, "Off", "Off"},
		"after":          {`- {name: r, match: {method: POST}, after: 13s}`, "Off", "On"},
		"drop before":    {`- {name: r, match: {method: POST}, reply: {drop: before}}`, "Off", "Off"},
		"drop after":     {`- {name: r, match: {method: POST}, reply: {drop: after}}`, "On", "On"},
		"drop midway":    {`- {name: r, match: {method: POST}, reply: {status: 200, raw: "0123456789", drop: midway}}`, "On", "On"},
		"task":           {`- {name: r, match: {method: POST}, reply: {task: {ref: body, for: 10s}}}`, "Off", "On"},
		"task refused":   {`- {name: r, match: {method: POST}, apply: false, reply: {task: {ref: body, for: 10s}}}`, "Off", "Off"},
		"task and after": {`- {name: r, match: {method: POST}, after: 3s, reply: {task: {ref: body, for: 10s}}}`, "Off", "On"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBMC(t, plain())
			b.faults("faults:\n" + tt.rule + "\nmachine: {powerSettle: 0s}")
			r := b.reset("On")
			if dropped := strings.HasPrefix(name, "drop"); dropped != (r == nil) {
				t.Errorf("dropped: got %v, want %v", r == nil, dropped)
			}
			b.r.Advance(time.Second)
			if got := b.power(); got != tt.soon {
				t.Errorf("power soon: got %s, want %s", got, tt.soon)
			}
			b.r.Advance(13 * time.Second)
			if got := b.power(); got != tt.later {
				t.Errorf("power later: got %s, want %s", got, tt.later)
			}
			if got := b.m.Counts().Resets["On"]; got != 1 {
				t.Errorf("resets counted: got %d, want 1", got)
			}
		})
	}
}

func TestRuleReply(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		rules string
		check func(*testing.T, *response)
	}{
		"status alone keeps the body": {`- {name: r, match: {method: GET}, reply: {status: 203}}`, func(t *testing.T, r *response) {
			if r.status != 203 || r.body["PowerState"] != "Off" {
				t.Errorf("got %d %v", r.status, r.body["PowerState"])
			}
		}},
		"headers": {`- {name: r, match: {method: GET}, reply: {status: 503, headers: {Retry-After: "5"}}}`, func(t *testing.T, r *response) {
			if r.status != 503 || r.header.Get("Retry-After") != "5" {
				t.Errorf("got %d %q", r.status, r.header.Get("Retry-After"))
			}
		}},
		"body": {`- {name: r, match: {method: GET}, reply: {body: {a: [1, null]}}}`, func(t *testing.T, r *response) {
			if r.status != 200 || string(r.raw) != `{"a":[1,null]}` {
				t.Errorf("got %d %s", r.status, r.raw)
			}
		}},
		"raw": {`- {name: r, match: {method: GET}, reply: {raw: "<html>", headers: {content-type: text/html}}}`, func(t *testing.T, r *response) {
			if string(r.raw) != "<html>" || r.header.Get("Content-Type") != "text/html" {
				t.Errorf("got %s %v", r.raw, r.header)
			}
		}},
		"patch removes": {`- {name: r, match: {method: GET}, patch: {Boot: null, Status: {Health: Critical}}}`, func(t *testing.T, r *response) {
			if _, there := r.body["Boot"]; there || at(r.body, "Status", "Health") != "Critical" || at(r.body, "Status", "State") != "Enabled" {
				t.Errorf("got %s", r.raw)
			}
		}},
		"set null is null": {`- {name: r, match: {method: GET}, set: {"/PowerState": null, "/Oem/New": 1}}`, func(t *testing.T, r *response) {
			v, there := r.body["PowerState"]
			if !there || v != nil || at(r.body, "Oem", "New") != 1.0 {
				t.Errorf("got %s", r.raw)
			}
		}},
		"patches add up, the first reply ends": {`
- {name: a, match: {method: GET}, patch: {A: 1}}
- {name: b, match: {method: GET}, set: {"/B": 2}}
- {name: c, match: {method: GET}, reply: {status: 299}}
- {name: d, match: {method: GET}, patch: {D: 4}}`, func(t *testing.T, r *response) {
			_, d := r.body["D"]
			if r.status != 299 || r.body["A"] != 1.0 || r.body["B"] != 2.0 || d {
				t.Errorf("got %d %s", r.status, r.raw)
			}
		}},
		"effect comes before the answer": {`- {name: r, match: {method: GET}, effect: {"/health": Critical, "/Boot/BootSourceOverrideTarget": Pxe}}`, func(t *testing.T, r *response) {
			if at(r.body, "Status", "Health") != "Critical" || at(r.body, "Boot", "BootSourceOverrideTarget") != "Pxe" {
				t.Errorf("got %s", r.raw)
			}
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBMC(t, plain())
			b.faults("faults:\n" + tt.rules)
			tt.check(t, b.call(http.MethodGet, sysPath, nil))
		})
	}
}

// TestRuleDelay runs on a clock that runs: a delayed answer comes, and comes
// after the simulated delay.
func TestRuleDelay(t *testing.T) {
	t.Parallel()
	b := addBMC(t, newRack(t, sim.Options{TimeScale: 100}), plain())
	b.faults(`faults: [{name: slow, match: {method: POST}, reply: {delay: 3s}}]`)
	before := b.r.Now()
	if r := b.reset("On"); r == nil || r.status >= 300 {
		t.Fatalf("got %v", r)
	}
	if took := b.r.Now().Sub(before); took < 3*time.Second {
		t.Errorf("answered after %s of simulated time, want 3s or more", took)
	}
}

// TestRuleTask follows a task through the states that a rule gives it.
func TestRuleTask(t *testing.T) {
	t.Parallel()
	for _, ref := range []string{"location", "link", "body", "none"} {
		t.Run(ref, func(t *testing.T) {
			t.Parallel()
			b := newBMC(t, plain())
			b.faults(`faults: [{name: r, match: {method: POST}, reply: {task: {ref: ` + ref +
				`, for: 50s, states: [New, Verifying, Completed], status: Critical}}}]`)
			r := b.reset("On")
			named := map[string]bool{"location": r.header.Get("Location") != "", "link": r.header.Get("Link") != "", "body": r.body != nil}
			want := map[string]bool{"location": ref == "location", "link": ref == "link", "body": ref == "body"}
			if diff := cmp.Diff(want, named); r.status != http.StatusAccepted || diff != "" {
				t.Errorf("status %d, named (-want +got):\n%s", r.status, diff)
			}
			task, _ := at(b.get("/redfish/v1/TaskService/Tasks"), "Members", 0, "@odata.id").(string)
			var states []any
			for range 3 {
				doc := b.get(task)
				states = append(states, doc["TaskState"], doc["TaskStatus"])
				b.r.Advance(25 * time.Second)
			}
			if diff := cmp.Diff([]any{"New", "OK", "Verifying", "OK", "Completed", "Critical"}, states); diff != "" {
				t.Errorf("states (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFaultsReplaceAndClear(t *testing.T) {
	t.Parallel()
	b := newBMC(t, plain())
	doc := `faults: [{name: r, match: {method: GET}, reply: {status: 418}}]`
	b.faults(doc)
	b.call(http.MethodGet, sysPath, nil)
	if got := b.m.Faults()[0].Hits; got != 1 {
		t.Errorf("hits: got %d, want 1", got)
	}
	b.faults(doc)
	if got := b.m.Faults()[0].Hits; got != 0 {
		t.Errorf("hits after PUT: got %d, want 0", got)
	}
	b.m.ClearFaults()
	if r := b.call(http.MethodGet, sysPath, nil); r.status != http.StatusOK {
		t.Errorf("status without rules: %d", r.status)
	}
}

func TestParseFaultsRefuses(t *testing.T) {
	t.Parallel()
	for name, doc := range map[string]string{
		"unknown member":       `faults: [{name: r, match: {verb: GET}, apply: false}]`,
		"does nothing":         `faults: [{name: r, match: {method: GET}}]`,
		"no comparison":        `faults: [{name: r, match: {sinceChange: 90s}, apply: false}]`,
		"no duration":          `faults: [{name: r, match: {sinceChange: "<soon"}, apply: false}]`,
		"no number":            `faults: [{name: r, match: {state: {sessions: ">=many"}}, apply: false}]`,
		"unknown power":        `faults: [{name: r, match: {state: {power: Up}}, apply: false}]`,
		"unknown drop":         `faults: [{name: r, match: {}, reply: {drop: never}}]`,
		"unknown ref":          `faults: [{name: r, match: {}, reply: {task: {ref: cookie}}}]`,
		"no pointer":           `faults: [{name: r, match: {}, set: {PowerState: null}}]`,
		"unknown reset type":   `machine: {resetTypes: [Explode]}`,
		"unknown machine part": `machine: {wheels: 4}`,
		"no glob":              `faults: [{name: r, match: {path: "[a"}, apply: false}]`,
	} {
		if _, err := sim.ParseFaults([]byte(doc)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestEffectRefused(t *testing.T) {
	t.Parallel()
	b := newBMC(t, plain())
	for name, doc := range map[string]string{
		"unknown member": `faults: [{name: r, match: {}, effect: {"/wheels": 4}}]`,
		"unknown parent": `faults: [{name: r, match: {}, effect: {"/systems/7/power": "On"}}]`,
		"wrong type":     `faults: [{name: r, match: {}, effect: {"/power": {}}}]`,
	} {
		f, err := sim.ParseFaults([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.m.SetFaults(f); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
