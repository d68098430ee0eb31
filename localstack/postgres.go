// Package localstack starts the real parts that development and tests stand
// on: a private Postgres cluster, the Temporal dev server and our own
// processes. Everything listens on loopback.
package localstack

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// PostgresOptions say how a private cluster is made and run.
type PostgresOptions struct {
	// Dir is where the cluster shall lie. When its user cannot enter it (a
	// clone in a 0700 folder, run as root) a folder under /var/tmp derived from
	// it is used.
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

	bin  string
	cred *syscall.Credential
	wait chan struct{}
}

// StartPostgres starts the cluster in opts.Dir, making it first when it is not
// there. A postmaster left over from a killed run is stopped first. The
// binaries are the installed ones, else installed or unpacked by
// PostgresBinaries.
func StartPostgres(ctx context.Context, opts PostgresOptions) (*Postgres, error) {
	bin, err := PostgresBinaries(ctx, opts.Dir)
	if err != nil {
		return nil, err
	}
	p := &Postgres{bin: bin, wait: make(chan struct{})}
	if p.cred, err = serverUser(); err != nil {
		return nil, err
	}
	if p.Dir, err = clusterDir(opts.Dir, p.cred); err != nil {
		return nil, err
	}
	if err := p.initdb(ctx); err != nil {
		return nil, err
	}
	if err := p.stopLeftover(ctx); err != nil {
		return nil, err
	}
	if p.Port = opts.Port; p.Port == 0 {
		if p.Port, err = FreePort(); err != nil {
			return nil, err
		}
	}
	password, err := os.ReadFile(filepath.Join(p.Dir, "password"))
	if err != nil {
		return nil, fmt.Errorf("read the cluster's password: %w", err)
	}
	p.URL = fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/postgres", strings.TrimSpace(string(password)), p.Port)
	if err := p.start(opts); err != nil {
		return nil, err
	}
	if err := p.ready(ctx); err != nil {
		_ = p.Stop(ctx)
		return nil, err
	}
	return p, nil
}

// PostgresBinaries finds the folder with initdb and postgres: the newest of
// Debian's, then PATH. Where there is none it installs Debian's package as
// root, or unpacks it below dir without root.
func PostgresBinaries(ctx context.Context, dir string) (string, error) {
	if bin := findBinaries("/", dir); bin != "" {
		return bin, nil
	}
	if os.Getuid() == 0 {
		for _, args := range [][]string{{"update", "-q"}, {"install", "-y", "-q", "--no-install-recommends", "postgresql"}} {
			cmd := exec.CommandContext(ctx, "apt-get", args...)
			cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
			if out, err := cmd.CombinedOutput(); err != nil {
				return "", fmt.Errorf("install Postgres: apt-get %s: %w\n%s", args[0], err, out)
			}
		}
	} else if err := unpackPostgres(ctx, filepath.Join(dir, "unpacked")); err != nil {
		return "", err
	}
	if bin := findBinaries("/", dir); bin != "" {
		return bin, nil
	}
	return "", errors.New("no Postgres found, and installing Debian's did not bring one; install postgresql 15 or later")
}

func findBinaries(root, dir string) string {
	for _, base := range []string{root, filepath.Join(dir, "unpacked")} {
		found, _ := filepath.Glob(filepath.Join(base, "usr/lib/postgresql/*/bin/postgres"))
		sort.Slice(found, func(i, j int) bool { return majorOf(found[i]) > majorOf(found[j]) })
		if len(found) > 0 {
			return filepath.Dir(found[0])
		}
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		return filepath.Dir(path)
	}
	return ""
}

// majorOf is the version in .../postgresql/<version>/bin/postgres.
func majorOf(path string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
	return n
}

// unpackPostgres fetches Debian's packages and unpacks them without root.
func unpackPostgres(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	script := `set -e
v=$(apt-cache depends postgresql | sed -n 's/.*Depends: \(postgresql-[0-9]*\)$/\1/p' | head -n1)
c=$(echo "$v" | sed 's/postgresql-/postgresql-client-/')
apt-get download -q "$v" "$c" libpq5
for f in *.deb; do dpkg -x "$f" .; done`
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("unpack Postgres without root: %w\n%s", err, out)
	}
	return nil
}

// serverUser is whom the server runs as: nil is this user; Postgres refuses
// root, which runs it as postgres, else nobody.
func serverUser() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("root cannot run Postgres, and there is no user postgres or nobody")
}

