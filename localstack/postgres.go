// Package localstack starts the real parts that development and tests stand
// on: a private Postgres cluster, the Temporal dev server and our own
// processes. Everything listens on loopback.
package localstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// PostgresOptions say how a private cluster is made and run.
type PostgresOptions struct {
	// Dir is where the cluster shall lie. When its user cannot enter it (a
	// clone in a 0700 folder, run as root) one under /var/lib/better-compute
	// stands in for it.
	Dir string
	// Port is the loopback port; 0 takes a free one.
	Port int
	// Throwaway switches all syncing off: for clusters of tests.
	Throwaway bool
	// Log receives the server's output; nil discards it.
	Log io.Writer
	// Settings are further server settings, "name=value".
	Settings []string
	// Detach lets the server outlive this process.
	Detach bool
}

// Postgres is a running private cluster.
type Postgres struct {
	// URL connects as the superuser to the database postgres.
	URL string
	// PID is the postmaster's.
	PID int
	// Dir is where the cluster lies.
	Dir  string
	Port int

	bin  PostgresBinaries
	cred *syscall.Credential
	wait chan struct{}
}

// StartPostgres starts the cluster in opts.Dir, making it first when it is not
// there, and returns when it takes connections. A postmaster left over from a
// killed run is stopped first. The programs are found by FindPostgres. Only one
// process at a time may start and use the cluster of a folder.
func StartPostgres(ctx context.Context, opts PostgresOptions) (*Postgres, error) {
	version, err := clusterVersion(opts.Dir)
	if err != nil {
		return nil, err
	}
	p := &Postgres{}
	if p.bin, err = FindPostgres(ctx, version, opts.Dir); err != nil {
		return nil, err
	}
	// Looked up after the programs, whose package makes the user.
	if p.cred, err = serverUser(); err != nil {
		return nil, err
	}
	if p.Dir, err = clusterDir(opts.Dir, p.cred); err != nil {
		return nil, err
	}
	if err := p.initdb(ctx, opts.Throwaway); err != nil {
		return nil, err
	}
	crashed, err := p.stopLeftover(ctx)
	if err != nil {
		return nil, err
	}
	// A free port can be lost to another process, and the last children of a
	// killed server refuse a new one until they are gone. Both pass.
	attempts := 3
	if crashed {
		attempts = 30
	}
	for ; ; attempts-- {
		err := p.launch(ctx, opts)
		if err == nil {
			return p, nil
		}
		if !errors.Is(err, errEnded) || attempts == 1 {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// errEnded says that the server ended while it was starting.
var errEnded = errors.New("it ended while starting; see its log")

// launch starts the server once and waits until it takes connections.
func (p *Postgres) launch(ctx context.Context, opts PostgresOptions) error {
	var err error
	if p.Port = opts.Port; p.Port == 0 {
		if p.Port, err = FreePort(); err != nil {
			return err
		}
	}
	password, err := os.ReadFile(p.passwordFile())
	if err != nil {
		return fmt.Errorf("read the cluster's password: %w", err)
	}
	p.URL = fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/postgres", strings.TrimSpace(string(password)), p.Port)
	if err := p.start(opts); err != nil {
		return err
	}
	if err := p.ready(ctx); err != nil {
		return errors.Join(err, p.Stop(context.WithoutCancel(ctx)))
	}
	return nil
}

func (p *Postgres) start(opts PostgresOptions) error {
	settings := []string{"listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=300",
		"shared_buffers=128MB", "jit=off", "timezone=UTC", "log_timezone=UTC"}
	if opts.Throwaway {
		settings = append(settings, "fsync=off", "synchronous_commit=off", "full_page_writes=off",
			"wal_level=minimal", "max_wal_senders=0", "max_wal_size=2GB", "checkpoint_timeout=30min")
	}
	args := []string{"-D", p.data(), "-p", strconv.Itoa(p.Port)}
	for _, s := range append(settings, opts.Settings...) {
		args = append(args, "-c", s)
	}
	cmd := p.command(context.Background(), "postgres", args...)
	if opts.Detach {
		cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Setsid = false, true
	}
	cmd.Stdout, cmd.Stderr = opts.Log, opts.Log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	wait := make(chan struct{})
	p.PID, p.wait = cmd.Process.Pid, wait
	go func() {
		_ = cmd.Wait()
		close(wait)
	}()
	return nil
}

// Exited is closed when the server has ended.
func (p *Postgres) Exited() <-chan struct{} { return p.wait }

func (p *Postgres) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		conn, err := pgx.Connect(ctx, p.URL)
		if err == nil {
			return conn.Close(ctx)
		}
		last = err
		select {
		case <-p.wait:
			return fmt.Errorf("start postgres in %s: %w", p.Dir, errEnded)
		case <-ctx.Done():
			return fmt.Errorf("postgres in %s did not become ready: %w", p.Dir, last)
		case <-tick.C:
		}
	}
}

// Stop ends the server fast (open transactions are rolled back) and waits.
func (p *Postgres) Stop(ctx context.Context) error {
	if err := syscall.Kill(p.PID, syscall.SIGINT); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop postgres (pid %d): %w", p.PID, err)
	}
	select {
	case <-p.wait:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("postgres (pid %d) did not stop: %w", p.PID, ctx.Err())
	}
}

// FreePort returns a loopback port that was free a moment ago.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// CreateDatabase makes, unless they are there, a role that owns a database of
// the same name and otherwise may only watch the server (pg_monitor), as a
// production system's role. It returns the URL that connects as that role.
func (p *Postgres) CreateDatabase(ctx context.Context, name string) (string, error) {
	conn, err := pgx.Connect(ctx, p.URL)
	if err != nil {
		return "", fmt.Errorf("create database %s: %w", name, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	quoted, password := pgx.Identifier{name}.Sanitize(), conn.Config().Password
	for _, step := range []struct{ missing, sql string }{
		// The password is hexadecimal digits: nothing to quote.
		{"SELECT NOT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)",
			"CREATE ROLE " + quoted + " LOGIN IN ROLE pg_monitor PASSWORD '" + password + "'"},
		{"SELECT NOT EXISTS (SELECT FROM pg_database WHERE datname = $1)",
			"CREATE DATABASE " + quoted + " OWNER " + quoted},
	} {
		var missing bool
		if err := conn.QueryRow(ctx, step.missing, name).Scan(&missing); err != nil {
			return "", fmt.Errorf("create database %s: %w", name, err)
		}
		if !missing {
			continue
		}
		if _, err := conn.Exec(ctx, step.sql); err != nil {
			return "", fmt.Errorf("create database %s: %w", name, err)
		}
	}
	return fmt.Sprintf("postgres://%s:%s@127.0.0.1:%d/%s", url.PathEscape(name), password, p.Port, url.PathEscape(name)), nil
}
