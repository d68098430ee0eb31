package sshd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bettercompute/compute/agent/sshd/sshdtest"
	"github.com/bettercompute/compute/fleet"
)

// died runs a change whose agent ends when it is about to tell sshd.
func died(t *testing.T, s *sshdtest.Server, change func()) {
	t.Helper()
	reload := s.Config.Reload
	told := false
	s.Config.Reload = func(context.Context) error { told = true; runtime.Goexit(); return nil }
	done := make(chan struct{})
	go func() { defer close(done); change() }()
	<-done
	s.Config.Reload = reload
	if !told {
		t.Error("sshd was not told of a change")
	}
}

// An agent that ended before it told the running sshd leaves it to the next one:
// a drop-in that is there is not taken for one that is in force, and what the
// running sshd still names is not removed under it.
func TestEndedBeforeReload(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t)
	s.Start()
	ca, user := authority{t, newSigner(t)}, newSigner(t)
	s.Write("authorized_keys", line(user.PublicKey())+"\n")
	certificate := ca.certify(user.PublicKey(), s.Account+"@"+nodeID, 2000, nil)
	died(t, s, func() { _, _ = s.Config.Apply(context.Background(), ca.spec(s, nil)) })
	own, err := os.ReadFile(s.Config.File)
	if err != nil {
		t.Fatal(err)
	}
	s.Write("sshd_config", string(own)+"NoSuchKeyword yes\n") // sshd would end, if it were told now
	if conflict, err := s.Config.Apply(t.Context(), ca.spec(s, nil)); err != nil || !strings.Contains(conflict, "NoSuchKeyword") || s.Reloads() != 0 {
		t.Errorf("conflict %q (%v), %d reloads", conflict, err, s.Reloads())
	}
	s.Write("sshd_config", string(own))
	apply(t, s, ca.spec(s, nil))
	s.Eventually("the certificate logs in", func() bool { _, err := s.Login(user, certificate); return err == nil })
	reloads := s.Reloads()
	apply(t, s, ca.spec(s, nil))
	if s.Reloads() != reloads {
		t.Error("it is told again and again")
	}
	died(t, s, func() { _ = s.Config.Remove(context.Background()) })
	if _, err := s.Login(user, ""); err != nil {
		t.Errorf("the host's own key, while sshd has not been told: %v", err)
	}
	if err := s.Config.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Eventually("sshd was told", func() bool { return s.Reloads() > reloads })
	if _, err := s.Login(user, ""); err != nil {
		t.Errorf("the host's own key, after it: %v", err)
	}
	if _, err := os.Lstat(s.Config.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the files are still there: %v", err)
	}
}

// Killed at any moment, the agent leaves a host that lets its own keys in, whoever
// has sshd read its configuration then, and the next agent ends what it began.
func TestKilled(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t)
	s.Start()
	ca, user := authority{t, newSigner(t)}, newSigner(t)
	s.Write("authorized_keys", line(user.PublicKey())+"\n")
	certificate := ca.certify(user.PublicKey(), s.Account+"@"+nodeID, 2000, nil)
	hup := func() {
		reloads := s.Reloads()
		s.Eventually("sshd read its configuration", func() bool {
			// One that it gets while it starts anew it ignores.
			if out, err := exec.CommandContext(t.Context(), "kill", "-HUP", s.PID()).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			return s.Reloads() > reloads
		})
	}
	for i := range 8 {
		spec := ca.spec(s, func(spec *fleet.SSHSpec) { spec.RevokedSerials = []string{fmt.Sprint(3000 + i)} })
		if i%5 == 4 {
			spec.SSH = nil
		}
		cmd := agent(t, s, spec, 0o022)
		cmd.Stderr = nil
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(time.Duration(i)*15*time.Millisecond, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // killed, or done
		timer.Stop()
		hup()
		if _, err := s.Login(user, ""); err != nil {
			t.Fatalf("killed after %d ms: the host's own key: %v\n%s", i*15, err, s.Log())
		}
	}
	apply(t, s, ca.spec(s, nil))
	s.Eventually("the certificate logs in", func() bool { _, err := s.Login(user, certificate); return err == nil })
	entries, err := os.ReadDir(s.Config.Dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("left in the folder: %v (%v), want the link and what it points to", entries, err)
	}
}

