package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/bettercompute/compute/fleet"
)

// A simulated machine goes through its whole life by computectl. The worker is
// killed in the middle of the deploy, and no power action happens twice; a
// failed enroll goes on by a signal of the temporal CLI; a workflow terminated
// by hand leaves a node that says so and goes on.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	u := startUser(t)
	u.ownSite("life") // it is paused for a while
	u.enrollByMending("m00002", "life-1")
	u.run("computectl", "metal", "inspect", "life-1", "--watch", "--in-use=false")
	u.run("computectl", "metal", "commission", "life-1", "--watch")
	u.state("life-1", fleet.Ready)

	before := u.resets("m00002")
	u.deployAcrossKill("life-1")
	u.state("life-1", fleet.Deployed)
	after := u.resets("m00002")
	// Our image is booted once and the disk once, however the worker ended.
	if on := after["On"] - before["On"] + after["ForceRestart"] - before["ForceRestart"] + after["PowerCycle"] - before["PowerCycle"]; on != 2 {
		t.Errorf("the machine was switched on %d times by the deploy, want 2 (before %v, after %v)", on, before, after)
	}

	key := filepath.Join(t.TempDir(), "key")
	if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v\n%s", err, out)
	}
	pub, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	u.run("computectl", "metal", "rescue", "life-1", "--watch", "--ssh-keys", strings.TrimSpace(string(pub)))
	u.state("life-1", fleet.Rescue)
	u.run("computectl", "metal", "unrescue", "life-1", "--watch")
	u.state("life-1", fleet.Deployed)
	u.run("computectl", "metal", "release", "life-1", "--watch")
	if n := u.node("life-1"); n.ProvisionState != fleet.Ready || n.EraseOwed {
		t.Errorf("after the release: %s, erase owed %v", n.ProvisionState, n.EraseOwed)
	}
	u.terminatedByHand("life-1")
	u.run("computectl", "metal", "retire", "life-1", "--watch")
	u.state("life-1", fleet.Retired)
	if list := u.run("temporal", "workflow", "list", "--query", "NodeId = '"+u.node("life-1").ID+"'"); !strings.Contains(list, "Deploy") {
		t.Errorf("Temporal does not find the node's operations by its id:\n%s", list)
	}
}

// enrollByMending enrolls a machine with a wrong password, which logs in once
// and parks, mends the password and sends the retry by the temporal CLI.
func (u *user) enrollByMending(id, name string) {
	u.t.Helper()
	var m machine
	u.simulated("/sim/machines/"+id, &m)
	dir := u.t.TempDir()
	bad, good := filepath.Join(dir, "bad"), filepath.Join(dir, "good")
	for path, secret := range map[string]string{bad: "wrong", good: m.Password} {
		if err := os.WriteFile(path, []byte(secret), 0o600); err != nil {
			u.t.Fatal(err)
		}
	}
	out, err := u.command("computectl", "metal", "enroll", "--name", name, "--watch", "--bmc-address", m.Address, "--bmc-username", m.Username,
		"--bmc-password-file", bad, "--bmc-tls-mode", "pin").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "setCredentials") {
		u.t.Fatalf("an enroll with a wrong password: %v, and what to do is not said:\n%s", err, out)
	}
	var counts struct{ LoginsFailed int }
	u.simulated("/sim/machines/"+id+"/counts", &counts)
	if counts.LoginsFailed != 1 {
		u.t.Errorf("%d failed logins with a wrong password, want 1", counts.LoginsFailed)
	}
	u.run("computectl", "metal", "set-credentials", name, "--watch", "--username", m.Username, "--password-file", good)
	op := u.node(name).Operations.Provision
	u.run("temporal", "workflow", "signal", "--workflow-id", fleet.WorkflowID(op), "--name", "retry")
	for u.node(name).ProvisionState == fleet.Failed {
		u.run("computectl", "operations", "wait", op, "--timeout-seconds", "1")
	}
	u.run("temporal", "workflow", "result", "--workflow-id", fleet.WorkflowID(op))
	u.state(name, fleet.Enrolling)
}

// deployAcrossKill deploys and kills the worker while the machine boots.
func (u *user) deployAcrossKill(name string) {
	u.t.Helper()
	var sum string
	u.simulated("/images/small.raw.sha256", &sum)
	deploy := u.command("computectl", "metal", "deploy", name, "--watch", "--hostname", name, "--image-url", u.env["BMCSIM_URL"]+"/images/small.raw",
		"--image-format", "raw", "--image-checksum", "sha256:"+strings.Fields(sum)[0])
	out, err := deploy.StdoutPipe()
	if err != nil {
		u.t.Fatal(err)
	}
	deploy.Stderr = deploy.Stdout
	if err := deploy.Start(); err != nil {
		u.t.Fatal(err)
	}
	var said strings.Builder
	buf := make([]byte, 4096)
	for killed := false; ; {
		n, err := out.Read(buf)
		said.Write(buf[:n])
		if !killed && strings.Contains(said.String(), "running  await-call-in") {
			u.killWorker()
			killed = true
		}
		if err != nil {
			if !killed {
				u.t.Errorf("the deploy ended before the worker could be killed")
			}
			break
		}
	}
	if err := deploy.Wait(); err != nil {
		u.t.Fatalf("deploy: %v\n%s", err, said.String())
	}
}

func (u *user) killWorker() {
	u.t.Helper()
	for pid, args := range u.stack.processes(u.t) {
		if strings.Contains(args, "compute worker") {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				u.t.Fatal(err)
			}
		}
	}
}

// terminatedByHand terminates the workflow of an operation in Temporal while
// the paused site makes it wait: the sweep ends the operation with that as its
// cause, and the node goes on.
func (u *user) terminatedByHand(name string) {
	u.t.Helper()
	u.run("computectl", "sites", "update", u.env["COMPUTE_SITE"], "--paused")
	u.run("computectl", "metal", "commission", name)
	op := u.node(name).Operations.Provision
	for !strings.Contains(u.run("computectl", "operations", "get", op), "state: waiting") {
		u.run("computectl", "operations", "wait", op, "--timeout-seconds", "1")
	}
	u.run("temporal", "workflow", "terminate", "--workflow-id", fleet.WorkflowID(op), "--reason", "by hand")
	for u.node(name).ProvisionState == fleet.Commissioning {
		u.run("computectl", "operations", "wait", op, "--timeout-seconds", "1")
	}
	n := u.node(name)
	if n.ProvisionState != fleet.Failed || n.Failed.From != fleet.Commissioning || !strings.Contains(n.Failed.Cause, "terminated") {
		u.t.Errorf("after the termination: %s, %+v", n.ProvisionState, n.Failed)
	}
	u.run("computectl", "sites", "update", u.env["COMPUTE_SITE"], "--paused=false")
	u.run("computectl", "metal", "commission", name, "--watch")
	u.state(name, fleet.Ready)
}
