package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bettercompute/compute/fleet"
)

// The commands of docs/operating-nodes.md work as they are written, on a node
// that serves; the worker is killed while a drain waits.
func TestShift(t *testing.T) {
	t.Parallel()
	u := startUser(t)
	u.servingNode("shift", "shift-1")
	vars := filepath.Join(t.TempDir(), "vars")
	if err := os.WriteFile(vars, []byte("NODE=shift-1\nPOOL="+u.env["COMPUTE_POOL"]+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	killed := false
	for _, section := range []string{"## A shift", "## Letting a node go"} {
		for _, block := range shellBlocks(t, "../../docs/operating-nodes.md", section) {
			u.block(vars, block)
			if killed {
				continue
			}
			ops := u.node("shift-1").Operations
			if ops == nil || ops.Drain == "" {
				continue
			}
			u.eventually("the drain waits", func() bool {
				return strings.Contains(u.run("computectl", "operations", "get", ops.Drain), "state: waiting")
			})
			u.killWorker()
			killed = true
		}
	}
	if !killed {
		t.Error("no drain of the document waited")
	}
}

// block runs one block of a document with what the blocks before have set.
func (u *user) block(vars, block string) {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", "set -a; . "+vars+"\n"+block+"\nexport -p > "+vars)
	cmd.Env = u.command("computectl").Env
	cmd.Env = append(cmd.Env, "PATH="+filepath.Join(u.stack.state, "bin")+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		u.t.Fatalf("%v\n%s\n%s", err, block, out)
	}
}

// servingNode makes a site and a pool of the user's own with one deployed
// machine in session.
func (u *user) servingNode(site, name string) {
	u.t.Helper()
	u.ownSite(site, "--token-only-join", "--boot-install-agent")
	var m simMachine
	u.control("POST", "/sim/machines", `{"profile": "generic", "seed": 11}`, &m)
	password := filepath.Join(u.t.TempDir(), "password")
	if err := os.WriteFile(password, []byte(m.Password), 0o600); err != nil {
		u.t.Fatal(err)
	}
	u.run("computectl", "metal", "enroll", "--watch", "--name", name, "--advance", "ready", "--in-use=false",
		"--bmc-address", m.Address, "--bmc-username", m.Username, "--bmc-password-file", password, "--bmc-tls-mode", "pin")
	n := u.node(name)
	if n.Inventory == nil || len(n.Inventory.GPUs) == 0 {
		u.t.Fatalf("%s has no GPUs", name)
	}
	var pool fleet.PoolOut
	out := u.run("computectl", "pools", "create", "--site-id", u.env["COMPUTE_SITE"], "--name", site, "--gpu-model", n.Inventory.GPUs[0].Model, "-o", "json")
	if err := json.Unmarshal([]byte(out), &pool); err != nil {
		u.t.Fatal(err)
	}
	u.env["COMPUTE_POOL"] = pool.Pool.ID
	u.run("computectl", "pools", "add-node", n.ID, "--pool-id", pool.Pool.ID)
	var sum string
	u.simulated("/images/small.raw.sha256", &sum)
	u.run("computectl", "metal", "deploy", name, "--watch", "--expect", "session", "--image-url", u.env["BMCSIM_URL"]+"/images/small.raw",
		"--image-format", "raw", "--image-checksum", "sha256:"+strings.Fields(sum)[0])
	u.state(name, fleet.Deployed)
}
