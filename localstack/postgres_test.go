package localstack_test

import (
	"context"
	"os"
	"path/filepath"
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
	t.Cleanup(func() {
		if err := os.RemoveAll(first.Dir); err != nil {
			t.Error(err)
		}
	})
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
	t.Cleanup(func() { _ = os.RemoveAll(first.Dir) })
	second, err := localstack.StartPostgres(t.Context(), localstack.PostgresOptions{Dir: dir, Throwaway: true})
	if err != nil {
		t.Fatal(err)
	}
	<-first.Exited()
	if err := second.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}
