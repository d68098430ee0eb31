// Package sshd lets a host's own sshd take the control plane's certificates: one
// drop-in that names the CAs, the principals and the revocation list. Nothing
// else of the host's configuration is touched, and what is put in place was tried
// before, is put in place as a whole, and is taken back when sshd does not like
// it.
package sshd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/bettercompute/compute/fleet"
)

// Config says where sshd and its files lie. The zero value is a host as Linux
// distributions set it up.
type Config struct {
	// File is sshd's configuration, DropIn the file that is added to it, and Dir
	// the folder of what the drop-in names. They default to
	// /etc/ssh/sshd_config, /etc/ssh/sshd_config.d/better-compute.conf and
	// /etc/ssh/better-compute.
	File, DropIn, Dir string
	// Program and Keygen are sshd and ssh-keygen; empty are those of the host.
	Program, Keygen string
	// Reload makes the running sshd read its configuration again; nil sends SIGHUP
	// to the process of its PidFile, and does nothing when none runs: then each
	// connection starts an sshd of its own, or the next start reads it.
	Reload func(ctx context.Context) error

	mu sync.Mutex
}

// The names below Dir. current is a link to the folder of the NodeSpec in force,
// so that a new one takes the place of the old in one step; sshd reads what it
// holds at each login. reload.due is there from before the drop-in is written
// until the running sshd was told of it, whatever ends the agent in between.
const (
	nameCurrent    = "current"
	nameReload     = "reload.due"
	nameCAs        = "ca.pub"
	nameKRL        = "revoked.krl"
	namePrincipals = "principals"
)

func (c *Config) file() string { return or(c.File, "/etc/ssh/sshd_config") }
func (c *Config) dropIn() string {
	return or(c.DropIn, "/etc/ssh/sshd_config.d/better-compute.conf")
}
func (c *Config) dir() string       { return or(c.Dir, "/etc/ssh/better-compute") }
func (c *Config) current() string   { return filepath.Join(c.dir(), nameCurrent) }
func (c *Config) reloadDue() string { return filepath.Join(c.dir(), nameReload) }

func or(s, otherwise string) string {
	if s != "" {
		return s
	}
	return otherwise
}

// directives are what the drop-in says, by sshd's keyword.
func (c *Config) directives() [][2]string {
	return [][2]string{
		{"TrustedUserCAKeys", filepath.Join(c.current(), nameCAs)},
		{"AuthorizedPrincipalsFile", filepath.Join(c.current(), namePrincipals, "%u")},
		{"RevokedKeys", filepath.Join(c.current(), nameKRL)},
	}
}

func (c *Config) dropInText() []byte {
	var b bytes.Buffer
	b.WriteString("# Break-glass logins by certificate. Written by nodeagent, which removes it when the host leaves.\n")
	for _, d := range c.directives() {
		fmt.Fprintf(&b, "%s %s\n", d[0], d[1])
	}
	return b.Bytes()
}

// Apply brings the SSH part of a NodeSpec about, as a whole or not at all.
// conflict says what of the host's own configuration stands in the way; then
// nothing of ours is in force.
func (c *Config) Apply(ctx context.Context, spec fleet.NodeSpec) (conflict string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if spec.SSH == nil {
		return "", c.remove(ctx)
	}
	if err := check(spec); err != nil {
		return "", err
	}
	if name := c.missing(); name != "" {
		return name + " is not installed; break-glass logins need the host's own sshd", nil
	}
	lines, err := c.conflicts()
	if err != nil {
		return "", err
	}
	if len(lines) > 0 {
		return "the host's own configuration is left as it is, and break-glass logins do not work beside it: " + strings.Join(lines, "; "), c.remove(ctx)
	}
	name, err := c.stage(ctx, *spec.SSH)
	if err == nil {
		conflict, err = c.enforce(ctx, name)
	}
	return conflict, errors.Join(err, c.tidy())
}

