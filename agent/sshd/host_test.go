package sshd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/bettercompute/compute/agent/sshd"
	"github.com/bettercompute/compute/agent/sshd/sshdtest"
	"github.com/bettercompute/compute/fleet"
)

// asAgent has the test's own program apply a NodeSpec as a process of its own,
// which can be killed and has a umask of its own.
const asAgent = "SSHD_TEST_AGENT"

// errand is what asAgent is told.
type errand struct {
	File, DropIn, Dir string
	Spec              fleet.NodeSpec
	Umask             int
}

func TestMain(m *testing.M) {
	if text := os.Getenv(asAgent); text != "" {
		var e errand
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			panic(err)
		}
		syscall.Umask(e.Umask)
		c := sshd.Config{File: e.File, DropIn: e.DropIn, Dir: e.Dir}
		if conflict, err := c.Apply(context.Background(), e.Spec); err != nil || conflict != "" {
			fmt.Fprintln(os.Stderr, conflict, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// agent is a process that applies a NodeSpec.
func agent(t *testing.T, s *sshdtest.Server, spec fleet.NodeSpec, umask int) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(errand{s.Config.File, s.Config.DropIn, s.Config.Dir, spec, umask})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0]) //nolint:noctx // it ends with its errand
	cmd.Env = append(os.Environ(), asAgent+"="+string(text))
	cmd.Stderr = os.Stderr
	return cmd
}

// Every line that sshd takes for a directive is read as sshd reads it: as a host's
// own CA, or a file that is included.
func TestConflictForms(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t)
	ca := authority{t, newSigner(t)}
	for name, text := range map[string]string{"a.conf": "TrustedUserCAKeys /of/a\n", "with blank.conf": "TrustedUserCAKeys /of/blank\n", ".hidden.conf": "TrustedUserCAKeys /of/hidden\n",
		"matching.conf": "Match User nobody\nPermitTTY no\n"} {
		s.Write(name, text)
	}
	own, err := os.ReadFile(s.Config.File)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(own), "\n") // without its Include of the drop-in's folder
	found := 0
	for _, line := range []string{
		"TrustedUserCAKeys /x", "trustedusercakeys=/x", "TrustedUserCAKeys = /x", `TrustedUserCAKeys= "/x y"`, "TrustedUserCAKeys '/x'", `"TrustedUserCAKeys" /x`,
		"  \t TrustedUserCAKeys\t/x", "=TrustedUserCAKeys /x", `"TrustedUserCAKeys"=/x`, "TrustedUserCAKeys /x\r", "TrustedUserCAKeys /x \f", "TrustedUserCAKeys none",
		"TrustedUserCAKeys NONE", `TrustedUserCAKeys "none"`, `TrustedUserCAKeys n\one`, "TrustedUserCAKeys no'ne'", "TrustedUserCAKeys /x # theirs", "TrustedUserCAKeys a#b",
		"#TrustedUserCAKeys /x", " # TrustedUserCAKeys /x", "PermitTTY yes",
		"Include 'DIR/a.conf'", `Include "DIR/with blank.conf"`, `Include DIR/with\ blank.conf`, "Include=DIR/a.conf", "Include DIR/[!b].conf", "Include DIR/*idden.conf",
		"Include DIR/.h*.conf", `Include "DIR/"a.conf`, `"Include" DIR/a.conf`, "Include DIR/nope/*.conf DIR/a.conf", "Include DIR/nope # DIR/a.conf", "Include ../..DIR/a.conf", `Include DIR/\a.conf`, "Include DIR/matching.conf\nTrustedUserCAKeys none",
	} {
		line = strings.ReplaceAll(line, "DIR", s.Dir)
		s.Write("bare", rest+line+"\n")
		out, err := exec.CommandContext(t.Context(), "/usr/sbin/sshd", "-T", "-f", s.Path("bare")).Output()
		if err != nil {
			t.Fatalf("%q: sshd does not take it: %v", line, err)
		}
		want := !strings.Contains(string(out), "\ntrustedusercakeys none\n")
		if want {
			found++
		}
		s.Write("sshd_config", string(own)+line+"\n")
		if conflict, err := s.Config.Apply(t.Context(), ca.spec(s, nil)); err != nil || (conflict != "") != want {
			t.Errorf("%q: conflict %q (%v), want one: %v", line, conflict, err, want)
		}
	}
	if found < 20 {
		t.Errorf("sshd reads %d of the lines as a CA", found)
	}
}

// A configuration that includes itself is refused by sshd, and ends no agent.
func TestIncludesItself(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t, "Include sshd_config")
	own, err := os.ReadFile(s.Config.File)
	if err != nil {
		t.Fatal(err)
	}
	s.Write("sshd_config", strings.ReplaceAll(string(own), "Include sshd_config", "Include "+s.Config.File))
	if conflict, err := s.Config.Apply(t.Context(), authority{t, newSigner(t)}.spec(s, nil)); err == nil || !strings.Contains(err.Error(), "sshd refuses") {
		t.Errorf("conflict %q, error %v", conflict, err)
	}
}

