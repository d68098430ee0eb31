package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/bettercompute/compute/fleet"
)

var codeBlock = regexp.MustCompile("(?s)```(sh|csv)\n(.*?)```")

// shell runs a block of a document's commands as its reader would, saying yes to
// what is asked.
func (u *user) shell(dir, script string) string {
	u.t.Helper()
	cmd := u.command("compute") // for the environment
	cmd.Path, cmd.Args = "/bin/bash", []string{"bash", "-euo", "pipefail", "-c", script}
	cmd.Env = append(cmd.Env, "PATH="+filepath.Join(u.stack.state, "bin")+":"+os.Getenv("PATH"))
	cmd.Dir, cmd.Stdin = dir, strings.NewReader("y\ny\n")
	out, err := cmd.CombinedOutput()
	if err != nil {
		u.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// The commands of docs/bmc.md do what it says of them, as they stand there, with
// the addresses of two simulated machines in place of its two.
func TestBMCDocument(t *testing.T) {
	t.Parallel()
	u := startUser(t)
	u.ownSite("documented")
	text, err := os.ReadFile("../../docs/bmc.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	doc := string(text)
	var machines []simMachine
	for i, address := range []string{"10.0.0.5", "10.0.0.6"} {
		var m simMachine
		u.control("POST", "/sim/machines", fmt.Sprintf(`{"profile": "dell", "seed": %d, "username": "root"}`, 720+i), &m)
		machines = append(machines, m)
		doc = strings.ReplaceAll(doc, address, m.Address)
		for _, name := range []string{"bmc-password", fmt.Sprintf("secrets/a1-n%d", i+1)} {
			if i > 0 && name == "bmc-password" {
				continue // it is the first machine's
			}
			if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(m.Password), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	var blocks []string
	for _, b := range codeBlock.FindAllStringSubmatch(doc, -1) {
		if b[1] == "sh" {
			blocks = append(blocks, b[2])
		} else if err := os.WriteFile(filepath.Join(dir, "machines.csv"), []byte(b[2]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if len(blocks) != 3 {
		t.Fatalf("%d blocks of commands: say here what each does", len(blocks))
	}
	if out := u.shell(dir, blocks[0]); !strings.Contains(out, "It can be enrolled.") {
		t.Errorf("check:\n%s", out)
	}
	if out := u.shell(dir, blocks[1]); !strings.Contains(out, "2 would-enroll") || !strings.Contains(out, "2 enrolled") {
		t.Errorf("enroll:\n%s", out)
	}
	u.control("PUT", "/sim/machines/"+machines[1].ID+"/faults", `{"faults": [], "machine": {"tls": {"rotate": true}}}`, nil)
	u.control("PUT", "/sim/machines/"+machines[0].ID+"/faults",
		`{"faults": [{"name": "another board", "match": {"method": "GET", "path": "**/Systems/*"}, "patch": {"SerialNumber": "REPLACED"}}]}`, nil)
	u.exits(3, "computectl", "metal", "power", "a1-n1", "--action", "on", "--watch")
	u.eventually("the other certificate", func() bool { return u.trusted("a1-n2") == fleet.ConditionFalse })
	if out := u.shell(dir, blocks[2]); strings.Count(out, "1 of 1 accepted") != 2 {
		t.Errorf("accept:\n%s", out)
	}
	if got := u.node("a1-n1").BMC.Identity.Serial; got != "REPLACED" {
		t.Errorf("the serial is %s", got)
	}
	shown := u.run("computectl", "metal", "get", "a1-n1")
	for _, part := range []string{"capabilities:", "resetTypes: On,", "virtualMedia: true"} {
		if !strings.Contains(shown, part) {
			t.Errorf("metal get does not show %q:\n%s", part, shown)
		}
	}
}