// check refuses a document that would let in others than it means to, whoever
// made it.
func check(spec fleet.NodeSpec) error {
	s := spec.SSH
	if len(s.CAKeys) == 0 {
		return errors.New("the NodeSpec names no SSH CA")
	}
	for _, k := range s.CAKeys {
		if !fleet.MatchPattern("sshKey", k) {
			return errors.New("the NodeSpec names an SSH CA that is no key")
		}
	}
	for account, principals := range s.Principals {
		if !fleet.MatchPattern("principal", account) {
			return fmt.Errorf("the NodeSpec names the account %q", account)
		}
		for _, p := range principals {
			if p != fleet.SSHPrincipal(account, spec.NodeID) || !fleet.MatchPattern("sshNodeId", spec.NodeID) {
				return fmt.Errorf("the NodeSpec lets %q in to account %s of node %q", p, account, spec.NodeID)
			}
		}
	}
	for _, serial := range append(slices.Clone(s.RevokedSerials), s.ExpiredThrough) {
		if !fleet.MatchPattern("serial", serial) {
			return fmt.Errorf("the NodeSpec revokes the serial %q", serial)
		}
	}
	return nil
}

// stage writes what the drop-in is to name into a folder of its own, and returns
// the folder's name: that of the one in force when it holds the same, untouched.
func (c *Config) stage(ctx context.Context, s fleet.SSHSpec) (string, error) {
	if err := makeDir(c.dir()); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(c.dir(), "spec-")
	if err != nil {
		return "", fmt.Errorf("make a folder for the SSH files: %w", err)
	}
	for _, d := range []string{fresh, filepath.Join(fresh, namePrincipals)} {
		if err := makeDir(d); err != nil {
			return "", err
		}
	}
	if err := writeFile(filepath.Join(fresh, nameCAs), []byte(strings.Join(s.CAKeys, "\n")+"\n")); err != nil {
		return "", err
	}
	for account, principals := range s.Principals {
		// sshd reads it as the user that logs in.
		if err := writeFile(filepath.Join(fresh, namePrincipals, account), []byte(strings.Join(principals, "\n")+"\n")); err != nil {
			return "", err
		}
	}
	if err := c.makeKRL(ctx, filepath.Join(fresh, nameKRL), s); err != nil {
		return "", err
	}
	want, err := c.content(ctx, fresh)
	if err != nil {
		return "", err
	}
	if name, err := os.Readlink(c.current()); err == nil {
		// One that somebody damaged cannot be read, or differs.
		if have, err := c.content(ctx, filepath.Join(c.dir(), name)); err == nil && maps.Equal(have, want) {
			return name, nil
		}
	}
	return filepath.Base(fresh), nil
}

// content is what a staged folder holds: by path, its mode and text. Of the
// revocation list, which names the time when it was made, it is what it refuses.
func (c *Config) content(ctx context.Context, folder string) (map[string]string, error) {
	m := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := ""
		switch {
		case d.Name() == nameKRL:
			text, err = c.readKRL(ctx, path)
		case d.Type().IsRegular():
			var b []byte
			b, err = os.ReadFile(path)
			text = string(b)
		}
		m[strings.TrimPrefix(path, folder)] = info.Mode().String() + " " + text
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the SSH files: %w", err)
	}
	return m, nil
}

