package localstack_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/localstack"
)

func query[T any](t *testing.T, url, sql string) T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var v T
	if err := conn.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func removeAfter(t *testing.T, dir string) {
	t.Helper()
	t.Cleanup(func() {
		if err := localstack.RemoveCluster(context.Background(), dir); err != nil {
			t.Error(err)
		}
	})
}

// reusePID makes the pid file of a killed server name this test's process, as
// when the kernel gave the pid away again.
func reusePID(t *testing.T, cluster string) {
	t.Helper()
	path := filepath.Join(cluster, "data", "postmaster.pid")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "\n")
	if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"+rest), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What a killed initdb left is made anew, not taken for a cluster.
func TestPostgresHalfMade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	removeAfter(t, dir)
	half := filepath.Join(dir, "data.new")
	if err := os.Mkdir(half, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(half, "PG_VERSION"), []byte("15\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pg, err := localstack.StartPostgres(t.Context(), localstack.PostgresOptions{Dir: dir, Throwaway: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := query[int](t, pg.URL, "SELECT 1"); got != 1 {
		t.Errorf("SELECT 1 = %d", got)
	}
	if err := pg.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// A cluster whose postmaster was killed, in a folder nobody else can enter,
// starts again with its data.
func TestPostgresSurvivesKill(t *testing.T) {
	t.Parallel()
	closed := t.TempDir()
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(closed, "pg")
	first, err := localstack.StartPostgres(t.Context(), localstack.PostgresOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	removeAfter(t, dir)
	conn, err := pgx.Connect(t.Context(), first.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "CREATE TABLE kept AS SELECT 42 AS n"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-first.Exited()
	reusePID(t, first.Dir)
	second, err := localstack.StartPostgres(t.Context(), localstack.PostgresOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if got := query[int](t, second.URL, "SELECT n FROM kept"); got != 42 {
		t.Errorf("after the kill n = %d, want 42", got)
	}
	if err := second.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// A second start while a detached server of a former run still runs takes its
// place instead of failing.
func TestPostgresTakesOverLeftover(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pg")
	first, err := localstack.StartPostgres(t.Context(), localstack.PostgresOptions{Dir: dir, Throwaway: true})
	if err != nil {
		t.Fatal(err)
	}
	removeAfter(t, dir)
	second, err := localstack.StartPostgres(t.Context(), localstack.PostgresOptions{Dir: dir, Throwaway: true})
	if err != nil {
		t.Fatal(err)
	}
	<-first.Exited()
	if err := second.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}
