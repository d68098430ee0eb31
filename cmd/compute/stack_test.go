package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
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

	"github.com/bettercompute/compute/fleet"
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

// built are our programs, built once for all stacks of this package.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "compute-bin-")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", dir+"/", "./cmd/compute", "./cmd/bmcsim", "./cmd/computectl", "./cmd/nodeagent")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build: %w\n%s", err, out)
	}
	return dir, os.Chmod(dir, 0o755)
})

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

// startStack starts a stack and waits until it is ready.
func startStack(t *testing.T, state string) *stack {
	t.Helper()
	s := launchStack(t, state, 2)
	s.wait(t, "ready in ")
	return s
}

// waitScale leaves an operation's waits bounds that only what hangs reaches.
const waitScale = "COMPUTE_WAIT_SCALE=3"

func launchStack(t *testing.T, state string, nodes int) *stack {
	t.Helper()
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	s := &stack{state: state, cmd: exec.Command(filepath.Join(dir, "compute"), "dev", "--state", state, "--nodes", strconv.Itoa(nodes)),
		seen: make(chan struct{}, 1)}
	s.cmd.Dir = "../.."
	// What is waited for below comes about in seconds; a bound of an operation is
	// not reached by a slow machine.
	s.cmd.Env = append(os.Environ(), "COMPUTE_SWEEP_EVERY=2s", waitScale)
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

// processes are the pids of what runs with the state folder in its arguments:
// all that the stack started, and itself.
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

// user runs the stack's programs as its user would, with its env file.
type user struct {
	t     *testing.T
	stack *stack
	env   map[string]string
}

// shared is the stack that the tests of this package use side by side, each with
// machines of its own: m00001 is the tour's.
var shared struct {
	sync.Mutex
	*stack
}

// sharedNodes is the size of the shared stack's rack.
const sharedNodes = 12

// asProgram makes this test binary run as the program, so that a test has its
// processes without building them.
const asProgram = "COMPUTE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	// These tests wait for simulated machines most of the time.
	if err := flag.Set("test.parallel", "12"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := endShared(); err != nil {
		fmt.Fprintln(os.Stderr, "end the shared stack:", err)
		code = 1
	}
	if dir, _ := built(); dir != "" {
		_ = os.RemoveAll(dir) // a temporary folder
	}
	os.Exit(code)
}

func endShared() error {
	if shared.stack == nil {
		return nil
	}
	_ = shared.cmd.Process.Signal(syscall.SIGINT) // gone already is said by Wait
	return errors.Join(shared.cmd.Wait(), wipeDev(context.Background(), shared.state))
}

// startUser returns a user of the shared stack, which the first one starts.
func startUser(t *testing.T) *user {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.stack == nil {
		state, err := os.MkdirTemp("", "compute-stack-")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(state, 0o755); err != nil { // Postgres runs as a user of its own
			t.Fatal(err)
		}
		ownPorts(t, state)
		shared.stack = launchStack(t, state, sharedNodes)
	}
	shared.wait(t, "ready in ")
	return &user{t: t, stack: shared.stack, env: shared.env(t)}
}

// ownSite moves the user to a site of its own, so that what it sets there
// touches no other test.
func (u *user) ownSite(name string, args ...string) {
	u.t.Helper()
	var out fleet.SiteOut
	args = append([]string{"sites", "create", "--name", name, "--allowed-networks", "127.0.0.0/8", "-o", "json"}, args...)
	if err := json.Unmarshal([]byte(u.run("computectl", args...)), &out); err != nil {
		u.t.Fatal(err)
	}
	u.env["COMPUTE_SITE"] = out.Site.ID
}

func (u *user) command(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(u.t.Context(), filepath.Join(u.stack.state, "bin", name), args...)
	cmd.Env = os.Environ()
	for k, v := range u.env {
		if k != "PATH" {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	return cmd
}

// run runs a program that must succeed and returns what it printed.
func (u *user) run(name string, args ...string) string {
	u.t.Helper()
	out, err := u.command(name, args...).CombinedOutput()
	if err != nil {
		u.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// simulated reads a document of the rack's control API.
func (u *user) simulated(path string, into any) {
	u.t.Helper()
	req, err := http.NewRequestWithContext(u.t.Context(), http.MethodGet, u.env["BMCSIM_URL"]+path, nil)
	if err != nil {
		u.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		u.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		u.t.Fatal(err)
	}
	if s, ok := into.(*string); ok {
		*s = string(raw)
		return
	}
	if err := json.Unmarshal(raw, into); err != nil {
		u.t.Fatalf("%s: %s: %v", path, raw, err)
	}
}

// machine is a simulated machine as its control API shows it.
type machine struct{ Address, Username, Password string }

func (u *user) node(name string) fleet.MetalNode {
	u.t.Helper()
	var out fleet.MetalOut
	if err := json.Unmarshal([]byte(u.run("computectl", "metal", "get", name, "-o", "json")), &out); err != nil {
		u.t.Fatal(err)
	}
	return out.Node
}

func (u *user) state(name string, want fleet.ProvisionState) {
	u.t.Helper()
	if got := u.node(name).ProvisionState; got != want {
		u.t.Fatalf("%s is %s, want %s", name, got, want)
	}
}

// resets are the power changes that a simulated machine made.
func (u *user) resets(id string) map[string]int {
	u.t.Helper()
	var counts struct{ Resets map[string]int }
	u.simulated("/sim/machines/"+id+"/counts", &counts)
	return counts.Resets
}
