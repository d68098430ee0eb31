// Package tpmtest runs TPM emulators for tests.
package tpmtest

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Start runs an swtpm of its own, with keys of its own, and returns its socket.
func Start(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tpm") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a leftover harms nobody
	path := filepath.Join(dir, "tpm")
	cmd := exec.Command("swtpm", "socket", "--tpm2", "--server", "type=unixio,path="+path,
		"--flags", "not-need-init,startup-clear", "--tpmstate", "dir="+dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("start swtpm (.ci/packages installs it): %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // killed
	})
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		// A client that leaves at once is served as any other before the next.
		c, err := net.Dial("unix", path)
		if err == nil {
			c.Close()
			return path
		}
		if time.Now().After(deadline) {
			t.Fatalf("swtpm does not listen: %v", err)
		}
	}
}
