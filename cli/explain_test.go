package cli_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/bettercompute/compute/cli"
)

// A refusal says what was called on what, and which flags give the members that
// it names.
func TestRefusalsNameCommandAndFlags(t *testing.T) {
	t.Parallel()
	for line, c := range map[string]struct{ answer, says string }{
		"metal retry " + testNode: {`409 {"code": "INVALID_STATE", "detail": "the node is retired"}`, "computectl: metal retry " + testNode + ": INVALID_STATE: the node is retired"},
		"metal enroll --site-id site_1 --bmc-address 10.0.0.1": {`400 {"code": "INVALID_INPUT", "fields": [{"field": "bmc.password", "constraint": "required"}]}`,
			"\n  bmc.password (--bmc-password-file): required"},
		"metal enroll --site-id site_1": {`400 {"code": "INVALID_INPUT", "fields": [{"field": "bmc", "constraint": "required"}]}`, "\n  bmc (--bmc-address, --bmc-username, --bmc-password-file): required"},
		"nodes list --limit 0":          {`400 {"code": "INVALID_INPUT", "fields": [{"field": "limit", "constraint": "at least 1"}]}`, "\n  limit (--limit): at least 1"},
		"nodes list --tenant a,":        {`400 {"code": "INVALID_INPUT", "fields": [{"field": "tenantId", "constraint": "no"}]}`, "tenantId (--tenant, COMPUTE_TENANT)"},
	} {
		words := strings.Fields(line)
		f := newFakeAPI(t, map[string][]string{words[0] + "/" + words[1]: {c.answer}})
		_, _, err := f.run(words...)
		if err == nil || !strings.Contains(cli.Explain(err), c.says) {
			t.Errorf("%s: %q lacks %q", line, cli.Explain(err), c.says)
		}
	}
}

// What is wrong with a command line is said before anything is called.
func TestWrongCommandLines(t *testing.T) {
	t.Parallel()
	for line, says := range map[string]string{
		"nodes get":                      "of which NODE?",
		"nodes get a b":                  "there are 2: a, b",
		"nodes list --cordoned no":       "--flag=false",
		"access grant":                   "--identity, --role",
		"operations get op_x":            "no whole operation id",
		"nodes list --url 10.0.0.1:7780": "begins with http:// or https://",
		"nodes list --tenant=":           "set COMPUTE_TENANT or pass --tenant",
	} {
		f := newFakeAPI(t, map[string][]string{})
		_, _, err := f.run(strings.Fields(line)...)
		if cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(cli.Explain(err), says) {
			t.Errorf("%s: exit code %d, %q lacks %q", line, cli.ExitCode(err), cli.Explain(err), says)
		}
	}
}

// A call without an answer says whether it can have been carried out.
func TestCallsWithoutAnswer(t *testing.T) {
	t.Parallel()
	gone, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	cut := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	t.Cleanup(cut.Close)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for name, c := range map[string]struct {
		ctx       context.Context
		url, says string
	}{
		"not sent":    {t.Context(), "http://" + gone.Addr().String(), "nothing was sent"},
		"lost":        {t.Context(), cut.URL, "not known whether it was carried out"},
		"interrupted": {stopped, cut.URL, "computectl: interrupted; "},
	} {
		root := cli.New(nil, nil, nil)
		root.SetArgs([]string{"--url", c.url, "--tenant", "acme", "nodes", "cordon", testNode})
		err := root.ExecuteContext(c.ctx)
		if cli.ExitCode(err) != cli.ExitRefused || !strings.Contains(cli.Explain(err), c.says) {
			t.Errorf("%s: %q lacks %q", name, cli.Explain(err), c.says)
		}
	}
}

// An operation is named by its id, or by its node: the one that is not over yet,
// else the last one.
func TestOperationsByTheirNode(t *testing.T) {
	t.Parallel()
	const open, last = `{"id": "op_01j00000000000000000000001", "verb": "deploy", "state": "failed"}`, `{"id": "op_01j00000000000000000000002", "state": "succeeded", "endedAt": "2026-01-01T00:00:00.000Z"}`
	for name, c := range map[string]struct{ list, want string }{
		"parked": {last + "," + open, "op_01j00000000000000000000001"},
		"over":   {last, "op_01j00000000000000000000002"},
	} {
		f := newFakeAPI(t, map[string][]string{"operations/list": {`{"items": [` + c.list + `]}`}, "operations/get": {`{"operation": ` + open + `}`}})
		if _, _, err := f.run("operations", "get", testNode); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if calls := f.made("operations/get"); len(calls) != 1 || !strings.Contains(calls[0], c.want) {
			t.Errorf("%s: called %q, want %s", name, calls, c.want)
		}
	}
}

// Lists show where things stand, with what is long at the end of the line.
func TestTables(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, map[string][]string{
		"metal/list": {`{"items": [{"id": "n1", "provisionState": "failed", "failed": {"from": "deploying", "cause": "no call-in"}, "power": {"state": "on"}, "operations": {"drain": "op_1"}, "version": 3}, {"id": "n2", "provisionState": "ready"}]}`},
		"operations/list": {`{"items": [{"id": "op_1", "state": "waiting", "steps": [{"name": "empty", "state": "running"}], "waitingFor": {"what": "1 allocation"}},
			{"id": "op_2", "state": "failed", "error": {"step": "await-call-in", "cause": "no call-in"}}]}`},
		"nodes/events": {`{"items": [{"type": "node.power.changed", "actor": "system", "version": 1, "data": {"to": "on", "from": ""}}]}`},
		"sites/list":   {`{"items": []}`},
	})
	for line, want := range map[string]string{
		"metal list":               "ID  PROVISIONSTATE     POWER  OPERATION  VERSION  CAUSE\nn1  failed(deploying)  on     op_1       3        no call-in\nn2  ready\n",
		"operations list":          "ID    STATE    STEP           WAITINGFOR    CAUSE\nop_1  waiting  empty          1 allocation\nop_2  failed   await-call-in                no call-in\n",
		"nodes events " + testNode: "TYPE                ACTOR   VERSION  DATA\nnode.power.changed  system  1        to=on\n",
		"sites list":               "",
	} {
		out, said, err := f.run(strings.Fields(line)...)
		if err != nil || out != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", line, err, out, want)
		}
		if want == "" && said != "none\n" {
			t.Errorf("%s says %q of an empty list", line, said)
		}
	}
}

// Whoever works with the local stack is told how to get a token.
func TestTokenOfTheLocalStack(t *testing.T) {
	t.Setenv("COMPUTE_DEV_ISSUER", "http://127.0.0.1:1")
	f := newFakeAPI(t, map[string][]string{"sites/list": {`401 {"code": "UNAUTHENTICATED", "detail": "the token has expired"}`}})
	if _, _, err := f.run("sites", "list"); err == nil || !strings.Contains(cli.Explain(err), "computectl login --dev") {
		t.Errorf("%q does not say how", cli.Explain(err))
	}
}
