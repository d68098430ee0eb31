package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/store/storetest"
)

// An SSH CA is trusted, distrusted and listed by command.
func TestKeysSSH(t *testing.T) {
	t.Parallel()
	dir, url := t.TempDir(), storetest.URL(t)
	if err := initKeys(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	public := filepath.Join(dir, "ssh-ca.pub")
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		cmd := newKeysSSHCmd()
		cmd.SetArgs(append(args, "--database-url", url))
		cmd.SetOut(&out)
		cmd.SetErr(io.Discard)
		err := cmd.ExecuteContext(context.Background())
		return out.String(), err
	}
	if _, err := run("distrust", public); err == nil {
		t.Error("a CA that no node knows was distrusted")
	}
	for _, c := range []struct{ do, want string }{{"trust", "  trusted\n"}, {"distrust", "  distrusted 2"}, {"trust", "  trusted\n"}} {
		if out, err := run(c.do, public); err != nil || !strings.Contains(out, "next NodeSpec") {
			t.Errorf("%s: %s (%v)", c.do, out, err)
		}
		key, err := identity.ReadSSHPublicKey(public)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := run("list"); err != nil || !strings.Contains(out, c.want) || !strings.Contains(out, key) || !strings.HasPrefix(out, "SHA256:") {
			t.Errorf("after %s: %s (%v), want %q", c.do, out, err, c.want)
		}
	}
	for name, text := range map[string]string{"none": "", "two": "KEY\nKEY\n", "options": "no-pty KEY\n"} {
		b, err := os.ReadFile(public)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, name+".pub")
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, "KEY", strings.TrimSpace(string(b)))), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := run("trust", file); err == nil {
			t.Errorf("%s was trusted", name)
		}
	}
}

// A value of the SSH configuration that cannot be read ends the process: none
// falls back to its default unseen.
func TestSSHConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key, public := sshCAFiles(dir)
	for range 2 { // the second finds the first's
		if err := identity.CreateSSHCA(t.Context(), key, public, nil); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v (%v)", info.Mode(), err)
	}
	good := sshConfig{caKey: key, accounts: "root, ops", requireMFA: "false", backdate: "3m", perHour: "7"}
	o, err := good.options()
	if err != nil || o.CA == nil || len(o.Accounts) != 2 || o.Accounts[1] != "ops" || !o.WithoutMFA || o.Backdate != 3*time.Minute || o.PerHour != 7 {
		t.Errorf("options %+v (%v)", o, err)
	}
	for name, change := range map[string]func(*sshConfig){
		"MFA":      func(c *sshConfig) { c.requireMFA = "flase" },
		"backdate": func(c *sshConfig) { c.backdate = "5" },
		"zero":     func(c *sshConfig) { c.backdate = "0s" },
		"rate":     func(c *sshConfig) { c.perHour = "0" },
		"no file":  func(c *sshConfig) { c.caKey = key + "x" },
		"no key":   func(c *sshConfig) { c.caKey = public },
	} {
		c := good
		change(&c)
		if _, err := c.options(); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	// The flags' defaults are the documented ones.
	cmd := &cobra.Command{}
	var c sshConfig
	c.flags(cmd)
	if o, err := c.options(); err != nil || o.WithoutMFA || len(o.Accounts) != 1 || o.Accounts[0] != "root" || o.Backdate != 5*time.Minute || o.PerHour != 20 {
		t.Errorf("defaults %+v (%v)", o, err)
	}
}
