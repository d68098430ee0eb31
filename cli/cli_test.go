package cli_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/cli"
	"github.com/bettercompute/compute/fleet"
)

var update = flag.Bool("update", false, "write the golden files anew")

// helps writes the help of a command and of all below it.
func helps(t *testing.T, w *bytes.Buffer, cmd *cobra.Command) {
	t.Helper()
	cmd.SetOut(w)
	w.WriteString("== " + cmd.CommandPath() + "\n")
	if err := cmd.Help(); err != nil {
		t.Fatal(err)
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			helps(t, w, sub)
		}
	}
}

// The commands and flags are made from the method table: the golden file shows
// what a change of the table changes for who types.
func TestHelpGolden(t *testing.T) {
	for _, name := range []string{"COMPUTE_URL", "COMPUTE_TENANT"} {
		t.Setenv(name, "") // defaults that the help shows
	}
	var got bytes.Buffer
	helps(t, &got, cli.New(nil, io.Discard, io.Discard))
	const golden = "testdata/help.txt"
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("the help differs from %s; make generate, and look at the difference (-want +got):\n%s", golden, diff)
	}
}

// Every method has a command.
func TestEveryMethodHasACommand(t *testing.T) {
	t.Parallel()
	root := cli.New(nil, io.Discard, io.Discard)
	for _, m := range fleet.Methods {
		cmd, _, err := root.Find([]string{fleet.Kebab(m.Group), fleet.Kebab(m.Name)})
		if err != nil || cmd.Name() != fleet.Kebab(m.Name) {
			t.Errorf("no command for %s", m.FullName())
		}
	}
}

// A call sends what flags, the file of a password and the tenant say, and a
// refusal is explained with its fields and exit code.
func TestCall(t *testing.T) {
	t.Parallel()
	var body map[string]any
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusBadRequest)
		io.WriteString(w, `{"code":"INVALID_INPUT","detail":"wrong: username","fields":[{"field":"username","constraint":"at most 16 characters"}],"requestId":"req_1"}`)
	}))
	t.Cleanup(srv.Close)
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	node := "node_01j00000000000000000000000"
	root := cli.New(nil, io.Discard, io.Discard)
	root.SetArgs([]string{"--url", srv.URL, "--tenant", "acme", "metal", "set-credentials", node, "--username", "root", "--password-file", password, "--rotate"})
	err := root.Execute()
	want := map[string]any{"tenantId": "acme", "nodeId": node, "username": "root", "password": "sesame", "rotate": true}
	if diff := cmp.Diff(want, body); diff != "" {
		t.Errorf("input (-want +got):\n%s", diff)
	}
	if code := cli.ExitCode(err); code != cli.ExitRefused {
		t.Errorf("exit code %d, want %d", code, cli.ExitRefused)
	}
	for _, part := range []string{"INVALID_INPUT", "username (--username): at most 16 characters", "req_1"} {
		if text := cli.Explain(err); !strings.Contains(text, part) {
			t.Errorf("%q lacks %q", text, part)
		}
	}
}

// A wrong command line has an exit code of its own.
func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"nodes", "cordon"}, {"nodes", "get", "a", "b"}, {"nodes", "list", "--limit", "x"}, {"metal", "rescue", "--no-such"}, {"no-such"}} {
		root := cli.New(nil, io.Discard, io.Discard)
		root.SetArgs(append([]string{"--url", "http://127.0.0.1:1", "--tenant", "acme"}, args...))
		if code := cli.ExitCode(root.Execute()); code != cli.ExitUsage {
			t.Errorf("%v: exit code %d, want %d", args, code, cli.ExitUsage)
		}
	}
}

// What a BMC offers and was learned to need is shown with what it means.
func TestMetalGetShowsTheBMC(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"node": {"id": "node_1", "bmc": {"address": "https://10.0.0.1", "capabilities": {"driver": "redfish", "resetTypes": ["On", "ForceOff"], "virtualMedia": true},
			"quirks": ["boot-mode-must-be-sent", "ipmi-cipher-suite-3", "of-a-later-release"], "tls": {"mode": "pin", "fingerprint": "sha256:1", "shown": "sha256:2"}}}}`)
	}))
	t.Cleanup(srv.Close)
	var out bytes.Buffer
	root := cli.New(nil, &out, io.Discard)
	root.SetArgs([]string{"--url", srv.URL, "--tenant", "acme", "metal", "get", "node_01j00000000000000000000000"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	const want = `node:
  id: node_1
  bmc:
    address: https://10.0.0.1
    capabilities:
      driver: redfish
      resetTypes: On,ForceOff
      virtualMedia: true
    quirks:
      - boot-mode-must-be-sent: the boot mode is sent along with every override
      - ipmi-cipher-suite-3: cipher suite 3 was found to work and is tried first
      - of-a-later-release
    tls:
      fingerprint: sha256:1
      mode: pin
      shown: sha256:2
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("shown (-want +got):\n%s", diff)
	}
}
