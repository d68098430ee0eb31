package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// build makes nodeagent as make build does.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "make", "-C", "../..", "build", "BIN="+dir, "CMDS=nodeagent").CombinedOutput()
	if err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
	}
	return filepath.Join(dir, "nodeagent")
}

// The program needs nothing of the host but the kernel, and systemd takes its
// unit as it is printed.
func TestProgramAndUnit(t *testing.T) {
	t.Parallel()
	program := build(t)
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // it was read
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the program has a segment %s: it is not static", p.Type)
		}
	}
	if libraries, err := f.ImportedLibraries(); err != nil || len(libraries) > 0 {
		t.Errorf("the program needs %v, %v", libraries, err)
	}

	printed, err := exec.CommandContext(t.Context(), program, "unit").Output()
	if err != nil {
		t.Fatal(err)
	}
	text := string(printed)
	const installed = "/usr/local/bin/nodeagent"
	for _, line := range []string{
		"ExecStart=" + installed + " run",
		// It is there again after any end, and never given up.
		"Restart=always", "StartLimitIntervalSec=0",
		// Its folder is the one that the program uses.
		"StateDirectory=" + filepath.Base(stateDir), "StateDirectoryMode=0700",
		"WantedBy=multi-user.target",
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("the unit does not say %s", line)
		}
	}
	if want := "/var/lib/" + filepath.Base(stateDir); stateDir != want {
		t.Errorf("the state lies in %s, systemd makes %s", stateDir, want)
	}
	unit := filepath.Join(t.TempDir(), "nodeagent.service")
	if err := os.WriteFile(unit, []byte(strings.ReplaceAll(text, installed, program)), 0o600); err != nil {
		t.Fatal(err)
	}
	// Without the manual pages and the units of others, which a container may not
	// have; what it does not understand it only warns of.
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit).CombinedOutput()
	if err != nil || strings.Contains(string(out), filepath.Base(unit)) {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
