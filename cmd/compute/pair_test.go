package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"

	"github.com/bettercompute/compute/localstack"
)

// pair is a stack whose engines the test ends and starts again: this process is
// in the place of compute dev. Of each stateless process there are two.
type pair struct {
	*user
	dev *devStack
	// apis are the URLs of the processes of the API.
	apis []string
	pool *pgxpool.Pool
	ends *ends
}

// ends are what was said of processes that ended by themselves.
type ends struct {
	mu    sync.Mutex
	lines []string
}

func (e *ends) say(line string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lines = append(e.lines, line)
}

func (e *ends) said() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.lines)
}

// pairScale is how much faster than real hardware its rack runs.
const pairScale = 60

func startPair(t *testing.T, nodes int, settings ...string) *pair {
	t.Helper()
	state := t.TempDir()
	ownPorts(t, state)
	programs, err := built()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	d, unlock, err := newDevStack(t.Context(), devOptions{programs: programs, state: state, nodes: nodes, timeScale: pairScale, waitScale: 3, settings: settings}, &said)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.stop()
		unlock()
		if t.Failed() {
			showLogs(t, state)
		}
		if err := wipeDev(context.Background(), state); err != nil {
			t.Error(err)
		}
	})
	r := &pair{dev: d, apis: []string{httpURL(d.ports.API)}, ends: &ends{}}
	d.children.Say = r.ends.say
	// Ends that the stack would end for are what the test brings about.
	if err := d.startAll(t.Context(), make(chan error, 8)); err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	port, err := localstack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	second := d.api()
	second.Name, second.Env = "api-2", append(second.Env, "COMPUTE_LISTEN="+loopback(port))
	another := d.worker()
	another.Name = "worker-2"
	for _, c := range []localstack.Child{second, another} {
		if err := d.children.Start(c); err != nil {
			t.Fatal(err)
		}
	}
	r.apis = append(r.apis, httpURL(port))
	if err := d.waitHTTP(t.Context(), "api-2", r.apis[1]+"/readyz"); err != nil {
		t.Fatal(err)
	}
	r.user = &user{t: t, stack: &stack{state: state}}
	r.env = r.stack.env(t)
	if r.pool, err = pgxpool.New(t.Context(), r.env["DATABASE_URL"]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.pool.Close)
	r.t = t
	until(t, func() string {
		n := r.query(`SELECT count(*) FROM heartbeats WHERE kind = 'dispatcher'`)
		return missing(n < 2, "%d workers deliver", n)
	})
	return r
}

// showLogs shows what the processes said last that was not for information only.
func showLogs(t *testing.T, state string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(state, "log", "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var said []string
		for line := range strings.Lines(string(raw)) {
			if !strings.HasPrefix(line, "{") {
				t.Logf("%s: %s", filepath.Base(file), line) // what ended it
			} else if !strings.Contains(line, `"level":"INFO"`) {
				said = append(said, line)
			}
		}
		t.Logf("%s:\n%s", filepath.Base(file), strings.Join(said[max(0, len(said)-20):], ""))
	}
}

// in is the pair as a subtest uses it.
func (r *pair) in(t *testing.T) *pair {
	at := *r
	at.user = &user{t: t, stack: r.stack, env: r.env}
	return &at
}

// query reads a number.
func (r *pair) query(sql string, args ...any) int {
	r.t.Helper()
	var n int
	if err := r.pool.QueryRow(r.t.Context(), sql, args...).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// signalTemporal stops the dev server in its tracks, or lets it go on.
func (r *pair) signalTemporal(sig syscall.Signal) {
	r.t.Helper()
	if err := syscall.Kill(r.dev.temporal.PID, sig); err != nil {
		r.t.Fatal(err)
	}
}

// killPostgres kills the server and all its children at once.
func (r *pair) killPostgres() {
	r.t.Helper()
	pids := append([]int{r.dev.pg.PID}, childrenOf(r.t, r.dev.pg.PID)...)
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL) // a child may be gone already
	}
	<-r.dev.pg.Exited()
}

func (r *pair) restartPostgres() {
	r.t.Helper()
	if err := r.dev.startPostgres(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// kill kills one process of the stack whose arguments contain a text.
func (r *pair) kill(args string) {
	r.t.Helper()
	for pid, have := range r.stack.processes(r.t) {
		if strings.Contains(have, args) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				r.t.Fatal(err)
			}
			return
		}
	}
	r.t.Fatalf("no process %q runs", args)
}

// temporal is a client of the pair's server.
func (r *pair) temporal() client.Client {
	r.t.Helper()
	c, err := client.Dial(client.Options{HostPort: r.env["TEMPORAL_ADDRESS"], Namespace: r.env["TEMPORAL_NAMESPACE"],
		Logger: sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler))})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return c
}

// childrenOf are the processes that a process started.
func childrenOf(t *testing.T, parent int) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // gone
		}
		// pid (name) state ppid ...
		rest := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(rest) < 2 || rest[1] != strconv.Itoa(parent) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// readiness is what a process of the API says of itself.
type readiness struct {
	Ready    bool
	Why      string
	Degraded []string
}

// metric reads one sample of a process of the API.
func metric(t *testing.T, url, name string) float64 {
	t.Helper()
	_, text := get(t, url+"/metrics")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