// The drop-in is tried before it is put in place: where sshd would refuse it, no
// sshd that starts in that moment finds it.
func TestTriedFirst(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t, "NoSuchKeyword yes")
	s.Config.Program = s.Path("sshd")
	s.Write("sshd", "#!/bin/sh\necho \"$@\" >> "+s.Path("runs")+"\nls "+filepath.Dir(s.Config.DropIn)+" >> "+s.Path("runs")+"\nexec /usr/sbin/sshd \"$@\"\n")
	if err := os.Chmod(s.Config.Program, 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	if conflict, err := s.Config.Apply(t.Context(), authority{t, newSigner(t)}.spec(s, nil)); err == nil || !strings.Contains(err.Error(), "with the drop-in") {
		t.Errorf("conflict %q, error %v", conflict, err)
	}
	if runs, err := os.ReadFile(s.Path("runs")); err != nil || string(runs) != "-t -f "+s.Config.Dir+"/sshd_config.try\n" {
		t.Errorf("sshd was run with (%v):\n%s", err, runs)
	}
}

// A change that the running sshd could not be told of is undone: the drop-in of an
// older agent and the files that it named are back, and sshd is told of that.
func TestTakenBackToOlder(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t)
	s.Start()
	ca, user := authority{t, newSigner(t)}, newSigner(t)
	certificate := ca.certify(user.PublicKey(), s.Account+"@"+nodeID, 2000, nil)
	apply(t, s, ca.spec(s, nil))
	s.Eventually("the certificate logs in", func() bool { _, err := s.Login(user, certificate); return err == nil })
	older, err := os.ReadFile(s.Config.DropIn)
	if err != nil {
		t.Fatal(err)
	}
	older = append([]byte("# of an older agent\n"), older...)
	if err := os.WriteFile(s.Config.DropIn, older, 0o644); err != nil { //nolint:gosec // as an agent writes it
		t.Fatal(err)
	}
	before, err := os.Readlink(s.Config.Dir + "/current")
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	s.Config.Reload = func(context.Context) error {
		if told++; told == 1 {
			return errors.New("no reload today")
		}
		return nil
	}
	if _, err := s.Config.Apply(t.Context(), ca.spec(s, func(spec *fleet.SSHSpec) { spec.RevokedSerials = []string{"2000"} })); err == nil {
		t.Error("a reload that failed is no error")
	}
	if now, err := os.ReadFile(s.Config.DropIn); err != nil || string(now) != string(older) {
		t.Errorf("the drop-in is now (%v)\n%s", err, now)
	}
	if now, err := os.Readlink(s.Config.Dir + "/current"); err != nil || now != before {
		t.Errorf("in force is %s (%v), want %s", now, err, before)
	}
	if told != 2 {
		t.Errorf("sshd was told %d times, want of the change and of what was put back", told)
	}
}

// In a block of Match, none takes away what the drop-in says for all.
func TestConflictNoneInMatch(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t)
	ca := authority{t, newSigner(t)}
	own, err := os.ReadFile(s.Config.File)
	if err != nil {
		t.Fatal(err)
	}
	s.Write("none.conf", "RevokedKeys none\n")
	for _, lines := range []string{"Match User root\n  RevokedKeys none", "match all\ntrustedusercakeys NONE", "Match User root\nInclude " + s.Path("none.conf")} {
		s.Write("sshd_config", string(own)+lines+"\n")
		if conflict, err := s.Config.Apply(t.Context(), ca.spec(s, nil)); err != nil || !strings.Contains(strings.ToLower(conflict), " none") {
			t.Errorf("%q: conflict %q (%v)", lines, conflict, err)
		}
	}
	// Reached by another path, our own drop-in is still ours.
	if err := os.Symlink(filepath.Dir(s.Config.DropIn), s.Path("elsewhere")); err != nil {
		t.Fatal(err)
	}
	s.Write("sshd_config", strings.ReplaceAll(string(own), filepath.Dir(s.Config.DropIn), s.Path("elsewhere")))
	for range 2 {
		apply(t, s, ca.spec(s, nil))
	}
}

