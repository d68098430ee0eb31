package localstack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A child that ends is started again, and what is said of it has the last line
// of its log. One that ends again and again at its start is hopeless; one that
// ran for a while is not.
func TestChildThatEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	said := make(chan string, 100)
	g := &Group{LogDir: dir, PIDFile: filepath.Join(dir, "pids"), Say: func(line string) { said <- line }}
	if err := g.Start(Child{Name: "simple", Path: "/bin/sh", Args: []string{"-c", "echo first; echo no such profile >&2; exit 7"}}); err != nil {
		t.Fatal(err)
	}
	for range hopeless {
		select {
		case line := <-said:
			if !strings.Contains(line, "simple ended (exit status 7: no such profile)") {
				t.Errorf("said %q", line)
			}
		case <-time.After(time.Minute):
			t.Fatal("it was not started again")
		}
	}
	if why := g.Hopeless("simple"); !strings.Contains(why, "no such profile") {
		t.Errorf("hopeless because of %q", why)
	}
	g.Stop(time.Second)
	log := filepath.Join(dir, "simple.log")
	g.ended("simple", time.Hour, nil, log)
	if why := g.Hopeless("simple"); why != "" {
		t.Errorf("hopeless after an hour's run: %s", why)
	}
	if err := os.WriteFile(log, []byte(strings.Repeat("x", 1000)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if why := g.ended("simple", 0, nil, log); len(why) > 500 {
		t.Errorf("a line of %d bytes is said", len(why))
	}
}
