package sshd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// runLimit bounds each run of sshd and ssh-keygen.
const runLimit = 30 * time.Second

// missing finds sshd and ssh-keygen, and names the one that is not there.
func (c *Config) missing() string {
	for _, p := range []struct {
		path *string
		name string
	}{{&c.Program, "sshd"}, {&c.Keygen, "ssh-keygen"}} {
		// A service's PATH often lacks the folder of sshd.
		for _, dir := range []string{"/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"} {
			if *p.path == "" && isProgram(filepath.Join(dir, p.name)) {
				*p.path = filepath.Join(dir, p.name)
			}
		}
		if !isProgram(*p.path) {
			return p.name
		}
	}
	return ""
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// output runs a program and returns what it wrote; its words of failure are in
// the error.
func output(ctx context.Context, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(program), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

var missingPrivsep = regexp.MustCompile(`Missing privilege separation directory: (/\S+)`)

// sshd runs sshd without serving. The folder that it wants for its privilege
// separation lies on a file system that is empty after a boot, and is there only
// once a service made it.
func (c *Config) sshd(ctx context.Context, args ...string) (string, error) {
	out, err := output(ctx, c.Program, args...)
	if err == nil {
		return out, nil
	}
	if m := missingPrivsep.FindStringSubmatch(err.Error()); m != nil {
		if err := os.Mkdir(m[1], 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return "", fmt.Errorf("make the folder that sshd wants: %w", err)
		}
		return output(ctx, c.Program, args...)
	}
	return "", err
}

// tryDropIn has sshd check the drop-in together with the host's configuration,
// before it is put in place.
func (c *Config) tryDropIn(ctx context.Context) error {
	fresh, config := filepath.Join(c.dir(), "drop-in.try"), filepath.Join(c.dir(), "sshd_config.try")
	if err := writeFile(fresh, c.dropInText()); err != nil {
		return err
	}
	// The first value of a keyword counts, so that an older drop-in does not hide
	// the new one.
	if err := writeFile(config, []byte("Include "+fresh+"\nInclude "+c.file()+"\n")); err != nil {
		return err
	}
	if _, err := c.sshd(ctx, "-t", "-f", config); err != nil {
		return fmt.Errorf("sshd refuses its configuration with the drop-in: %w", err)
	}
	return nil
}

// inForce says why sshd's configuration as it lies there is not well-formed or
// does not hold what the drop-in says; "" when it is and does.
func (c *Config) inForce(ctx context.Context) (conflict string) {
	settings, err := c.settings(ctx)
	if err != nil {
		return err.Error()
	}
	for _, d := range c.directives() {
		if got := settings[strings.ToLower(d[0])]; got != d[1] {
			return fmt.Sprintf("%s is not in force: %s says %q; does %s include %s, before any Match and any %s of its own?",
				c.dropIn(), d[0], got, c.file(), filepath.Dir(c.dropIn()), d[0])
		}
	}
	return ""
}

// settings are sshd's, by keyword in lower case. It tells them when it takes its
// configuration.
func (c *Config) settings(ctx context.Context) (map[string]string, error) {
	out, err := c.sshd(ctx, "-T", "-f", c.file())
	if err != nil {
		return nil, fmt.Errorf("sshd refuses its configuration: %w", err)
	}
	m := map[string]string{}
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		m[key] = value
	}
	return m, nil
}

// reload makes the running sshd read its configuration, and is done when it has.
func (c *Config) reload(ctx context.Context) error {
	if c.Reload != nil {
		return c.Reload(ctx)
	}
	if c.missing() != "" {
		return nil // no sshd, so none that runs
	}
	settings, err := c.settings(ctx)
	if err != nil {
		return err
	}
	if settings["pidfile"] == "none" {
		return fmt.Errorf("the running sshd cannot be found, and so not be told to read its configuration: %s says PidFile none", c.file())
	}
	was, err := os.Stat(settings["pidfile"])
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the running sshd: %w", err)
	}
	b, err := os.ReadFile(settings["pidfile"])
	if err != nil {
		return fmt.Errorf("find the running sshd: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid < 2 {
		return fmt.Errorf("%s holds no process id", settings["pidfile"])
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if errors.Is(err, os.ErrNotExist) || err == nil && strings.TrimSpace(string(comm)) != "sshd" {
		return nil // the file of one that ended
	}
	if err != nil {
		return fmt.Errorf("look at the running sshd: %w", err)
	}
	if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
		return fmt.Errorf("tell sshd to read its configuration: %w", err)
	}
	return back(ctx, settings["pidfile"], was)
}

// back waits until sshd has written its process id anew. From SIGHUP until then
// it has none and may not have read its configuration: what that names must not
// go away yet, and a second change would not find it.
func back(ctx context.Context, pidfile string, was os.FileInfo) error {
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		now, err := os.Stat(pidfile)
		if err == nil && now.Size() > 0 && !(os.SameFile(was, now) && now.ModTime().Equal(was.ModTime())) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("sshd was told to read its configuration and is not back within %s: its own log says why", runLimit)
		case <-tick.C:
		}
	}
}

// makeKRL makes the revocation list: an empty one first, so that there is one
// whatever comes after.
func (c *Config) makeKRL(ctx context.Context, path string, s fleet.SSHSpec) error {
	if _, err := output(ctx, c.Keygen, "-k", "-f", path); err != nil {
		return fmt.Errorf("make an empty revocation list: %w", err)
	}
	var spec strings.Builder
	if s.ExpiredThrough != "0" {
		fmt.Fprintf(&spec, "serial: 1-%s\n", s.ExpiredThrough)
	}
	for _, serial := range s.RevokedSerials {
		fmt.Fprintf(&spec, "serial: %s\n", serial)
	}
	if spec.Len() > 0 {
		if err := writeFile(path+".spec", []byte(spec.String())); err != nil {
			return err
		}
		// Of every CA: they hand out no serial twice.
		if _, err := output(ctx, c.Keygen, "-k", "-f", path, "-s", "none", path+".spec"); err != nil {
			return fmt.Errorf("make the revocation list: %w", err)
		}
		if err := removeFile(path + ".spec"); err != nil {
			return err
		}
	}
	if _, err := c.readKRL(ctx, path); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("bring the revocation list to the disk: %w", err)
	}
	if err := errors.Join(f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("bring the revocation list to the disk: %w", err)
	}
	return nil
}

// readKRL lists what a revocation list refuses.
func (c *Config) readKRL(ctx context.Context, path string) (string, error) {
	out, err := output(ctx, c.Keygen, "-Q", "-l", "-f", path)
	if err != nil {
		return "", fmt.Errorf("read the revocation list: %w", err)
	}
	var b strings.Builder
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "#") { // its number and when it was made
			b.WriteString(line)
		}
	}
	return b.String(), nil
}