// A drop-in that sshd would not read is told and not left there.
func TestNotInForce(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t)
	ca := authority{t, newSigner(t)}
	own, err := os.ReadFile(s.Config.File)
	if err != nil {
		t.Fatal(err)
	}
	include, rest, _ := strings.Cut(string(own), "\n")
	for name, config := range map[string]string{"not included": rest, "included for some": rest + "Match User nobody\n" + include + "\n",
		"after a none of the host's": "RevokedKeys none\n" + string(own), "of a folder that is not there": rest} {
		if strings.HasPrefix(name, "of a folder") {
			if err := os.Remove(filepath.Dir(s.Config.DropIn)); err != nil {
				t.Fatal(err)
			}
		}
		s.Write("sshd_config", config)
		conflict, err := s.Config.Apply(t.Context(), ca.spec(s, nil))
		if err == nil || !strings.Contains(err.Error(), "does "+s.Config.File+" include "+filepath.Dir(s.Config.DropIn)) {
			t.Errorf("%s: conflict %q, error %v", name, conflict, err)
		}
		if _, err := os.Lstat(s.Config.DropIn); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the drop-in was left (%v)", name, err)
		}
		if err := os.MkdirAll(filepath.Dir(s.Config.DropIn), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// Where the folder is included and not there yet, it is made.
	s.Write("sshd_config", string(own))
	if err := os.Remove(filepath.Dir(s.Config.DropIn)); err != nil {
		t.Fatal(err)
	}
	apply(t, s, ca.spec(s, nil))
}

// What somebody removed or changed of our files is put right by the same NodeSpec,
// and a second run finds nothing to do.
func TestRepaired(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t)
	s.Start()
	ca, user := authority{t, newSigner(t)}, newSigner(t)
	s.Write("authorized_keys", line(user.PublicKey())+"\n")
	good, revoked := ca.certify(user.PublicKey(), s.Account+"@"+nodeID, 2000, nil), ca.certify(user.PublicKey(), s.Account+"@"+nodeID, 3000, nil)
	spec := ca.spec(s, func(spec *fleet.SSHSpec) { spec.RevokedSerials = []string{"3000"} })
	apply(t, s, spec)
	s.Eventually("the certificate logs in", func() bool { _, err := s.Login(user, good); return err == nil })
	current := s.Config.Dir + "/current"
	state := func() string {
		var b strings.Builder
		for _, path := range []string{s.Config.DropIn, s.Config.Dir, current, current + "/", current + "/ca.pub", current + "/revoked.krl", current + "/principals/" + s.Account} {
			info, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(&b, path, info.Mode(), info.Size(), info.Sys().(*syscall.Stat_t).Ino)
		}
		return b.String()
	}
	before, reloads := state(), s.Reloads()
	apply(t, s, spec)
	if after := state(); after != before || s.Reloads() != reloads {
		t.Errorf("a second run changed\n%sto\n%s%d reloads, then %d", before, after, reloads, s.Reloads())
	}
	text := func() string {
		krl, err := exec.CommandContext(t.Context(), "ssh-keygen", "-Q", "-l", "-f", current+"/revoked.krl").Output()
		if err != nil {
			t.Error(err)
		}
		_, refused, _ := strings.Cut(string(krl), "Wildcard CA")
		for _, pattern := range []string{s.Config.DropIn, current + "/ca.pub", current + "/principals/*"} {
			paths, err := filepath.Glob(pattern)
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range paths {
				b, err := os.ReadFile(path)
				refused += fmt.Sprintf("%s: %s (%v)\n", path, b, err)
			}
		}
		return refused
	}
	whole := text()
	write := func(name, text string) func() error {
		return func() error { return os.WriteFile(current+name, []byte(text), 0o644) } //nolint:gosec // as somebody would
	}
	for name, damage := range map[string]func() error{
		"no revocation list":         func() error { return os.Remove(current + "/revoked.krl") },
		"an empty revocation list":   write("/revoked.krl", ""),
		"another revocation list":    func() error { return exec.Command("ssh-keygen", "-k", "-f", current+"/revoked.krl").Run() }, //nolint:noctx // at once
		"one that none can read":     func() error { return os.Chmod(current+"/revoked.krl", 0) },
		"no CA":                      write("/ca.pub", "\n"),
		"more principals":            write("/principals/"+s.Account, s.Account+"\n"),
		"another account's file":     write("/principals/nobody", "x\n"),
		"principals open to others":  func() error { return os.Chmod(current+"/principals", 0o777) }, //nolint:gosec // as somebody would
		"principals closed to users": func() error { return os.Chmod(current+"/principals", 0o700) },
		"no link":                    func() error { return os.Remove(current) },
		"no files":                   func() error { return os.RemoveAll(s.Config.Dir) },
		"no drop-in":                 func() error { return os.Remove(s.Config.DropIn) },
		"another drop-in":            func() error { return os.WriteFile(s.Config.DropIn, []byte("# none\n"), 0o644) }, //nolint:gosec // as somebody would
	} {
		if err := damage(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		apply(t, s, spec)
		modes(t, s)
		if now := text(); now != whole {
			t.Errorf("%s: put right as\n%s, was\n%s", name, now, whole)
		}
	}
	s.Eventually("the certificate and the host's own key log in", func() bool {
		_, err := s.Login(user, good)
		_, own := s.Login(user, "")
		return err == nil && own == nil
	})
	if _, err := s.Login(user, revoked); !sshdtest.Refused(err) {
		t.Errorf("the revoked certificate: %v", err)
	}
}
