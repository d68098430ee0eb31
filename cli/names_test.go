package cli_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bettercompute/compute/cli"
)

// Pools and sites are named by name or id, as arguments and in flags, and a
// shell is offered their names.
func TestNamesOfPoolsAndSites(t *testing.T) {
	t.Parallel()
	pools := []string{`{"nextCursor": "c", "items": [{"id": "pool_1", "name": "h100"}, {"id": "pool_2", "name": "twice"}]}`, `{"items": [{"id": "pool_3", "name": "twice"}]}`}
	for line, c := range map[string]struct {
		code      int
		call, has string
		says      string
	}{
		"pools get h100":                  {0, "pools/get", `"poolId":"pool_1"`, ""},
		"pools get pool_9":                {0, "pools/get", `"poolId":"pool_9"`, ""},
		"nodes list --pool-id h100":       {0, "nodes/list", `"poolId":"pool_1"`, ""},
		"nodes list --site-id lab":        {0, "nodes/list", `"siteId":"site_1"`, ""},
		"attention --pool-id h100":        {0, "nodes/list", `"poolId":"pool_1"`, ""},
		"pools get twice":                 {cli.ExitUsage, "", "", "pool_2, pool_3"},
		"pools get none":                  {cli.ExitRefused, "", "", "computectl pools list"},
		"attention --site-id somewhere":   {cli.ExitRefused, "", "", "no site of tenant acme"},
		"join-tokens create --max-uses 1": {cli.ExitUsage, "", "", "--site-id"},
	} {
		none := []string{`{"items": []}`}
		f := newFakeAPI(t, map[string][]string{"pools/list": slices.Clone(pools), "sites/list": {`{"items": [{"id": "site_1", "name": "lab"}]}`},
			"pools/get": {`{"pool": {}}`}, "nodes/list": none, "operations/list": none})
		_, _, err := f.run(strings.Fields(line)...)
		if code := cli.ExitCode(err); code != c.code || c.says != "" && !strings.Contains(cli.Explain(err), c.says) {
			t.Errorf("%s: exit code %d, %v", line, code, err)
			continue
		}
		if c.call != "" && !slices.ContainsFunc(f.made(c.call), func(call string) bool { return strings.Contains(call, c.has) }) {
			t.Errorf("%s: calls %q without %s", line, f.made(c.call), c.has)
		}
	}
	f := newFakeAPI(t, map[string][]string{"pools/list": {`{"items": [{"id": "pool_1", "name": "h100"}, {"id": "pool_2", "name": "l40"}]}`}, "nodes/list": {`{"items": [{"id": "n", "name": "gpu-1", "provisionState": "ready"}]}`}})
	for line, want := range map[string]string{
		"pools get h":                          "h100\tpool_1",
		"nodes list --pool-id l":               "l40\tpool_2",
		"operations list --node-id g":          "gpu-1\tready",
		"metal enroll --pool-id h":             "h100\tpool_1",
		"operations get g":                     "gpu-1\tready",
		"nodes list --provision-state commiss": "commissioning",
	} {
		out, _, err := f.run(append([]string{cobraComplete}, strings.Fields(line)...)...)
		if err != nil || !slices.Contains(strings.Split(out, "\n"), want) {
			t.Errorf("%s offers no %q (%v):\n%s", line, want, err, out)
		}
	}
}

// A sheet names pools as the flags do, and each is looked up once.
func TestSheetNamesPools(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, map[string][]string{"pools/list": {`{"items": [{"id": "pool_1", "name": "h100"}]}`}, "metal/enroll": {`{"node": {}, "operation": {}}`}})
	file := filepath.Join(t.TempDir(), "machines.csv")
	sheet := "name,bmc-address,bmc-username,bmc-password,pool-id\na,10.0.0.1,root,x,h100\nb,10.0.0.2,root,x,h100\n"
	if err := os.WriteFile(file, []byte(sheet), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, said, err := f.run("metal", "enroll", "--from", file, "--site-id", "site_1"); err != nil {
		t.Fatalf("%v\n%s%s", err, out, said)
	}
	if n := len(f.made("pools/list")); n != 1 {
		t.Errorf("the pool was looked up %d times", n)
	}
	for _, call := range f.made("metal/enroll") {
		if !strings.Contains(call, `"poolId":"pool_1"`) {
			t.Errorf("enrolled by %s", call)
		}
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.run("metal", "enroll", "--from", file); err == nil || !strings.Contains(err.Error(), "its first line names the columns") {
		t.Errorf("of an empty file: %v", err)
	}
}
