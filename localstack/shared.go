package localstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// testNamespaces are made on the shared Temporal server; TakeNamespace hands
// them out, one a test process and test at a time.
const testNamespaces = 48

// SharedPostgres returns the URL of the one throwaway cluster that all test
// processes of this user share, starting it when it is not there.
func SharedPostgres(ctx context.Context) (string, error) {
	return shared("postgres", func(dir string) (string, int, error) {
		pg, err := StartPostgres(ctx, PostgresOptions{Dir: dir, Throwaway: true, Detach: true})
		if err != nil {
			return "", 0, err
		}
		return pg.URL, pg.PID, nil
	})
}

// SharedTemporal returns the address of the one throwaway Temporal server that
// all test processes of this user share, starting it when it is not there.
func SharedTemporal(ctx context.Context) (string, error) {
	return shared("temporal", func(dir string) (string, int, error) {
		root, err := ModuleRoot()
		if err != nil {
			return "", 0, err
		}
		binary, err := TemporalBinary(ctx, root, func() {})
		if err != nil {
			return "", 0, err
		}
		f, err := os.Open(filepath.Join(root, "temporal-dev.yaml"))
		if err != nil {
			return "", 0, fmt.Errorf("open the dev server's configuration: %w", err)
		}
		defer f.Close()
		c, err := ReadTemporalConfig(f)
		if err != nil {
			return "", 0, err
		}
		c.Headless, c.DBFilename = true, ""
		for i := range testNamespaces {
			c.ExtraNamespaces = append(c.ExtraNamespaces, namespaceName(i))
		}
		t, err := startShared(ctx, binary, dir, c)
		if err != nil {
			return "", 0, err
		}
		return t.Address, t.PID, nil
	})
}

// sharedStarts is how often the shared server is started before its failure
// counts: between the look for a free port and its use another process may take
// one of the ports it needs.
const sharedStarts = 3

func startShared(ctx context.Context, binary, dir string, c TemporalConfig) (*Temporal, error) {
	var failed error
	for range sharedStarts {
		var err error
		if c.Port, err = FreePort(); err != nil {
			return nil, err
		}
		t, err := StartTemporal(ctx, binary, dir, c, nil, true)
		if err == nil {
			return t, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, failed
}

func namespaceName(i int) string { return "test-" + strconv.Itoa(i) }

// TakeNamespace reserves a namespace of the shared Temporal server until the
// returned function is called or this process ends. They are given in turn, so
// that one is as new as can be: a former holder's workflows are still in it, and
// a sweep that meets such takes its database for a restored one.
func TakeNamespace() (name string, release func(), err error) {
	base, err := sharedDir("temporal")
	if err != nil {
		return "", nil, err
	}
	turn, err := lock(filepath.Join(base, "namespaces"), syscall.LOCK_EX)
	if err != nil {
		return "", nil, err
	}
	defer turn.Close()
	raw, err := io.ReadAll(turn)
	if err != nil {
		return "", nil, fmt.Errorf("read whose turn it is: %w", err)
	}
	next, _ := strconv.Atoi(string(raw)) // none yet is 0
	for n := range testNamespaces {
		i := (next + n) % testNamespaces
		f, err := lock(filepath.Join(base, "namespace-"+strconv.Itoa(i)), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			continue
		}
		if err != nil {
			return "", nil, err
		}
		if err := os.WriteFile(turn.Name(), []byte(strconv.Itoa((i+1)%testNamespaces)), 0o600); err != nil {
			return "", nil, errors.Join(fmt.Errorf("pass the turn on: %w", err), f.Close())
		}
		return namespaceName(i), func() { _ = f.Close() }, nil
	}
	return "", nil, fmt.Errorf("all %d test namespaces are taken", testNamespaces)
}

// sharedDir makes the folder of a shared server. It lies in a place that all
// may write to, so one that is not this user's own is not used.
func sharedDir(name string) (string, error) {
	root := filepath.Join(os.TempDir(), "better-compute-test-"+strconv.Itoa(os.Getuid()))
	if err := os.Mkdir(root, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make %s: %w", root, err)
	}
	info, err := os.Lstat(root)
	if err != nil {
		return "", fmt.Errorf("look at %s: %w", root, err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || ok && int(owner.Uid) != os.Getuid() {
		return "", fmt.Errorf("%s is not a folder of this user: remove it", root)
	}
	base := filepath.Join(root, name)
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", fmt.Errorf("make %s: %w", base, err)
	}
	return base, nil
}

// shared starts a server that all test processes of this user use, or finds it
// started. It is wiped a few seconds after the last process that asked for it
// has ended, however that ended: each holds a shared lock on a file, and a
// reaper waits for the exclusive one.
func shared(name string, start func(dir string) (state string, pid int, err error)) (string, error) {
	base, err := sharedDir(name)
	if err != nil {
		return "", err
	}
	// Held until this process ends; the kernel drops it even after kill -9.
	if err := holdForLife(filepath.Join(base, "users")); err != nil {
		return "", err
	}
	starting, err := lock(filepath.Join(base, "start"), syscall.LOCK_EX)
	if err != nil {
		return "", err
	}
	defer starting.Close()
	path := filepath.Join(base, "state")
	if state, pid := readState(path); state != "" && syscall.Kill(pid, 0) == nil {
		return state, nil
	}
	dir := filepath.Join(base, "data")
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("clear a former test %s: %w", name, err)
	}
	state, pid, err := start(dir)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(path, []byte(state+"\n"+strconv.Itoa(pid)+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write %s: %w", path, err)
	}
	return state, startReaper(base, pid)
}

// lifelong keeps locks reachable: a file that the garbage collector finds
// unused is closed, which would drop its lock while the server is in use.
var lifelong struct {
	sync.Mutex
	files []*os.File
}

func holdForLife(path string) error {
	f, err := lock(path, syscall.LOCK_SH)
	if err != nil {
		return err
	}
	lifelong.Lock()
	defer lifelong.Unlock()
	lifelong.files = append(lifelong.files, f)
	return nil
}

func readState(path string) (state string, pid int) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", 0
	}
	lines := strings.Fields(string(b))
	if len(lines) != 2 {
		return "", 0
	}
	pid, err = strconv.Atoi(lines[1])
	if err != nil || pid <= 1 {
		return "", 0
	}
	return lines[0], pid
}

// lock opens and locks a file; closing the file unlocks it.
func lock(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock %s: %w", path, err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// startReaper leaves a small process behind that stops the server when nobody
// uses it. It looks twice, some seconds apart, so that the gap between two test
// packages does not end the server.
func startReaper(base string, pid int) error {
	script := `cd / ; while :; do
  flock -x "$1/users" true
  sleep 5
  exec 9>"$1/users"
  if flock -xn 9; then rm -f "$1/state"; kill -QUIT "$2" 2>/dev/null; rm -rf "$1/data"; exit 0; fi
  exec 9>&-
done`
	cmd := exec.Command("sh", "-c", script, "reaper", base, strconv.Itoa(pid))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the reaper of %s: %w", base, err)
	}
	return cmd.Process.Release()
}
