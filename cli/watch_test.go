package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/bettercompute/compute/cli"
	"github.com/bettercompute/compute/fleet"
)

const (
	testNode = "node_01j00000000000000000000000"
	testOp   = "op_01j00000000000000000000000"
)

// fakeAPI answers each method with the next of its answers, the last again and
// again. An answer that begins with a status is an error.
type fakeAPI struct {
	t  *testing.T
	mu sync.Mutex
	// answers by method; calls in the order they came.
	answers map[string][]string
	calls   []string
	url     string
}

func newFakeAPI(t *testing.T, answers map[string][]string) *fakeAPI {
	f := &fakeAPI{t: t, answers: answers}
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	f.url = srv.URL
	return f
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		f.t.Error(err)
	}
	method := path.Base(path.Dir(r.URL.Path)) + "/" + path.Base(r.URL.Path)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, method+" "+string(raw))
	list := f.answers[method]
	if len(list) == 0 {
		f.t.Errorf("nobody was to call %s", method)
		return
	}
	answer := list[0]
	if len(list) > 1 {
		f.answers[method] = list[1:]
	}
	var status int
	if _, err := fmt.Sscanf(answer, "%d ", &status); err == nil {
		w.WriteHeader(status)
		_, answer, _ = strings.Cut(answer, " ")
	}
	fmt.Fprint(w, answer)
}

// made are the calls of a method.
func (f *fakeAPI) made(method string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, c := range f.calls {
		if strings.HasPrefix(c, method+" ") {
			out = append(out, c)
		}
	}
	return out
}

// run runs computectl against it.
func (f *fakeAPI) run(args ...string) (out, errOut string, err error) {
	f.t.Helper()
	var stdout, stderr bytes.Buffer
	root := cli.New(nil, &stdout, &stderr)
	root.SetArgs(append([]string{"--url", f.url, "--tenant", "acme"}, args...))
	err = root.ExecuteContext(f.t.Context())
	return stdout.String(), stderr.String(), err
}

func anOperation(state, step, detail string, more string) string {
	return fmt.Sprintf(`{"operation": {"id": %q, "nodeId": %q, "verb": "commission", "state": %q, "workflowId": "op/x", "requestedBy": "dev:o",
		"createdAt": "2026-01-01T00:00:00.000Z", "steps": [{"name": "switch-off", "state": %q, "attempts": 1, "detail": %q}]%s}}`, testOp, testNode, state, step, detail, more)
}

const ended = `, "endedAt": "2026-01-01T00:01:00.000Z"`

