package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/localstack"
)

// stackLimit bounds one start or stop of a stack; reaching it is a failure.
const stackLimit = 3 * time.Minute

// stack is a run of compute dev as a process.
type stack struct {
	cmd   *exec.Cmd
	state string

	mu    sync.Mutex
	lines []string
	seen  chan struct{} // receives one for each line, and is closed at the end
}

func buildStack(t *testing.T, state string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(state, "bin")+"/", "./cmd/compute", "./cmd/bmcsim", "./cmd/computectl")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	ownPorts(t, state)
}

// ownPorts gives a stack ports of its own before its first start, so that
// stacks of several tests start side by side.
func ownPorts(t *testing.T, state string) {
	t.Helper()
	var ports devPorts
	for _, p := range []*int{&ports.API, &ports.Gateway, &ports.Boot, &ports.Sim, &ports.Machines, &ports.Issuer, &ports.Postgres, &ports.Temporal, &ports.TemporalUI} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // held until all are chosen
		*p = l.Addr().(*net.TCPAddr).Port
	}
	raw, err := json.Marshal(ports)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "ports.json"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func startStack(t *testing.T, state string) *stack {
	t.Helper()
	s := &stack{state: state, cmd: exec.Command(filepath.Join(state, "bin", "compute"), "dev", "--state", state, "--nodes", "2"),
		seen: make(chan struct{}, 1)}
	s.cmd.Dir = "../.."
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stderr = s.cmd.Stdout
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.seen)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			s.mu.Lock()
			s.lines = append(s.lines, lines.Text())
			s.mu.Unlock()
			select {
			case s.seen <- struct{}{}:
			default: // one to look is already on its way
			}
		}
	}()
	s.wait(t, "ready in ")
	return s
}

// wait returns when the stack has printed a line that begins so.
func (s *stack) wait(t *testing.T, prefix string) {
	t.Helper()
	limit := time.After(stackLimit)
	for {
		s.mu.Lock()
		found := slices.ContainsFunc(s.lines, func(l string) bool { return strings.HasPrefix(l, prefix) })
		said := strings.Join(s.lines, "\n")
		s.mu.Unlock()
		if found {
			return
		}
		select {
		case _, open := <-s.seen:
			if !open {
				t.Fatalf("the stack ended without a line %q:\n%s", prefix, said)
			}
		case <-limit:
			t.Fatalf("no line %q:\n%s", prefix, said)
		}
	}
}

// env reads the stack's env file.
func (s *stack) env(t *testing.T) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(s.state, "env"))
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if !ok {
			t.Fatalf("line of env: %q", line)
		}
		env[name] = strings.Trim(value, "'")
	}
	return env
}

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

// processes are the pids of what runs with the state folder in its arguments
// or environment: all that the stack started, and itself.
func (s *stack) processes(t *testing.T) map[int]string {
	t.Helper()
	found := map[int]string{}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		args, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !bytes.Contains(args, []byte(s.state)) {
			continue // gone, or of another
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			t.Fatal(err)
		}
		found[pid] = string(bytes.ReplaceAll(args, []byte{0}, []byte{' '}))
	}
	return found
}

// The local stack keeps its contract: what it writes for a shell, its state
// over kill -9, its services over theirs, and nothing left after Ctrl-C.
func TestDevStack(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	buildStack(t, state)
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
	if err := second.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := second.cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	if got := second.processes(t); len(got) > 0 {
		t.Errorf("after Ctrl-C there still run: %v", got)
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
