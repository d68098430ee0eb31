package cli_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/bettercompute/compute/cli"
)

// enrollAPI stands in for the API: it enrolls by address, says no to some, and
// is busy once for each machine called busy.
type enrollAPI struct {
	mu       sync.Mutex
	bodies   []map[string]any
	keys     map[string][]string
	enrolled map[string]string
}

func (e *enrollAPI) refuse(w http.ResponseWriter, status int, code, reason, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"code":%q,"reason":%q,"detail":%q}`, code, reason, detail)
}

func (e *enrollAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var in map[string]any
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		e.refuse(w, http.StatusBadRequest, "INVALID_INPUT", "", "no JSON")
		return
	}
	if strings.HasSuffix(r.URL.Path, "metal/list") {
		items := []map[string]any{}
		if id := e.enrolled[in["bmcAddress"].(string)]; id != "" { //nolint:forcetypeassert // the command sends it
			items = append(items, map[string]any{"id": id, "name": "other", "provisionState": "ready"})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"items": items})
		return
	}
	name, _ := in["name"].(string)
	bmc, _ := in["bmc"].(map[string]any)
	address, _ := bmc["address"].(string)
	key := r.Header.Get("Idempotency-Key")
	e.keys[name] = append(e.keys[name], key)
	switch {
	case name == "busy" && len(e.keys[name]) == 1:
		e.refuse(w, http.StatusTooManyRequests, "RATE_LIMITED", "", "slow down")
	case name == "lost" && len(e.keys[name]) == 1:
		panic(http.ErrAbortHandler)
	case name == "refused":
		e.refuse(w, http.StatusBadRequest, "INVALID_INPUT", "", "outside the site's networks")
	case e.enrolled["https://"+address] != "":
		e.refuse(w, http.StatusConflict, "CONFLICT", "already-enrolled", "there")
	case name == "taken":
		e.refuse(w, http.StatusConflict, "CONFLICT", "name-taken", "another has the name")
	default:
		e.bodies = append(e.bodies, in)
		_ = json.NewEncoder(w).Encode(map[string]any{"node": map[string]any{"id": "node_" + name, "tenantId": "acme"}, "operation": map[string]any{"id": "op_" + name}})
	}
}

// runSheet enrolls a file's rows and returns what was printed and the results.
func runSheet(t *testing.T, api http.Handler, sheet string, args ...string) (out string, results map[string][]string, err error) {
	t.Helper()
	srv := httptest.NewServer(api)
	t.Cleanup(srv.Close)
	dir := t.TempDir()
	from, to := filepath.Join(dir, "machines.csv"), filepath.Join(dir, "results.csv")
	if err := os.WriteFile(from, []byte(sheet), 0o600); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	root := cli.New(nil, &b, &b)
	root.SetArgs(append([]string{"--url", srv.URL, "--tenant", "acme", "metal", "enroll", "--from", from, "--results", to, "--site-id", "site_1"}, args...))
	err = root.ExecuteContext(t.Context())
	results = map[string][]string{}
	if f, openErr := os.Open(to); openErr == nil {
		defer f.Close()
		rows, readErr := csv.NewReader(f).ReadAll()
		if readErr != nil {
			t.Fatal(readErr)
		}
		for _, row := range rows[1:] {
			results[row[1]] = row
		}
		for _, row := range rows {
			if strings.Contains(strings.Join(row, " "), "s3cret") {
				t.Errorf("a password is in the results: %q", row)
			}
		}
	}
	if strings.Contains(b.String(), "s3cret") {
		t.Errorf("a password is printed:\n%s", b.String())
	}
	return b.String(), results, err
}

// Each row is one call with what its cells and, where they are empty, the flags
// say; what the API says of it is in the results.
func TestEnrollSheet(t *testing.T) {
	api := &enrollAPI{keys: map[string][]string{}, enrolled: map[string]string{"https://10.0.0.9": "node_there"}}
	t.Setenv("SHEET_PASSWORD", "s3cret-of-env")
	file := filepath.Join(t.TempDir(), "pw")
	if err := os.WriteFile(file, []byte("s3cret-of-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sheet := "\xef\xbb\xbfname,bmc-address,bmc-password,bmc-password-env,bmc-password-file,labels,in-use,bmc-ipmi-cipher-suites,bmc-tls-mode\n" +
		"# a comment\n" +
		"one,10.0.0.1,\" s3cret, \"\"quoted\"\"\",,,rack=a;row=b,false,17;3,pin\n" +
		"two,10.0.0.2,,SHEET_PASSWORD,,,,,\n" +
		"three,10.0.0.3,,," + file + ",,,,\n" +
		"busy,10.0.0.4,s3cret,,,,,,\n" +
		"lost,10.0.0.5,s3cret,,,,,,\n" +
		"refused,10.0.0.6,s3cret,,,,,,\n" +
		"taken,10.0.0.7,s3cret,,,,,,\n" +
		"there,10.0.0.9,s3cret,,,,,,\n"
	out, results, err := runSheet(t, api, sheet, "--bmc-username", "root", "--bmc-tls-mode", "insecure", "--parallel", "3")
	if code := cli.ExitCode(err); code != cli.ExitFailed || !strings.Contains(out, "8 rows: 5 enrolled, 1 already-enrolled, 2 failed") {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
	for name, want := range map[string][]string{
		"one": {"3", "enrolled", "node_one", "op_one", ""}, "busy": {"6", "enrolled", "node_busy", "op_busy", ""}, "lost": {"7", "enrolled", "node_lost", "op_lost", ""},
		"refused": {"8", "failed", "", "", "INVALID_INPUT"}, "taken": {"9", "failed", "", "", "CONFLICT"}, "there": {"10", "already-enrolled", "node_there", "", ""},
	} {
		got := results[name]
		if len(got) != 8 || !slices.Equal([]string{got[0], got[3], got[4], got[5], got[6]}, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"busy", "lost"} {
		if k := api.keys[name]; len(k) != 2 || k[0] == "" || k[0] != k[1] {
			t.Errorf("%s was sent with the keys %q", name, k)
		}
	}
	sent := map[any]map[string]any{}
	for _, b := range api.bodies {
		bmc, _ := b["bmc"].(map[string]any)
		sent[b["name"]] = bmc
		if b["name"] == "one" && (fmt.Sprint(b["labels"]) != "map[rack:a row:b]" || b["inUse"] != false || b["siteId"] != "site_1") {
			t.Errorf("sent %v", b)
		}
	}
	for name, want := range map[string]string{
		"one":   `map[address:10.0.0.1 ipmi:map[cipherSuites:[17 3]] password: s3cret, "quoted" tls:map[mode:pin] username:root]`,
		"two":   `map[address:10.0.0.2 password:s3cret-of-env tls:map[mode:insecure] username:root]`,
		"three": `map[address:10.0.0.3 password:s3cret-of-file tls:map[mode:insecure] username:root]`,
	} {
		if got := fmt.Sprint(sent[name]); got != want {
			t.Errorf("%s: sent %s, want %s", name, got, want)
		}
	}
}

// A file that is wrong anywhere sends nothing, and says all that is wrong.
func TestEnrollSheetWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ sheet, says string }{
		"unknown column":    {"name,adress\n", `no column is called "adress"`},
		"column twice":      {"name,name\n", "twice"},
		"no rows":           {"name,bmc-address\n", "no rows"},
		"empty":             {"", "its first line names the columns"},
		"too few cells":     {"name,bmc-address,bmc-password\none,10.0.0.1\n", "line 2"},
		"no address":        {"name,bmc-password\none,s3cret\n", "bmc-address is missing"},
		"no password":       {"name,bmc-address\none,10.0.0.1\n", "bmc-password is missing"},
		"two passwords":     {"bmc-address,bmc-password,bmc-password-env\n10.0.0.1,s3cret,X\n", "given twice"},
		"no such variable":  {"bmc-address,bmc-password-env\n10.0.0.1,NO_SUCH_VARIABLE\n", "NO_SUCH_VARIABLE is not set"},
		"wrong address":     {"bmc-address,bmc-password\nhttps://,s3cret\n", "host"},
		"wrong name":        {"name,bmc-address,bmc-password\nOne_,10.0.0.1,s3cret\n", "no DNS label"},
		"wrong MAC":         {"boot-mac-address,bmc-address,bmc-password\nxx,10.0.0.1,s3cret\n", "no MAC"},
		"wrong word":        {"bmc-address,bmc-password,in-use\n10.0.0.1,s3cret,perhaps\n", "in-use"},
		"one address twice": {"bmc-address,bmc-password\n10.0.0.1,s3cret\nhttps://10.0.0.1:443/,s3cret\n", "on line 2 too"},
		"one name twice":    {"name,bmc-address,bmc-password\none,10.0.0.1,s3cret\none,10.0.0.2,s3cret\n", "name one is on line 2 too"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			none := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				t.Errorf("%s was called: %s", r.URL.Path, body)
			})
			_, results, err := runSheet(t, none, c.sheet, "--bmc-username", "root")
			if code := cli.ExitCode(err); code != cli.ExitUsage || !strings.Contains(err.Error(), c.says) || len(results) != 0 || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("exit code %d, %v", code, err)
			}
		})
	}
}

// A call that nobody may make ends the rest.
func TestEnrollSheetStops(t *testing.T) {
	t.Parallel()
	calls := 0
	api := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls++
		w.WriteHeader(http.StatusUnauthorized)
		io.WriteString(w, `{"code":"UNAUTHENTICATED","detail":"no token"}`)
	})
	_, results, err := runSheet(t, api, "name,bmc-address,bmc-password\na,10.0.0.1,s3cret\nb,10.0.0.2,s3cret\nc,10.0.0.3,s3cret\n", "--bmc-username", "root", "--parallel", "1")
	if code := cli.ExitCode(err); code != cli.ExitRefused || calls != 1 || len(results) != 3 || results["c"][3] != "not-tried" {
		t.Errorf("exit code %d, %d calls, %q, %v", code, calls, results, err)
	}
}