// clusterDir makes the folder of the cluster, owned by its user, and one that
// this user can enter.
func clusterDir(dir string, cred *syscall.Credential) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("cluster folder %s: %w", dir, err)
	}
	if cred != nil && !enterable(abs) {
		sum := sha256.Sum256([]byte(abs))
		abs = filepath.Join("/var/tmp", "better-compute-"+hex.EncodeToString(sum[:6]))
	}
	if err := os.MkdirAll(abs, 0o755); err != nil {
		return "", fmt.Errorf("make cluster folder: %w", err)
	}
	if cred != nil {
		if err := os.Chown(abs, int(cred.Uid), int(cred.Gid)); err != nil {
			return "", fmt.Errorf("give the cluster folder to its user: %w", err)
		}
	}
	return abs, nil
}

// enterable says whether others may pass through every existing parent.
func enterable(path string) bool {
	for p := filepath.Dir(path); ; p = filepath.Dir(p) {
		if info, err := os.Stat(p); err == nil && info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if p == filepath.Dir(p) {
			return true
		}
	}
}

func (p *Postgres) data() string { return filepath.Join(p.Dir, "data") }

// command runs one of the server's programs as the server's user.
func (p *Postgres) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, name), args...)
	cmd.Dir = p.Dir
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	if lib := filepath.Join(filepath.Dir(filepath.Dir(p.bin)), "..", "x86_64-linux-gnu"); strings.Contains(p.bin, "unpacked") {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+lib)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.cred, Setpgid: true}
	return cmd
}

func (p *Postgres) initdb(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(p.data(), "PG_VERSION")); err == nil {
		return nil
	}
	secret := make([]byte, 18)
	if _, err := rand.Read(secret); err != nil {
		return fmt.Errorf("make the cluster's password: %w", err)
	}
	pw := filepath.Join(p.Dir, "password")
	if err := os.WriteFile(pw, []byte(hex.EncodeToString(secret)+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the cluster's password: %w", err)
	}
	if p.cred != nil {
		if err := os.Chown(pw, int(p.cred.Uid), int(p.cred.Gid)); err != nil {
			return fmt.Errorf("give the password file to the server's user: %w", err)
		}
	}
	// A folder half made by a killed initdb is of no use.
	if err := os.RemoveAll(p.data()); err != nil {
		return fmt.Errorf("clear a half-made cluster: %w", err)
	}
	cmd := p.command(ctx, "initdb", "-D", p.data(), "-U", "postgres", "--pwfile", pw, "-E", "UTF8", "--locale", "C.UTF-8",
		"--auth-local", "reject", "--auth-host", "scram-sha-256", "--no-sync", "--no-instructions")
	if out, err := cmd.CombinedOutput(); err != nil {
		_ = os.RemoveAll(p.data())
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return nil
}

// stopLeftover ends a postmaster that a killed run left behind.
func (p *Postgres) stopLeftover(ctx context.Context) error {
	if p.command(ctx, "pg_ctl", "status", "-D", p.data()).Run() != nil {
		return nil
	}
	if out, err := p.command(ctx, "pg_ctl", "stop", "-D", p.data(), "-m", "fast", "-w").CombinedOutput(); err != nil {
		return fmt.Errorf("stop the Postgres a former run left in %s: %w\n%s", p.Dir, err, out)
	}
	return nil
}

func (p *Postgres) start(opts PostgresOptions) error {
	settings := []string{"listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=300",
		"shared_buffers=128MB", "log_min_messages=warning"}
	if opts.Throwaway {
		settings = append(settings, "fsync=off", "synchronous_commit=off", "full_page_writes=off")
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
	p.PID = cmd.Process.Pid
	go func() {
		_ = cmd.Wait()
		close(p.wait)
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
			return fmt.Errorf("postgres in %s ended while starting; see its log", p.Dir)
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

// RemoveCluster stops and removes the cluster that StartPostgres made for dir,
// wherever it lies.
func RemoveCluster(ctx context.Context, dir string) error {
	cred, err := serverUser()
	if err != nil {
		return err
	}
	where, err := clusterDir(dir, cred)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(where, "data", "PG_VERSION")); err == nil {
		bin, err := PostgresBinaries(ctx, dir)
		if err != nil {
			return err
		}
		p := &Postgres{bin: bin, cred: cred, Dir: where}
		if err := p.stopLeftover(ctx); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(where); err != nil {
		return fmt.Errorf("remove the cluster: %w", err)
	}
	return nil
}
