package seal_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/bettercompute/compute/store/seal"
)

// A secret opens with its own keyset and for what it belongs to, and for
// nothing else; what is stored does not show it.
func TestSeal(t *testing.T) {
	t.Parallel()
	k, other := newKeyset(t), newKeyset(t)
	sealed, err := k.Seal([]byte("hunter2"), "bmc:node_a:password")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sealed, []byte("hunter2")) {
		t.Error("the sealed form shows the secret")
	}
	if got, err := k.Open(sealed, "bmc:node_a:password"); err != nil || string(got) != "hunter2" {
		t.Errorf("opened %q, %v", got, err)
	}
	if _, err := k.Open(sealed, "bmc:node_b:password"); err == nil {
		t.Error("it opened for another node")
	}
	if _, err := other.Open(sealed, "bmc:node_a:password"); err == nil {
		t.Error("it opened with another keyset")
	}
}

func newKeyset(t *testing.T) *seal.Keyset {
	t.Helper()
	k, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// After a rotation new secrets are sealed by the new key, old ones go on
// opening, and a process that reads the same file takes the new key up by
// itself.
func TestRotate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keyset.json")
	k, err := seal.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	old, err := k.Seal([]byte("old"), "x")
	if err != nil {
		t.Fatal(err)
	}
	running, err := seal.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := running.Rotate()
	if err != nil {
		t.Fatal(err)
	}
	if err := fresh.Save(path); err != nil {
		t.Fatal(err)
	}
	// The file's time may be coarse.
	later := time.Now().Add(time.Minute)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
	sealed, err := fresh.Seal([]byte("new"), "x")
	if err != nil {
		t.Fatal(err)
	}
	if !fresh.SealedByPrimary(sealed) || fresh.SealedByPrimary(old) {
		t.Error("the new key is not the one that seals")
	}
	for want, s := range map[string][]byte{"old": old, "new": sealed} {
		if got, err := running.Open(s, "x"); err != nil || string(got) != want {
			t.Errorf("the running process opened %q, %v; want %q", got, err, want)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the keyset's file is %v (%v), want 0600", info.Mode().Perm(), err)
	}
}