// A watched verb shows each step as it changes, bears with an API that is away
// for a moment, and ends as the operation does.
func TestWatch(t *testing.T) {
	t.Parallel()
	accepted := fmt.Sprintf(`{"node": {"id": %q, "tenantId": "acme"}, "operation": {"id": %q, "verb": "commission", "state": "pending"}}`, testNode, testOp)
	away := `503 {"code": "UNAVAILABLE", "detail": "the database does not answer"}`
	failed := anOperation("failed", "failed", "the machine is still on", `, "error": {"code": "timeout", "step": "switch-off", "cause": "the machine is still on", "remedy": "look at its console, then retry"}`)
	for name, c := range map[string]struct {
		states []string
		args   []string
		code   int
		out    []string
		errOut []string
	}{
		"succeeds": {[]string{anOperation("running", "running", "", ""), away, anOperation("running", "running", "asked", ""), anOperation("succeeded", "done", "off", ended)},
			nil, 0, []string{"running  switch-off\n", "running  switch-off: asked", "done     switch-off: off", "commission succeeded in 1m0s"}, []string{"the database does not answer", "asking again"}},
		"retried": {[]string{anOperation("running", "failed", "the machine is still on", ""), anOperation("succeeded", "done", "off", ended)},
			nil, 0, []string{"again    switch-off: it had failed: the machine is still on", "done     switch-off: off"}, nil},
		"parks": {[]string{failed}, nil, cli.ExitFailed, []string{"failed   switch-off"}, nil},
		"as JSON": {[]string{anOperation("running", "running", "asked", ""), anOperation("succeeded", "done", "off", ended)},
			[]string{"-o", "json"}, 0, nil, []string{"switch-off: asked"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t, map[string][]string{"metal/commission": {accepted}, "operations/get": c.states})
			out, errOut, err := f.run(append([]string{"metal", "commission", testNode, "--watch"}, c.args...)...)
			if code := cli.ExitCode(err); code != c.code {
				t.Errorf("exit code %d, want %d: %v", code, c.code, err)
			}
			for _, want := range c.out {
				if !strings.Contains(out, want) {
					t.Errorf("printed without %q:\n%s", want, out)
				}
			}
			for _, want := range c.errOut {
				if !strings.Contains(errOut, want) {
					t.Errorf("said without %q:\n%s", want, errOut)
				}
			}
			if c.code == cli.ExitFailed {
				for _, want := range []string{"the machine is still on", "look at its console", "metal retry " + testNode, testOp} {
					if text := cli.Explain(err); !strings.Contains(text, want) {
						t.Errorf("explained without %q:\n%s", want, text)
					}
				}
			}
			var got fleet.OperationOut
			if c.args != nil && (json.Unmarshal([]byte(out), &got) != nil || got.Operation.State != fleet.OpSucceeded) {
				t.Errorf("no JSON of the operation:\n%s", out)
			}
			if n := len(f.made("metal/commission")); n != 1 {
				t.Errorf("the verb was called %d times", n)
			}
		})
	}
}

// An abort that was carried out is no failure of the abort; an operation that
// ended otherwise is.
func TestWatchedAbort(t *testing.T) {
	t.Parallel()
	accepted := fmt.Sprintf(`{"node": {"id": %q, "tenantId": "acme"}, "operation": {"id": %q, "verb": "commission", "state": "running"}}`, testNode, testOp)
	for state, code := range map[string]int{"aborted": 0, "succeeded": cli.ExitFailed} {
		f := newFakeAPI(t, map[string][]string{"metal/abort": {accepted}, "operations/get": {
			anOperation(state, "done", "off", ended+`, "error": {"code": "aborted", "step": "", "cause": "aborted by dev:o", "remedy": ""}`)}})
		out, _, err := f.run("metal", "abort", testNode, "--watch")
		if got := cli.ExitCode(err); got != code || code == 0 && !strings.Contains(out, "commission aborted: aborted by dev:o") {
			t.Errorf("%s: exit code %d, want %d (%v):\n%s", state, got, code, err, out)
		}
		if err != nil && strings.Contains(err.Error(), "at step :") {
			t.Errorf("a step without a name: %v", err)
		}
	}
}

// Events are followed from where the last one was, over an outage of the API,
// until the person stops.
func TestFollow(t *testing.T) {
	t.Parallel()
	event := func(cursor, kind string) string {
		return fmt.Sprintf(`{"items": [{"cursor": %q, "type": %q, "at": "2026-01-01T00:00:00.000Z", "actor": "dev:o", "tenantId": "acme", "data": {}}]}`, cursor, kind)
	}
	f := newFakeAPI(t, map[string][]string{"nodes/events": {event("1:1", "node.cordoned"), `503 {"code": "UNAVAILABLE", "detail": "away"}`, event("2:7", "node.uncordoned"), `{"items": []}`}})
	ctx, stop := context.WithCancel(t.Context())
	out := &stopper{text: "node.uncordoned", stop: stop}
	root := cli.New(nil, out, io.Discard)
	root.SetArgs([]string{"--url", f.url, "--tenant", "acme", "nodes", "events", testNode, "--follow"})
	if err := root.ExecuteContext(ctx); err != nil {
		t.Errorf("interrupted: %v", err)
	}
	if n := strings.Count(out.said.String(), "node."); n != 2 {
		t.Errorf("%d events, want each once:\n%s", n, out.said.String())
	}
	calls := f.made("nodes/events")
	if !strings.Contains(calls[1], `"cursor":"1:1"`) || !strings.Contains(calls[2], `"cursor":"1:1"`) {
		t.Errorf("not read on from the last event: %q", calls)
	}
}

