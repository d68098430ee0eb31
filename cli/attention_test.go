package cli_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/cli"
	"github.com/bettercompute/compute/fleet"
)

// What needs a person is listed over all pages, the oldest first, each thing
// once and with what to do; what goes on by itself, and retired nodes, are not.
func TestAttention(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, map[string][]string{
		"nodes/list": {
			`{"nextCursor": "c", "items": [
			{"id": "n1", "name": "gpu-1", "provisionState": "failed", "failed": {"from": "deploying", "step": "await-call-in", "cause": "no call-in", "remedy": "see the console", "at": "2026-01-01T00:00:02.000Z"},
				"operations": {"provision": "op_1"}, "conditions": [{"type": "BmcTrusted", "status": "False", "message": "no call-in", "since": "2026-01-01T00:00:02.000Z"}]},
			{"id": "n2", "name": "gpu-2", "provisionState": "retired", "conditions": [{"type": "BmcReachable", "status": "False", "since": "2026-01-01T00:00:00.000Z"}]}]}`,
			`{"items": [{"id": "n3", "name": "gpu-3", "provisionState": "deployed", "hold": {"by": "ann", "reason": "photo", "since": "2026-01-01T00:00:03.000Z"},
				"conditions": [{"type": "Connected", "status": "False", "reason": "silent", "since": "2026-01-01T00:00:01.000Z"}, {"type": "SshConflict", "status": "False", "since": "2026-01-01T00:00:01.000Z"}]}]}`},
		"operations/list": {
			`{"items": [{"id": "op_0", "nodeId": "n3", "verb": "inspect", "state": "pending", "createdAt": "2999-01-01T00:00:00.000Z"}]}`,
			`{"items": [{"id": "op_2", "nodeId": "n3", "verb": "release", "state": "running", "createdAt": "2026-01-01T00:00:04.000Z", "steps": [{"name": "erase-in-band", "state": "running", "detail": "3%"}]}]}`,
			`{"items": [{"id": "op_3", "nodeId": "n3", "verb": "drain", "state": "waiting", "createdAt": "2026-01-01T00:00:04.000Z",
				"waitingFor": {"actor": "ann", "what": "1 allocation", "since": "2026-01-01T00:00:05.000Z", "youCan": ["nodes/uncordon"]}}]}`},
	})
	out, _, err := f.run("attention", "--site-id", "site_1", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Items []struct{ Name, Kind, What, Cause, Do, Next, OperationID string }
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	type item = struct{ Name, Kind, What, Cause, Do, Next, OperationID string }
	want := []item{
		{Name: "gpu-3", Kind: "condition", What: "Connected False, silent", Do: strings.ReplaceAll(cli.ConditionDo["Connected"], "NODE", "gpu-3")},
		{Name: "gpu-1", Kind: "failed", What: "failed(deploying) at await-call-in", Cause: "no call-in", Do: "see the console", Next: "computectl metal retry gpu-1 --watch (or abort)", OperationID: "op_1"},
		{Name: "gpu-3", Kind: "hold", What: "held by ann", Cause: "photo", Do: "computectl metal unhold gpu-3 once it is over"},
		{Name: "gpu-3", Kind: "slow", What: "release is running at erase-in-band", Cause: "3%", OperationID: "op_2"},
		{Name: "gpu-3", Kind: "waiting", What: "drain waits for ann", Cause: "1 allocation", Do: "nodes/uncordon", OperationID: "op_3"},
	}
	if diff := cmp.Diff(want, got.Items); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	for _, call := range append(f.made("nodes/list"), f.made("operations/list")...) {
		if !strings.Contains(call, `"siteId":"site_1"`) {
			t.Errorf("not of the site alone: %s", call)
		}
	}
}

// A failed node whose operation was aborted goes on by another verb, and of a
// host whose agent left only that is said.
func TestAttentionWithoutAnythingParked(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, map[string][]string{"operations/list": {`{"items": []}`}, "nodes/list": {`{"items": [
		{"id": "n1", "name": "gpu-1", "provisionState": "failed", "failed": {"from": "releasing", "step": "erase-in-band", "cause": "aborted", "at": "2026-01-01T00:00:00.000Z"}},
		{"id": "n2", "provisionState": "adopted", "conditions": [{"type": "Connected", "status": "False", "reason": "left", "since": "2026-01-01T00:00:01.000Z"},
			{"type": "SshConflict", "status": "True", "since": "2026-01-01T00:00:01.000Z"}]}]}`}})
	out, _, err := f.run("attention")
	for _, want := range []string{"then: nothing is parked; from here it takes: release, retire\n", "n2  Connected False, left", "nodes cordon n2 and nodes delete n2"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("(%v) without %q:\n%s", err, want, out)
		}
	}
	if strings.Contains(out, "SshConflict") {
		t.Errorf("of a host that left more is said:\n%s", out)
	}
}

// Somebody who reads the list has it in words, and is told when it is empty.
func TestAttentionInWords(t *testing.T) {
	t.Parallel()
	none := []string{`{"items": []}`}
	f := newFakeAPI(t, map[string][]string{"operations/list": none, "nodes/list": {
		`{"items": [{"id": "n1", "provisionState": "ready", "conditions": [{"type": "HardwareHealthy", "status": "False", "message": "fan 2", "since": "2026-01-01T00:00:00.000Z"}]}]}`, `{"items": []}`}})
	out, _, err := f.run("attention")
	if err != nil || !strings.Contains(out, "n1  HardwareHealthy False, for ") || !strings.Contains(out, "\n    why: fan 2\n    to do: ") {
		t.Errorf("%v:\n%s", err, out)
	}
	if out, said, err := f.run("attention"); err != nil || out != "" || said != "nothing needs anybody\n" {
		t.Errorf("of nothing: %v, %q, %q", err, out, said)
	}
}

// There is something to do about each condition.
func TestEachConditionHasSomethingToDo(t *testing.T) {
	t.Parallel()
	types := map[string]bool{}
	for key := range cli.ConditionDo {
		kind, _, _ := strings.Cut(key, "/")
		types[kind] = true
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(fleet.ConditionKinds)), slices.Sorted(maps.Keys(types))); diff != "" {
		t.Errorf("conditions (-all +with something to do):\n%s", diff)
	}
}
