package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/bettercompute/compute/fleet"
)

// shellBlock is a block of a document that is to be typed into a shell.
var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// shellBlocks are those of a section of a document, from its heading to the
// next.
func shellBlocks(t *testing.T, file, heading string) []string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(raw), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("%s has no section %q", file, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var blocks []string
	for _, m := range shellBlock.FindAllStringSubmatch(section, -1) {
		blocks = append(blocks, m[1])
	}
	if len(blocks) == 0 {
		t.Fatalf("section %q of %s has nothing for a shell", heading, file)
	}
	return blocks
}

// The tour of the README works as it is written, every command of it.
func TestTour(t *testing.T) {
	t.Parallel()
	u := startUser(t)
	// A clone has its state in .dev.
	clone := t.TempDir()
	if err := os.Symlink(u.stack.state, filepath.Join(clone, ".dev")); err != nil {
		t.Fatal(err)
	}
	for _, block := range shellBlocks(t, "../../README.md", "## A five-minute tour") {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", block)
		cmd.Dir = clone
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	u.state("gpu-1", fleet.Retired)
}