// enforce makes a staged folder the one in force and has the drop-in name it. A
// drop-in that sshd does not take is taken back, and what was in force before is
// in force again.
func (c *Config) enforce(ctx context.Context, name string) (conflict string, err error) {
	old, err := os.ReadFile(c.dropIn())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read the drop-in: %w", err)
	}
	if err == nil && bytes.Equal(old, c.dropInText()) {
		// sshd reads the files at each login: a revocation does not wait for what
		// else is wrong with the host's configuration.
		if err := c.point(name); err != nil {
			return "", err
		}
		if conflict := c.inForce(ctx); conflict != "" {
			return conflict, nil
		}
		return "", c.reloadIfDue(ctx)
	}
	before, err := os.Readlink(c.current())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read which SSH files are in force: %w", err)
	}
	if err := c.tryDropIn(ctx); err != nil {
		return "", err
	}
	// The files before the name: sshd refuses every key while a revocation list
	// that is named is missing.
	if err := c.point(name); err != nil {
		return "", err
	}
	if err := errors.Join(writeFile(c.reloadDue(), nil), os.MkdirAll(filepath.Dir(c.dropIn()), 0o755)); err != nil {
		return "", fmt.Errorf("make ready for the drop-in: %w", err)
	}
	if err := writeFile(c.dropIn(), c.dropInText()); err != nil {
		return "", errors.Join(err, c.takeBack(old, before))
	}
	if conflict := c.inForce(ctx); conflict != "" {
		return "", errors.Join(errors.New(conflict), c.takeBack(old, before))
	}
	if err := c.reloadIfDue(ctx); err != nil {
		// The running sshd may have read it all the same.
		return "", errors.Join(err, c.takeBack(old, before), c.reload(ctx))
	}
	return "", nil
}

// reloadIfDue tells the running sshd of a drop-in that was put in place by an
// agent that ended before it told.
func (c *Config) reloadIfDue(ctx context.Context) error {
	if !there(c.reloadDue()) {
		return nil
	}
	if err := c.reload(ctx); err != nil {
		return err
	}
	return removeFile(c.reloadDue())
}

// takeBack undoes an enforce that failed. A drop-in that was there before is put
// back; old is nil when there was none.
func (c *Config) takeBack(old []byte, before string) error {
	restore := removeFile(c.dropIn())
	if old != nil {
		restore = writeFile(c.dropIn(), old)
	}
	if before != "" {
		restore = errors.Join(restore, c.point(before))
	}
	return restore
}

// point makes current a link to a folder, in one step.
func (c *Config) point(name string) error {
	if now, err := os.Readlink(c.current()); err == nil && now == name {
		return nil
	}
	fresh := c.current() + ".new"
	if err := removeFile(fresh); err != nil {
		return err
	}
	if err := os.Symlink(name, fresh); err != nil {
		return fmt.Errorf("put the SSH files in force: %w", err)
	}
	if err := os.Rename(fresh, c.current()); err != nil {
		return fmt.Errorf("put the SSH files in force: %w", err)
	}
	return nil
}

// tidy removes the folders that are not in force.
func (c *Config) tidy() error {
	keep, err := os.Readlink(c.current())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read which SSH files are in force: %w", err)
	}
	entries, err := os.ReadDir(c.dir())
	if err != nil {
		return fmt.Errorf("look for SSH files that are not in force: %w", err)
	}
	for _, e := range entries {
		if e.Name() != keep && e.Name() != nameCurrent && e.Name() != nameReload {
			if err := os.RemoveAll(filepath.Join(c.dir(), e.Name())); err != nil {
				return fmt.Errorf("remove SSH files that are not in force: %w", err)
			}
		}
	}
	return nil
}

// Remove takes the drop-in and all that it names off the host.
func (c *Config) Remove(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.remove(ctx)
}

func (c *Config) remove(ctx context.Context) error {
	if !there(c.dropIn()) && !there(c.dir()) {
		return nil
	}
	if err := removeFile(c.dropIn()); err != nil {
		return err
	}
	// Before the files go: the running sshd still names them, also when an agent
	// ended that had removed the drop-in, and refuses every key without its
	// revocation list.
	if err := c.reload(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(c.dir()); err != nil {
		return fmt.Errorf("remove the SSH files: %w", err)
	}
	return nil
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func makeDir(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("make a folder for the SSH files: %w", err)
	}
	// Whatever the agent's umask is, sshd reads below it as the user.
	if err := os.Chmod(path, 0o755); err != nil {
		return fmt.Errorf("make a folder for the SSH files: %w", err)
	}
	return nil
}

// writeFile puts a file in place whole or not at all, on the disk before it is
// named.
func writeFile(path string, b []byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("put %s in place: %w", path, err)
	}
	return nil
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}
