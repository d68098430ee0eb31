package main

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// joiner is this machine as it joins the stack, by the programs that an operator
// of a real host uses.
type joiner struct {
	*user
	state, sshDir string
	agent         *exec.Cmd
}

func newJoiner(t *testing.T, u *user) *joiner {
	t.Helper()
	j := &joiner{user: u, state: filepath.Join(t.TempDir(), "nodeagent"), sshDir: t.TempDir()}
	// An sshd of its own, that nobody runs: this machine's is left alone.
	conf := "PidFile " + filepath.Join(j.sshDir, "none.pid") + "\nInclude " + filepath.Join(j.sshDir, "sshd_config.d", "*.conf") + "\n"
	if err := os.WriteFile(filepath.Join(j.sshDir, "sshd_config"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(j.sshDir, "sshd_config.d"), 0o700); err != nil {
		t.Fatal(err)
	}
	return j
}

// join joins with a token made for it.
func (j *joiner) join() {
	j.t.Helper()
	var token fleet.JoinTokenSecretOut
	out := j.user.run("computectl", "join-tokens", "create", "--site-id", j.env["COMPUTE_SITE"], "--max-uses", "1", "--ttl-seconds", "600", "-o", "json")
	if err := json.Unmarshal([]byte(out), &token); err != nil {
		j.t.Fatal(err)
	}
	file := filepath.Join(j.sshDir, "token")
	if err := os.WriteFile(file, []byte(token.Secret+"\n"), 0o600); err != nil {
		j.t.Fatal(err)
	}
	fingerprint := strings.TrimSpace(j.user.run("compute", "keys", "fingerprint", "--dir", filepath.Join(j.stack.state, "keys")))
	said := j.user.run("nodeagent", "join", "--gateway", j.env["GATEWAY_URL"], "--ca-fingerprint", fingerprint, "--token-file", file, "--state", j.state, "--within", "2m")
	if strings.Contains(said, token.Secret) {
		j.t.Errorf("the token is printed:\n%s", said)
	}
}

// serve runs nodeagent run until the test ends.
func (j *joiner) serve() {
	j.t.Helper()
	// Not of the test's context, which ends before the agent is told to.
	j.agent = exec.Command(filepath.Join(j.stack.state, "bin", "nodeagent"), "run", "--state", j.state, "--ssh-dir", j.sshDir)
	log, err := os.Create(filepath.Join(j.sshDir, "agent.log"))
	if err != nil {
		j.t.Fatal(err)
	}
	j.agent.Stderr = log
	if err := j.agent.Start(); err != nil {
		j.t.Fatal(err)
	}
	j.t.Cleanup(func() {
		_ = j.agent.Process.Signal(syscall.SIGTERM)
		if err := j.agent.Wait(); err != nil {
			j.t.Errorf("nodeagent run ended with %v", err)
		}
		log.Close()
		if said, err := os.ReadFile(log.Name()); err == nil && j.t.Failed() {
			j.t.Logf("nodeagent run:\n%s", said)
		}
	})
}

// status is what nodeagent status shows, nil when it has not joined.
func (j *joiner) status() *agentStatus {
	j.t.Helper()
	out, err := j.command("nodeagent", "status", "--json", "--state", j.state).Output()
	if err != nil {
		return nil
	}
	var s agentStatus
	if err := json.Unmarshal(out, &s); err != nil {
		j.t.Fatalf("%s: %v", out, err)
	}
	return &s
}

type agentStatus struct {
	NodeID     string
	Generation int64
	Running    bool
	Session    struct {
		InSession bool
		Epoch     int64
	}
}

func (j *joiner) until(what string, is func() bool) {
	j.t.Helper()
	for deadline := time.Now().Add(rigPatience); !is(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			j.t.Fatalf("%s: not after %s; status %+v", what, rigPatience, j.status())
		}
	}
}

func (j *joiner) inSession(generation, epoch int64) func() bool {
	return func() bool {
		s := j.status()
		return s != nil && s.Generation == generation && s.Running && s.Session.InSession && s.Session.Epoch >= epoch
	}
}

func (j *joiner) nodeNow(id string) fleet.Node {
	j.t.Helper()
	var out fleet.NodeOut
	if err := json.Unmarshal([]byte(j.user.run("computectl", "nodes", "get", id, "-o", "json")), &out); err != nil {
		j.t.Fatal(err)
	}
	return out.Node
}

