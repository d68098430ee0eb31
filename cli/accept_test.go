package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/bettercompute/compute/cli"
)

// Only what is shown and said yes to is accepted, each with the version that was
// listed; one that moved on in between is told and fails the command.
func TestAccept(t *testing.T) {
	t.Parallel()
	const list = `{"items": [
		{"id": "node_a", "name": "a", "version": 7, "bmc": {"address": "https://10.0.0.1", "tls": {"mode": "pin", "fingerprint": "sha256:old", "shown": "sha256:new"}}},
		{"id": "node_b", "name": "b", "version": 8, "bmc": {"address": "https://10.0.0.2", "tls": {"mode": "pin", "fingerprint": "sha256:old", "shown": "sha256:other"}}},
		{"id": "node_c", "name": "c", "version": 9, "bmc": {"address": "https://10.0.0.3", "tls": {"mode": "pin", "fingerprint": "sha256:same"}}},
		{"id": "node_d", "name": "d", "version": 3, "bmc": {"address": "https://10.0.0.4", "identity": {"serial": "S1", "uuid": "00112233-4455-4677-8899-aabbccddeeff"},
			"shownIdentity": {"serial": "S2", "uuid": "00000000-0000-0000-0000-000000000000"}}}]}`
	for name, c := range map[string]struct {
		args   []string
		answer string
		code   int
		sent   string
		says   string
	}{
		"no answer":       {args: []string{"accept-certificates"}, code: cli.ExitRefused, says: "sha256:new"},
		"no":              {args: []string{"accept-certificates"}, answer: "n\n", code: cli.ExitRefused, says: "sha256:new"},
		"one by name":     {args: []string{"accept-certificates", "a"}, answer: "y\n", sent: `node_a 7 {"tls":{"fingerprint":"sha256:new"}} null;`, says: "1 of 1 accepted"},
		"one moved on":    {args: []string{"accept-certificates", "--yes"}, code: cli.ExitFailed, sent: `node_a 7 {"tls":{"fingerprint":"sha256:new"}} null;node_b 8 {"tls":{"fingerprint":"sha256:other"}} null;`, says: "1 of 2 accepted"},
		"nothing changed": {args: []string{"accept-certificates", "c", "--yes"}, says: "no machine shows another certificate"},
		"no such machine": {args: []string{"accept-certificates", "zzz", "--yes"}, code: cli.ExitRefused},
		// A UUID that proves nothing is not accepted with the serial.
		"identity": {args: []string{"accept-identities"}, answer: "yes\n", sent: `node_d 3 null {"serial":"S2"};`, says: "1 of 1 accepted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent := ""
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/list") {
					fmt.Fprint(w, list)
					return
				}
				var in struct {
					NodeID              string
					Version             int
					BMC, AcceptIdentity json.RawMessage
				}
				if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
					t.Error(err)
				}
				text := func(raw json.RawMessage) string {
					if raw == nil {
						return "null"
					}
					return string(raw)
				}
				sent += fmt.Sprintf("%s %d %s %s;", in.NodeID, in.Version, text(in.BMC), text(in.AcceptIdentity))
				if in.NodeID == "node_b" {
					w.WriteHeader(http.StatusConflict)
					fmt.Fprint(w, `{"code": "CONFLICT", "detail": "the node is at version 9", "version": 9}`)
					return
				}
				fmt.Fprint(w, `{"node": {}}`)
			}))
			t.Cleanup(srv.Close)
			var out bytes.Buffer
			root := cli.New(strings.NewReader(c.answer), &out, &out)
			root.SetArgs(append([]string{"--url", srv.URL, "--tenant", "acme", "metal"}, c.args...))
			err := root.ExecuteContext(t.Context())
			if code := cli.ExitCode(err); code != c.code || sent != c.sent || !strings.Contains(out.String(), c.says) {
				t.Errorf("exit code %d (%v), sent %s\n%s", code, err, sent, out.String())
			}
		})
	}
}
