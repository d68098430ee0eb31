package main

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bettercompute/compute/localstack"
	"github.com/bettercompute/compute/localstack/temporaltest"
	"github.com/bettercompute/compute/store/storetest"
)

// wire stands before an engine that is not there yet: it takes connections and
// drops them, or leaves them without an answer, until it lets them through.
type wire struct {
	net.Listener
	to string

	mu    sync.Mutex
	state string // drops, hangs or passes
	held  []net.Conn
}

func newWire(t *testing.T, to, state string) *wire {
	t.Helper()
	w := &wire{Listener: listenRig(t), to: to, state: state}
	t.Cleanup(func() { w.Close(); w.set("drops") })
	go func() {
		for {
			c, err := w.Accept()
			if err != nil {
				return
			}
			w.take(c)
		}
	}()
	return w
}

func (w *wire) take(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch w.state {
	case "drops":
		c.Close()
	case "hangs":
		w.held = append(w.held, c)
	default:
		engine, err := net.Dial("tcp", w.to)
		if err != nil {
			c.Close()
			return
		}
		w.held = append(w.held, c, engine)
		go func() { _, _ = io.Copy(engine, c); engine.Close() }() // either end may go
		go func() { _, _ = io.Copy(c, engine); c.Close() }()
	}
}

func (w *wire) holds() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.held) > 0
}

// set changes what becomes of connections, and ends those that hang.
func (w *wire) set(state string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = state
	for _, c := range w.held {
		c.Close()
	}
	w.held = nil
}

// Processes that start before Postgres and Temporal are up, or while these hang,
// wait for them, say what for, and work once they are there.
func TestStartBeforeEngines(t *testing.T) {
	t.Parallel()
	programs, err := built()
	if err != nil {
		t.Fatal(err)
	}
	database, err := url.Parse(storetest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	engine, namespace := temporaltest.Server(t)
	postgres, temporal := newWire(t, database.Host, "drops"), newWire(t, engine, "drops")
	database.Host = postgres.Addr().String()
	keys := t.TempDir()
	if err := initKeys(t.Context(), keys); err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(keys, name) }
	ports := map[string]string{}
	for _, name := range []string{"api", "gateway", "boot", "worker"} {
		port, err := localstack.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports[name] = loopback(port)
	}
	env := append(os.Environ(), "DATABASE_URL="+database.String(), "TEMPORAL_ADDRESS="+temporal.Addr().String(), "TEMPORAL_NAMESPACE="+namespace,
		"COMPUTE_KEYSET="+file("keyset.json"), "COMPUTE_BOOT_KEY="+file("boot.key"), "COMPUTE_GATEWAY_CA="+file("ca.pem"), "COMPUTE_GATEWAY_CA_KEY="+file("ca-key.pem"),
		"COMPUTE_NODE_CA="+file("node-ca.pem"), "COMPUTE_NODE_CA_KEY="+file("node-ca-key.pem"), "COMPUTE_GATEWAY_URL=https://"+ports["gateway"], "COMPUTE_BOOT_URL=http://"+ports["boot"],
		"COMPUTE_LISTEN="+ports["api"], "COMPUTE_GATEWAY_LISTEN="+ports["gateway"], "COMPUTE_BOOT_LISTEN="+ports["boot"], "COMPUTE_WORKER_LISTEN="+ports["worker"])
	for _, args := range [][]string{{"api"}, {"gateway"}, {"worker", "--unversioned", "--allow-short-retention"}} {
		startProcess(t, filepath.Join(programs, "compute"), args, env)
	}
	tells := func(process, why string) {
		t.Helper()
		until(t, func() string {
			resp, err := http.Get("http://" + ports[process] + "/readyz")
			if err != nil {
				return err.Error() // it does not listen yet
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				return err.Error()
			}
			want := http.StatusServiceUnavailable
			if why == "" {
				want = http.StatusOK
			}
			return missing(resp.StatusCode != want || !strings.Contains(string(b), why), "%s: /readyz %d %s; want %d with %q", process, resp.StatusCode, b, want, why)
		})
	}
	for _, state := range []string{"drops", "hangs"} {
		postgres.set(state)
		for _, process := range []string{"api", "boot", "worker"} {
			tells(process, "Postgres does not answer")
		}
	}
	postgres.set("passes")
	tells("api", "")
	tells("boot", "")
	for _, state := range []string{"drops", "hangs"} {
		temporal.set(state)
		until(t, func() string {
			return missing(state == "hangs" && !temporal.holds(), "the worker does not try Temporal again")
		})
		tells("worker", "Temporal at "+temporal.Addr().String())
	}
	temporal.set("passes")
	tells("worker", "")
	// And once it works it tells what it lost.
	postgres.set("hangs")
	tells("worker", "Postgres does not answer")
	postgres.set("passes")
	temporal.set("drops")
	tells("worker", "Temporal does not answer")
}

// startProcess runs a program until the test ends, which fails when it ended
// before.
func startProcess(t *testing.T, path string, args, env []string) {
	t.Helper()
	cmd := exec.Command(path, args...)
	var log rigLog
	cmd.Env, cmd.Stderr = env, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var end error
	go func() { end = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		select {
		case <-ended:
			t.Errorf("%v ended by itself: %v", args, end)
		default:
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may just have ended
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Errorf("%v does not end", args)
				_ = cmd.Process.Kill() // it may just have ended
			}
		}
		if t.Failed() {
			t.Logf("%v said:\n%s", args, log.String())
		}
	})
}