// A machine that runs already joins, is adopted, keeps its session over a
// gateway that is killed, is put out by a revocation and comes back only by
// joining again, as the same node; after it left nothing is on it, and once its
// node is deleted it joins as a new one.
func TestAdoptThisHost(t *testing.T) {
	t.Parallel()
	u := startUser(t)
	u.ownSite("running-hosts", "--token-only-join")
	j := newJoiner(t, u)
	j.join()
	id := j.status().NodeID
	if n := j.nodeNow(id); n.ProvisionState != fleet.Adopting || !n.Guarded {
		t.Fatalf("joined: %+v", n)
	}
	j.serve()
	j.until("adopted", func() bool { return j.nodeNow(id).ProvisionState == fleet.Adopted })
	first := j.nodeNow(id)
	for _, kind := range []string{"Connected", "HardwareAccepted", "GpusAccepted", "DriverPresent", "DiskSpace", "ClockInSync", "KernelAccepted", "GatewayReachable"} {
		if got := conditionOf(first, kind); got != fleet.ConditionTrue {
			t.Errorf("%s is %q", kind, got)
		}
	}
	if said := j.user.run("computectl", "nodes", "adopt", id, "--watch"); !strings.Contains(said, "accept-host") || !strings.Contains(said, "adopt succeeded") {
		t.Errorf("nodes adopt --watch:\n%s", said)
	}

	// The gateway is killed: the agent comes back by itself, and nobody is told of
	// a node that was lost.
	epoch := j.status().Session.Epoch
	for pid, args := range j.stack.processes(t) {
		if strings.Contains(args, "compute gateway") {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	j.until("back at the gateway", j.inSession(first.IdentityGeneration, epoch+1))
	var told struct {
		Items []struct{ Data struct{ Type, To string } }
	}
	if err := json.Unmarshal([]byte(j.user.run("computectl", "nodes", "events", id, "--type", "node.condition", "-o", "json")), &told); err != nil {
		t.Fatal(err)
	}
	for _, e := range told.Items {
		if e.Data.Type == "Connected" && e.Data.To != string(fleet.ConditionTrue) {
			t.Errorf("the gateway's restart was told as a lost node: %+v", told.Items)
		}
	}

	j.user.run("computectl", "nodes", "revoke-identity", id)
	j.until("put out", func() bool { s := j.status(); return s != nil && s.Running && !s.Session.InSession })
	if n := j.nodeNow(id); conditionOf(n, "Connected") != "" || n.Session == nil || n.Session.DisconnectedAt == nil {
		t.Errorf("revoked: %+v", n)
	}
	j.join()
	again := j.status()
	if again.NodeID != id || again.Generation <= first.IdentityGeneration {
		t.Errorf("joined again as %+v, before %s generation %d", again, id, first.IdentityGeneration)
	}
	j.until("in session again", j.inSession(again.Generation, 1))

	j.user.run("nodeagent", "leave", "--state", j.state, "--ssh-dir", j.sshDir)
	for _, name := range []string{"key.pem", "cert.pem", "identity.json", "spec.json", "leaving.json"} {
		if _, err := os.Stat(filepath.Join(j.state, name)); err == nil {
			t.Errorf("%s is still on the host", name)
		}
	}
	if left, err := filepath.Glob(filepath.Join(j.sshDir, "sshd_config.d", "*")); err != nil || len(left) > 0 {
		t.Errorf("sshd's drop-in is still on the host: %v %v", left, err)
	}
	if n := j.nodeNow(id); conditionOf(n, "Connected") != fleet.ConditionFalse || n.ProvisionState != fleet.Adopted {
		t.Errorf("after leaving: %+v", n)
	}
	j.user.run("computectl", "nodes", "cordon", id)
	j.user.run("computectl", "nodes", "delete", id)
	j.join()
	if s := j.status(); s.NodeID == id {
		t.Error("after its node was deleted the machine became it again")
	}
	j.until("in session as a new node", j.inSession(1, 1))
	id = j.status().NodeID
	j.user.run("nodeagent", "leave", "--state", j.state, "--ssh-dir", j.sshDir)
	j.user.run("computectl", "nodes", "cordon", id)
	j.user.run("computectl", "nodes", "delete", id)
	j.logsIn()
}

// logsIn runs the last commands of docs/break-glass-access.md as they stand there:
// this machine joins, is logged in to with a certificate, and leaves.
func (j *joiner) logsIn() {
	j.t.Helper()
	text, err := os.ReadFile("../../docs/break-glass-access.md")
	if err != nil {
		j.t.Fatal(err)
	}
	blocks := codeBlock.FindAllStringSubmatch(string(text), -1)
	// sshd's strict modes refuse files below a folder that everybody can write to.
	home, err := os.UserHomeDir()
	if err != nil {
		j.t.Fatal(err)
	}
	dir, err := os.MkdirTemp(home, ".break-glass-of-a-test-")
	if err != nil {
		j.t.Fatal(err)
	}
	port := listenRig(j.t)
	_, number, err := net.SplitHostPort(port.Addr().String())
	if err == nil {
		err = port.Close()
	}
	if err != nil {
		j.t.Fatal(err)
	}
	j.t.Cleanup(func() {
		if pid, err := os.ReadFile(filepath.Join(dir, "sshd.pid")); err == nil {
			_ = exec.Command("kill", strings.TrimSpace(string(pid))).Run() //nolint:noctx // at once; it may have ended
		}
		if err := os.RemoveAll(dir); err != nil {
			j.t.Error(err)
		}
	})
	script := strings.NewReplacer(". .dev/env\n", "", ".dev/", j.stack.state+"/", "$HOME/break-glass", dir, "2222", number,
		"accept-new", "no -o UserKnownHostsFile=/dev/null", "rm -r $D", "ls -A $D/sshd_config.d $D/agent; rm -r $D").Replace(blocks[len(blocks)-1][2])
	out := j.shell(j.t.TempDir(), "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n"+script)
	for _, want := range []string{"good until", "\nroot\n"} {
		if !strings.Contains(out, want) {
			j.t.Errorf("the document's commands say nothing of %q:\n%s", want, out)
		}
	}
	if _, left, ok := strings.Cut(out, "sshd_config.d:\n"); !ok || strings.Contains(left, "better-compute.conf") || strings.Contains(left, "identity.json") {
		j.t.Errorf("left on the host:\n%s", out)
	}
}

func conditionOf(n fleet.Node, kind string) fleet.ConditionStatus {
	for _, c := range n.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return ""
}