// stopper stops once it was written a text.
type stopper struct {
	said bytes.Buffer
	text string
	stop func()
}

func (s *stopper) Write(p []byte) (int, error) {
	defer func() {
		if strings.Contains(s.said.String(), s.text) {
			s.stop()
		}
	}()
	return s.said.Write(p)
}

// A node is named by name, serial or id, also by who may not read machines and
// where it is offered by another tenant; a name that several have is not
// guessed.
func TestNamesOfNodes(t *testing.T) {
	t.Parallel()
	none, denied := `{"items": []}`, `403 {"code": "ACCESS_DENIED", "detail": "no"}`
	one := fmt.Sprintf(`{"items": [{"id": %q, "name": "gpu-1"}]}`, testNode)
	two := fmt.Sprintf(`{"items": [{"id": %q, "name": "gpu-1"}, {"id": "node_01j00000000000000000000001", "name": "gpu-1"}]}`, testNode)
	const later = `{"items": [{"id": "node_01j00000000000000000000001", "name": "gpu-10"}], "nextCursor": "c"}`
	for name, c := range map[string]struct {
		metal, nodes []string
		code         int
		says         string
	}{
		"by name":          {[]string{one}, nil, 0, ""},
		"by serial":        {[]string{none, one}, nil, 0, ""},
		"without machines": {[]string{denied}, []string{later, one}, 0, ""},
		"offered":          {[]string{none}, []string{one}, 0, ""},
		"several":          {[]string{two}, nil, cli.ExitUsage, "2 nodes have name"},
		"several, offered": {[]string{none}, []string{two}, cli.ExitUsage, "2 nodes have name"},
		"none":             {[]string{none}, []string{none}, cli.ExitRefused, "no node that you may see"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t, map[string][]string{"metal/list": c.metal, "nodes/list": c.nodes, "nodes/get": {one}})
			_, _, err := f.run("nodes", "get", "gpu-1")
			if code := cli.ExitCode(err); code != c.code || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Fatalf("exit code %d (%v), want %d %s", code, err, c.code, c.says)
			}
			if calls := f.made("nodes/get"); c.code == 0 && (len(calls) != 1 || !strings.Contains(calls[0], testNode)) {
				t.Errorf("calls: %q", calls)
			}
		})
	}
}

// A shell is offered the names of nodes and the values of flags.
func TestCompletion(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, map[string][]string{"nodes/list": {
		fmt.Sprintf(`{"items": [{"id": %q, "name": "gpu-1", "provisionState": "ready"}, {"id": "node_01j00000000000000000000001", "name": "cpu-1"}]}`, testNode)}})
	for line, want := range map[string][]string{
		"metal retire g": {"gpu-1\tready"},
		"nodes get node_01j00000000000000000000000": {testNode + "\tready"},
		"metal power gpu-1 --action so":             {"softOff"},
		"met":                                       {"metal\tMachines and their life: enroll, inspect, commission, deploy, rescue, release, retire"},
	} {
		out, _, err := f.run(append([]string{cobraComplete}, strings.Fields(line)...)...)
		if err != nil {
			t.Errorf("%q: %v", line, err)
		}
		for _, w := range want {
			if !slices.Contains(strings.Split(out, "\n"), w) {
				t.Errorf("%q offers no %q:\n%s", line, w, out)
			}
		}
	}
}

// cobraComplete is what a shell's completion script calls.
const cobraComplete = "__complete"

// A wrong --output is told before anything is called.
func TestOutputIsCheckedFirst(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, map[string][]string{})
	if _, _, err := f.run("nodes", "cordon", testNode, "-o", "yaml"); cli.ExitCode(err) != cli.ExitUsage {
		t.Errorf("err = %v, want a usage error", err)
	}
}
