package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/localstack"
)

// sites are the ids that the API lists for the env file's token.
func sites(t *testing.T, env map[string]string) []string {
	t.Helper()
	body := fmt.Sprintf(`{"tenantId":%q}`, env["COMPUTE_TENANT"])
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, env["COMPUTE_URL"]+"/api/compute/sites/list", bytes.NewBufferString(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+env["COMPUTE_TOKEN"])
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var page struct{ Items []struct{ ID string } }
	if err := json.Unmarshal(raw, &page); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("sites/list: %s %s (%v)", resp.Status, raw, err)
	}
	var ids []string
	for _, s := range page.Items {
		ids = append(ids, s.ID)
	}
	return ids
}

// The local stack keeps its contract: what it writes for a shell, its state
// over kill -9, its services over theirs, and nothing left after Ctrl-C.
func TestDevStack(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	ownPorts(t, state)
	t.Cleanup(func() {
		if err := wipeDev(context.Background(), state); err != nil {
			t.Error(err)
		}
	})
	first := startStack(t, state)
	env := first.env(t)
	want := []string{"BMCSIM_URL", "BOOT_URL", "COMPUTE_DEV_ISSUER", "COMPUTE_POOL", "COMPUTE_SITE", "COMPUTE_TENANT", "COMPUTE_TOKEN", "COMPUTE_URL",
		"DATABASE_URL", "GATEWAY_URL", "PATH", "TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "TEMPORAL_UI"}
	var names []string
	for name := range env {
		names = append(names, name)
	}
	slices.Sort(names)
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("names of env (-want +got):\n%s", diff)
	}
	if got := sites(t, env); !slices.Contains(got, env["COMPUTE_SITE"]) {
		t.Errorf("sites = %v, without COMPUTE_SITE %s", got, env["COMPUTE_SITE"])
	}

	// Killed, it leaves its processes; the next run ends them and goes on with
	// the same state in the same places.
	left := first.processes(t)
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.cmd.Wait() // "signal: killed"
	second := startStack(t, state)
	for pid := range second.processes(t) {
		if args, was := left[pid]; was {
			t.Errorf("process %d of the killed run still runs: %s", pid, args)
		}
	}
	again := second.env(t)
	for _, name := range []string{"COMPUTE_URL", "COMPUTE_SITE", "COMPUTE_POOL", "DATABASE_URL", "TEMPORAL_ADDRESS", "BMCSIM_URL", "GATEWAY_URL"} {
		if env[name] != again[name] {
			t.Errorf("%s = %s after the kill, was %s", name, again[name], env[name])
		}
	}
	if got := sites(t, again); !slices.Contains(got, env["COMPUTE_SITE"]) {
		t.Errorf("after the kill sites = %v, without %s", got, env["COMPUTE_SITE"])
	}

	// A service that dies is said and started again.
	for pid, args := range second.processes(t) {
		if strings.Contains(args, "compute gateway") {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	second.wait(t, "gateway ended")
	d := &devStack{}
	if err := d.waitHTTP(t.Context(), "gateway", again["BOOT_URL"]+"/healthz"); err != nil {
		t.Error(err)
	}

	// While it runs another cannot start on the same state, nor wipe it.
	if err := wipeDev(t.Context(), state); err == nil {
		t.Error("the state of a running stack was wiped")
	}
	for range 2 { // make tells its child what the terminal told both
		if err := second.cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
	}
	if err := second.cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	if got := second.processes(t); len(got) > 0 {
		t.Errorf("after Ctrl-C there still run: %v", got)
	}
}

// A stack's folder is made when it is missing, with links to our programs; what
// was built there is left alone, and what cannot be is said.
func TestDevFolder(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "made", "here")
	if err := makeState(state); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(state, "bin")
	if err := placePrograms(bin, ""); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("with nothing beside this program: %v; want what to do", err)
	}
	if err := os.WriteFile(filepath.Join(bin, "bmcsim"), []byte("bmcsim"), 0o755); err != nil {
		t.Fatal(err)
	}
	from, err := built()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds the first's links
		if err := placePrograms(bin, from); err != nil {
			t.Error(err)
		}
	}
	if at, err := os.Readlink(filepath.Join(bin, "compute")); err != nil || at != filepath.Join(from, "compute") {
		t.Errorf("compute is linked to %s (%v)", at, err)
	}
	if b, err := os.ReadFile(filepath.Join(bin, "bmcsim")); err != nil || string(b) != "bmcsim" {
		t.Errorf("a program that was built there was replaced: %q %v", b, err)
	}
	if err := makeState(filepath.Join(bin, "bmcsim", "state")); err == nil || !strings.Contains(err.Error(), "--state names another") {
		t.Errorf("a folder that cannot be made: %v; want what to do", err)
	}
}

// The recorded processes of another run are not ended when the kernel gave
// their pids to somebody else.
func TestLeftoversOfOthersAreSpared(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pids")
	if err := os.WriteFile(file, fmt.Appendf(nil, "%d 1\n", os.Getpid()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := localstack.EndLeftovers(t.Context(), file); err != nil {
		t.Error(err)
	}
}
