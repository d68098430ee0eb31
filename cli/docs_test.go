package cli_test

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/bettercompute/compute/cli"
)

// shellBlock is a block of a document that is to be typed into a shell.
var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// Each command line of computectl in the documents names a command and flags
// that there are.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range append(files, "../README.md") {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range shellBlock.FindAllStringSubmatch(string(raw), -1) {
			for line := range strings.Lines(strings.ReplaceAll(block[1], "\\\n", " ")) {
				line, _, _ = strings.Cut(line, " #")
				words := strings.Fields(line)
				if len(words) < 2 || words[0] != "computectl" {
					continue
				}
				seen++
				documented(t, filepath.Base(file), words[1:])
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d command lines were found", seen)
	}
}

func documented(t *testing.T, file string, words []string) {
	t.Helper()
	cmd, _, err := cli.New(nil, io.Discard, io.Discard).Find(words)
	if err != nil || !cmd.Runnable() || cmd.HasSubCommands() {
		t.Errorf("%s: computectl %s is no command (%v)", file, strings.Join(words, " "), err)
		return
	}
	for _, word := range words {
		if word == "--" {
			break // what follows is another program's
		}
		name, isFlag := strings.CutPrefix(word, "--")
		name, _, _ = strings.Cut(name, "=")
		if isFlag && cmd.Flag(name) == nil {
			t.Errorf("%s: %s has no flag --%s", file, cmd.CommandPath(), name)
		}
	}
}
