package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// asProgram has the test binary be the program, so that a test can kill it.
const asProgram = "BMCSIM_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// program starts bmcsim and returns it with the URL of its control API.
func program(t *testing.T, args ...string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // gone already in a test that ended well
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatalf("no ready line: %v", err)
	}
	var ready struct {
		Ready   bool
		Control string
	}
	if err := json.Unmarshal(line, &ready); err != nil || !ready.Ready {
		t.Fatalf("%v: %s", err, line)
	}
	return cmd, ready.Control
}

func get(t *testing.T, url string) any {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var v any
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestKill kills the program and starts it again on its state: the machines,
// their addresses, credentials and rules are as they were.
func TestKill(t *testing.T) {
	t.Parallel()
	args := []string{"--nodes", "5", "--listen", "127.0.0.1:0", "--state", t.TempDir(), "--profile", "dell=2,hgx",
		"--faults", "c06-if-match-428-header", "--time-scale", "0.000001"}
	cmd, control := program(t, args...)
	before := get(t, control+"/sim/machines")
	faults := get(t, control+"/sim/machines/m00003/faults")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, control+"/sim/machines", strings.NewReader(`{"profile": "hpe", "power": "On"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it says that it was killed
	_, control = program(t, args...)
	after, ok := get(t, control+"/sim/machines").(map[string]any)
	if !ok {
		t.Fatal("no machines")
	}
	items, _ := after["items"].([]any)
	if len(items) != 6 {
		t.Fatalf("machines: %d, want 6", len(items))
	}
	after["items"] = items[:5]
	if diff := cmp.Diff(before, any(after)); diff != "" {
		t.Errorf("machines (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(faults, get(t, control+"/sim/machines/m00003/faults")); diff != "" {
		t.Errorf("faults (-before +after):\n%s", diff)
	}
}

func TestParseMix(t *testing.T) {
	t.Parallel()
	got, err := parseMix("dell=2, hpe")
	if diff := cmp.Diff([]string{"dell", "dell", "hpe"}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"dell=x", "dell=0"} {
		if _, err := parseMix(bad); err == nil {
			t.Errorf("%s: accepted", bad)
		}
	}
}