// The files are what sshd needs also when the agent's umask keeps others out.
func TestUmask(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t)
	s.Start()
	ca, user := authority{t, newSigner(t)}, newSigner(t)
	if err := agent(t, s, ca.spec(s, nil), 0o077).Run(); err != nil {
		t.Fatal(err)
	}
	modes(t, s)
	s.Eventually("the certificate logs in", func() bool {
		_, err := s.Login(user, ca.certify(user.PublicKey(), s.Account+"@"+nodeID, 2000, nil))
		return err == nil
	})
}

// An account for which the control plane issues nothing takes no certificate, not
// even one that names it.
func TestAccountNotConfigured(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t)
	s.Start()
	ca, user := authority{t, newSigner(t)}, newSigner(t)
	apply(t, s, ca.spec(s, func(spec *fleet.SSHSpec) { spec.Principals = map[string][]string{"ops": {"ops@" + nodeID}} }))
	s.Write("authorized_keys", line(user.PublicKey())+"\n")
	s.Eventually("sshd was told", func() bool { return s.Reloads() > 0 })
	if _, err := s.Login(user, ""); err != nil {
		t.Errorf("the host's own key: %v", err)
	}
	other := newSigner(t)
	for _, principal := range []string{s.Account, s.Account + "@" + nodeID, "ops@" + nodeID} {
		if _, err := s.Login(other, ca.certify(other.PublicKey(), principal, 2000, nil)); !sshdtest.Refused(err) {
			t.Errorf("%s: %v", principal, err)
		}
	}
}

// A change is done once the running sshd has read it: the next change finds that
// sshd, and each is told.
func TestReloadIsDone(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t)
	s.Start()
	ca := authority{t, newSigner(t)}
	const times = 10
	for range times {
		apply(t, s, ca.spec(s, nil))
		if err := s.Config.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(s.Path("sshd.pid")); err != nil || strings.TrimSpace(string(b)) != s.PID() {
			t.Fatalf("the running sshd after a change: %q, %v; want %s", b, err, s.PID())
		}
	}
	if n := s.Reloads(); n != 2*times {
		t.Errorf("%d changes were told %d times", 2*times, n)
	}
}

// Who reads its configuration again is the sshd that runs, and nobody else.
func TestReload(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t)
	ca := authority{t, newSigner(t)}
	bystander := exec.CommandContext(t.Context(), "sleep", "600")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	gone := exec.CommandContext(t.Context(), "true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", fmt.Sprintln(gone.Process.Pid), fmt.Sprintln(bystander.Process.Pid)} {
		if text != "" {
			s.Write("sshd.pid", text)
		}
		apply(t, s, ca.spec(s, nil))
		if err := s.Config.Remove(t.Context()); err != nil {
			t.Errorf("the running sshd is %q: %v", text, err)
		}
	}
	if err := bystander.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := bystander.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("the bystander ended with %v, want our own signal", err)
	}
	own, err := os.ReadFile(s.Config.File)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ pid, from, to, says string }{
		"no process id":    {"x\n", "", "", "holds no process id"},
		"everybody":        {"-1\n", "", "", "holds no process id"},
		"no file of it":    {"", "PidFile " + s.Path("sshd.pid"), "PidFile none", "PidFile none"},
		"a broken setting": {"", "MaxStartups 100", "MaxStartups x", "MaxStartups"},
	} {
		s.Write("sshd.pid", c.pid)
		s.Write("sshd_config", string(own))
		if c.from != "" {
			s.Write("sshd_config", strings.Replace(string(own), c.from, c.to, 1))
		}
		if _, err := s.Config.Apply(t.Context(), ca.spec(s, nil)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
		if _, err := os.Lstat(s.Config.DropIn); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the drop-in was left (%v)", name, err)
		}
	}
}
