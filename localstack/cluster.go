package localstack

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// awayRoot holds the clusters of folders that the server's user cannot enter.
// Only root meets that case, and nobody else can make a folder there first.
const awayRoot = "/var/lib/better-compute"

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

// clusterDir makes the folder of the cluster that belongs to dir: dir, or one
// elsewhere when its user cannot enter dir. A cluster that is there decides.
func clusterDir(dir string, cred *syscall.Credential) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("cluster folder %s: %w", dir, err)
	}
	if err := os.MkdirAll(abs, 0o755); err != nil {
		return "", fmt.Errorf("make cluster folder: %w", err)
	}
	away := awayDir(abs)
	switch {
	case cred == nil:
		return abs, nil
	case isCluster(away):
		return away, nil
	case canEnter(abs, cred):
		return abs, nil
	case isCluster(abs):
		return "", fmt.Errorf("the server's user can no longer enter %s, where its cluster lies; open the folders above it, or wipe it", abs)
	}
	for _, d := range []string{awayRoot, away} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return "", fmt.Errorf("make a folder that the server's user can enter: %w", err)
		}
		// Whatever the umask: passable, but not to be listed.
		if err := os.Chmod(d, 0o711); err != nil {
			return "", fmt.Errorf("make a folder that the server's user can enter: %w", err)
		}
	}
	return away, nil
}

func awayDir(abs string) string {
	sum := sha256.Sum256([]byte(abs))
	return filepath.Join(awayRoot, hex.EncodeToString(sum[:6]))
}

func isCluster(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "data", "PG_VERSION"))
	return err == nil
}

// canEnter asks the kernel, which alone knows modes, ACLs and mounts of every
// folder on the way.
func canEnter(dir string, cred *syscall.Credential) bool {
	cmd := exec.Command("test", "-x", dir)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: cred}
	return cmd.Run() == nil
}

// clusterVersion is the major version that made the cluster that belongs to
// dir; 0 without one.
func clusterVersion(dir string) (int, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return 0, fmt.Errorf("cluster folder %s: %w", dir, err)
	}
	for _, d := range []string{awayDir(abs), abs} {
		raw, err := os.ReadFile(filepath.Join(d, "data", "PG_VERSION"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("read the cluster's version: %w", err)
		}
		version, err := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err != nil {
			return 0, fmt.Errorf("read the cluster's version: %w", err)
		}
		return version, nil
	}
	return 0, nil
}

func (p *Postgres) data() string { return filepath.Join(p.Dir, "data") }

func (p *Postgres) passwordFile() string { return filepath.Join(p.Dir, "password") }

// command runs one of the server's programs as the server's user.
func (p *Postgres) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := p.bin.command(ctx, name, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.cred, Setpgid: true}
	return cmd
}

// initdb makes the cluster unless it is there. It is made beside its place and
// renamed: initdb writes PG_VERSION early, so that a killed one would look whole.
func (p *Postgres) initdb(ctx context.Context, throwaway bool) error {
	if isCluster(p.Dir) {
		return nil
	}
	half := p.data() + ".new"
	for _, d := range []string{half, p.data()} {
		if err := os.RemoveAll(d); err != nil {
			return fmt.Errorf("clear a half-made cluster: %w", err)
		}
	}
	if err := os.Mkdir(half, 0o700); err != nil {
		return fmt.Errorf("make the cluster's folder: %w", err)
	}
	if p.cred != nil {
		if err := os.Chown(half, int(p.cred.Uid), int(p.cred.Gid)); err != nil {
			return fmt.Errorf("give the cluster's folder to its user: %w", err)
		}
	}
	secret := make([]byte, 18)
	if _, err := rand.Read(secret); err != nil {
		return fmt.Errorf("make the cluster's password: %w", err)
	}
	password := hex.EncodeToString(secret) + "\n"
	if err := os.WriteFile(p.passwordFile(), []byte(password), 0o600); err != nil {
		return fmt.Errorf("write the cluster's password: %w", err)
	}
	if p.cred != nil {
		if err := os.Chown(p.passwordFile(), int(p.cred.Uid), int(p.cred.Gid)); err != nil {
			return fmt.Errorf("give the password file to the server's user: %w", err)
		}
	}
	args := []string{"-D", half, "-U", "postgres", "--pwfile", p.passwordFile(), "-E", "UTF8", "--locale", "C.UTF-8",
		"--auth-local", "reject", "--auth-host", "scram-sha-256", "--no-instructions"}
	if throwaway {
		args = append(args, "--no-sync")
	}
	cmd := p.command(ctx, "initdb", args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	if err := os.Rename(half, p.data()); err != nil {
		return fmt.Errorf("put the cluster in place: %w", err)
	}
	return nil
}

// stopLeftover ends a postmaster that a killed run left behind, and reports
// whether there was a trace of one. A pid file whose pid has become another
// program's is removed: the server would take that one for a rival.
func (p *Postgres) stopLeftover(ctx context.Context) (trace bool, err error) {
	file := filepath.Join(p.data(), "postmaster.pid")
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for a former run's Postgres: %w", err)
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err == nil && runsCluster(ctx, pid, p.data()) {
		if out, err := p.command(ctx, "pg_ctl", "stop", "-D", p.data(), "-m", "fast", "-w").CombinedOutput(); err != nil {
			return true, fmt.Errorf("stop the Postgres a former run left in %s: %w\n%s", p.Dir, err, out)
		}
		return true, nil
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return true, fmt.Errorf("remove a former run's pid file: %w", err)
	}
	return true, nil
}

// runsCluster says whether process pid is the server of the cluster in data:
// start passes the folder among its arguments.
func runsCluster(ctx context.Context, pid int, data string) bool {
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		args, err = exec.CommandContext(ctx, "ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	}
	return err == nil && bytes.Contains(args, []byte(data))
}

// StopCluster stops a server that a killed run left on the cluster that
// StartPostgres made for dir; its port is free afterwards.
func StopCluster(ctx context.Context, dir string) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("cluster folder %s: %w", dir, err)
	}
	version, err := clusterVersion(dir)
	if err != nil || version == 0 {
		return err
	}
	cred, err := serverUser()
	if err != nil {
		return err
	}
	bin, err := FindPostgres(ctx, version, dir)
	if err != nil {
		return err
	}
	for _, where := range []string{awayDir(abs), abs} {
		p := &Postgres{bin: bin, cred: cred, Dir: where}
		if _, err := p.stopLeftover(ctx); err != nil {
			return err
		}
	}
	return nil
}

// RemoveCluster stops and removes the cluster that StartPostgres made for dir,
// wherever it lies.
func RemoveCluster(ctx context.Context, dir string) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("cluster folder %s: %w", dir, err)
	}
	if err := StopCluster(ctx, dir); err != nil {
		return err
	}
	for _, where := range []string{awayDir(abs), abs} {
		if err := os.RemoveAll(where); err != nil {
			return fmt.Errorf("remove the cluster: %w", err)
		}
	}
	return nil
}
