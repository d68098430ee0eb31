package localstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// minPostgres is the oldest major version that the schema works with.
const minPostgres = 15

// PostgresBinaries is one installation of the server.
type PostgresBinaries struct {
	// Dir holds initdb and postgres.
	Dir string
	// Env is what its programs need beside the caller's environment.
	Env []string

	major int
}

// FindPostgres finds the server's programs: of major version want, or the
// newest when want is 0. Debian's places count first, then PATH, then what a
// former call unpacked below dir. Where there is none it installs Debian's
// package as root, or without root unpacks it below dir.
func FindPostgres(ctx context.Context, want int, dir string) (PostgresBinaries, error) {
	unpacked := filepath.Join(dir, "unpacked")
	if b, ok := newestPostgres(ctx, want, unpacked); ok {
		return b, nil
	}
	install := func() error { return aptInstall(ctx, "postgresql") }
	if os.Getuid() != 0 {
		install = func() error { return aptUnpack(ctx, "postgresql", unpacked) }
	}
	if err := install(); err != nil {
		return PostgresBinaries{}, fmt.Errorf("install Postgres: %w", err)
	}
	if b, ok := newestPostgres(ctx, want, unpacked); ok {
		return b, nil
	}
	version := fmt.Sprintf("%d or later", minPostgres)
	if want != 0 {
		version = fmt.Sprintf("%d, which made the cluster in %s", want, dir)
	}
	return PostgresBinaries{}, fmt.Errorf("no Postgres found, and Debian's packages brought none that fits; install version %s", version)
}

func newestPostgres(ctx context.Context, want int, unpacked string) (PostgresBinaries, bool) {
	dirs := globs("/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin")
	if path, err := exec.LookPath("postgres"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	var all []PostgresBinaries
	for _, d := range dirs {
		all = append(all, PostgresBinaries{Dir: d})
	}
	// The libraries of an unpacked server are found by this variable, its own
	// files relative to its programs.
	env := []string{"LD_LIBRARY_PATH=" + strings.Join(globs(unpacked+"/usr/lib/*-linux-gnu*"), ":")}
	for _, d := range globs(unpacked + "/usr/lib/postgresql/*/bin") {
		all = append(all, PostgresBinaries{Dir: d, Env: env})
	}
	var best PostgresBinaries
	for _, b := range all {
		b.major = b.version(ctx)
		if b.major > best.major && (b.major == want || want == 0 && b.major >= minPostgres) {
			best = b
		}
	}
	return best, best.major != 0
}

func globs(patterns ...string) []string {
	var all []string
	for _, p := range patterns {
		found, _ := filepath.Glob(p) // fails for a malformed pattern only
		all = append(all, found...)
	}
	return all
}

func (b PostgresBinaries) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(b.Dir, name), args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Env = append(cmd.Env, b.Env...)
	return cmd
}

// version is the major version of a whole installation that runs here, else 0.
func (b PostgresBinaries) version(ctx context.Context) int {
	if _, err := os.Stat(filepath.Join(b.Dir, "initdb")); err != nil {
		return 0 // a client only
	}
	out, err := b.command(ctx, "postgres", "--version").Output()
	if err != nil {
		return 0
	}
	return majorVersion(string(out))
}

// majorVersion reads "postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)".
func majorVersion(out string) int {
	_, rest, _ := strings.Cut(out, "(PostgreSQL) ")
	digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
	major, _ := strconv.Atoi(rest[:digits]) // 0 when it says none
	return major
}

// aptInstall installs packages as root. Debian's server package starts a
// cluster of its own on the usual port where services are started on install;
// ours has another port and folder.
func aptInstall(ctx context.Context, packages ...string) error {
	args := append([]string{"install", "-y", "-q", "--no-install-recommends"}, packages...)
	if runQuiet(ctx, "apt-get", args...) == nil {
		return nil
	}
	// The machine's package lists may be absent or old.
	if err := runQuiet(ctx, "apt-get", "update", "-q"); err != nil {
		return err
	}
	return runQuiet(ctx, "apt-get", args...)
}

// aptUnpack downloads a package with whatever it needs and this machine lacks,
// and unpacks all below dir. Package lists and archives are kept beside it, so
// that nothing of it needs root. It fills a new folder and renames that, so
// that a killed run leaves no half installation.
func aptUnpack(ctx context.Context, name, dir string) error {
	work := dir + ".new"
	if err := os.RemoveAll(work); err != nil {
		return fmt.Errorf("clear a half-made installation: %w", err)
	}
	for _, sub := range []string{"lists/partial", "archives/partial", "root"} {
		if err := os.MkdirAll(filepath.Join(work, sub), 0o755); err != nil {
			return fmt.Errorf("make a folder to unpack in: %w", err)
		}
	}
	apt := func(args ...string) error {
		return runQuiet(ctx, "apt-get", append([]string{"-q", "-o", "Dir::State::lists=" + work + "/lists", "-o", "Dir::Cache=" + work,
			"-o", "Dir::Cache::archives=" + work + "/archives", "-o", "Debug::NoLocking=true"}, args...)...)
	}
	if err := apt("update"); err != nil {
		return err
	}
	if err := apt("install", "-y", "--no-install-recommends", "--download-only", name); err != nil {
		return err
	}
	for _, archive := range globs(work + "/archives/*.deb") {
		if err := runQuiet(ctx, "dpkg", "-x", archive, work+"/root"); err != nil {
			return err
		}
	}
	if err := os.Rename(work+"/root", dir); err != nil {
		return fmt.Errorf("put the installation in place: %w", err)
	}
	return os.RemoveAll(work)
}

// runQuiet runs a program and tells its last lines only when it fails.
func runQuiet(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%s is not on this machine: %w", program, err)
	}
	if err != nil {
		lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
		tail := bytes.Join(lines[max(0, len(lines)-10):], []byte("\n"))
		return fmt.Errorf("%s %s: %w\n%s", program, strings.Join(slices.DeleteFunc(args, isOption), " "), err, tail)
	}
	return nil
}

// isOption tells what a message about a failed program can do without.
func isOption(arg string) bool { return strings.HasPrefix(arg, "-") || strings.Contains(arg, "=") }
