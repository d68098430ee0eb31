package localstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// SharedPostgres returns the URL of the one throwaway cluster that all test
// processes of this user share, starting it when it is not there. It is wiped
// a few seconds after the last process that asked for it has ended, however
// that ended: each holds a shared lock on a file, and a reaper waits for the
// exclusive one.
func SharedPostgres(ctx context.Context) (string, error) {
	if url := os.Getenv("COMPUTE_TEST_DATABASE_URL"); url != "" {
		return url, nil
	}
	base := filepath.Join(os.TempDir(), "better-compute-test-"+strconv.Itoa(os.Getuid()))
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", fmt.Errorf("make %s: %w", base, err)
	}
	// Held until this process ends; the kernel drops it even after kill -9.
	if _, err := lock(filepath.Join(base, "users"), syscall.LOCK_SH); err != nil {
		return "", err
	}
	starting, err := lock(filepath.Join(base, "start"), syscall.LOCK_EX)
	if err != nil {
		return "", err
	}
	defer starting.Close()
	state := filepath.Join(base, "url")
	if url, pid := readState(state); url != "" && syscall.Kill(pid, 0) == nil {
		return url, nil
	}
	if err := os.RemoveAll(filepath.Join(base, "pg")); err != nil {
		return "", fmt.Errorf("clear a former test cluster: %w", err)
	}
	pg, err := StartPostgres(ctx, PostgresOptions{Dir: filepath.Join(base, "pg"), Throwaway: true, Detach: true})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(state, []byte(pg.URL+"\n"+strconv.Itoa(pg.PID)+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write %s: %w", state, err)
	}
	return pg.URL, startReaper(base, pg)
}

func readState(path string) (url string, pid int) {
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

// startReaper leaves a small process behind that stops the cluster when nobody
// uses it. It looks twice, some seconds apart, so that the gap between two test
// packages does not end the cluster.
func startReaper(base string, pg *Postgres) error {
	script := `cd / ; while :; do
  flock -x "$1/users" true
  sleep 5
  exec 9>"$1/users"
  if flock -xn 9; then rm -f "$1/url"; kill -QUIT "$2" 2>/dev/null; rm -rf "$1/pg" "$3"; exit 0; fi
  exec 9>&-
done`
	cmd := exec.Command("sh", "-c", script, "reaper", base, strconv.Itoa(pg.PID), pg.Dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the test cluster's reaper: %w", err)
	}
	return cmd.Process.Release()
}
