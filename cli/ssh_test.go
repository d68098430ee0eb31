package cli_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bettercompute/compute/cli"
)

// ssh reaches a node at the address that its agent told, under the name that the
// user's configuration knows it by; --host says otherwise.
func TestSSHDestination(t *testing.T) {
	const node = "node_01arz3ndektsv4rrffq69g5fav"
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "ssh"), []byte("#!/bin/sh\necho \"$@\"\nexit 7\n"), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	runtime := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", runtime)
	for name, c := range map[string]struct {
		name, address, warning string
		args                   []string
		want                   string // of ssh's arguments; "" is that ssh is not run
		says                   string
		issued                 int
	}{
		"an address":               {"gpu17", "10.0.0.5", "", nil, "-p 22 -o HostName=10.0.0.5 -o HostKeyAlias=" + node + " gpu17", "good until", 1},
		"an address, no name":      {"", "2001:db8::5", "", []string{"--port", "2222"}, "-p 2222 -o HostName=2001:db8::5 -o HostKeyAlias=" + node + " 2001:db8::5", "", 1},
		"a name alone":             {"gpu17", "", "", []string{"--", "id", "-un"}, "-p 22 gpu17 id -un", "", 1},
		"--host":                   {"gpu17", "10.0.0.5", "", []string{"--host", "bastion.example"}, "-p 22 bastion.example", "", 1},
		"neither":                  {"", "", "", nil, "", "--host", 1},
		"a name that is an option": {"-oProxyCommand=x", "10.0.0.5", "", nil, "", "--host", 0},
		"--host is an option":      {"gpu17", "", "", []string{"--host=-oProxyCommand=x"}, "", "--host", 0},
		"a warning":                {"gpu17", "10.0.0.5", "its sshd does not take it", nil, "-p 22 -o HostName=10.0.0.5 -o HostKeyAlias=" + node + " gpu17", "warning: its sshd does not take it\n", 1},
	} {
		t.Run(name, func(t *testing.T) {
			issued := 0
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var answer any
				switch method, _ := strings.CutPrefix(r.URL.Path, "/api/compute/"); method {
				case "nodes/get":
					answer = map[string]any{"node": map[string]any{"id": node, "name": c.name}}
				case "nodes/issueSshCert":
					issued++
					answer = map[string]any{"certificate": "c", "address": c.address, "warning": c.warning, "note": "n",
						"sshCert": map[string]any{"serial": "5", "principal": "root@" + node, "validBefore": "2026-11-30T09:59:29.000Z"}}
				default:
					t.Errorf("called %s", method)
				}
				if err := json.NewEncoder(w).Encode(answer); err != nil {
					t.Error(err)
				}
			}))
			defer srv.Close()
			t.Setenv("COMPUTE_TOKEN", "t")
			var out, errs bytes.Buffer
			root := cli.New(nil, &out, &errs)
			root.SetArgs(append([]string{"--url", srv.URL, "--tenant", "acme", "ssh", node}, c.args...))
			err := root.ExecuteContext(t.Context())
			if err != nil {
				errs.WriteString(err.Error())
			}
			code := cli.ExitCode(err)
			got := ""
			if _, after, ok := strings.Cut(out.String(), "-l root "); ok {
				got = strings.TrimSpace(after)
			}
			if got != c.want || !strings.Contains(errs.String(), c.says) || issued != c.issued {
				t.Errorf("ssh %q, %d issued, said %q; want ssh %q, %d issued, %q said", got, issued, errs.String(), c.want, c.issued, c.says)
			}
			if ran := c.want != ""; ran != (code == 7) || ran && (!strings.Contains(out.String(), "IdentitiesOnly=yes") || !strings.Contains(out.String(), "IdentityAgent=none")) {
				t.Errorf("ended with %d: %s", code, out.String())
			}
			if left, err := os.ReadDir(runtime); err != nil || len(left) != 0 {
				t.Errorf("left behind: %v (%v)", left, err)
			}
		})
	}
}
