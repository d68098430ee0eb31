package identity_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bettercompute/compute/identity"
)

// A CA is made once; its key file is its owner's alone; a key that is another's
// is refused.
func TestCreateAndLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem")
	first, err := identity.Create(cert, key, "test CA", nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := identity.Create(cert, key, "test CA", nil)
	if err != nil {
		t.Fatal(err)
	}
	if first.Fingerprint() != again.Fingerprint() {
		t.Error("creating again made another CA")
	}
	info, err := os.Stat(key)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("key file mode %v, want 0600", info.Mode())
	}
	other := filepath.Join(dir, "other.pem")
	if _, err := identity.Create(other, filepath.Join(dir, "other-key.pem"), "other", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := identity.Load(other, key, nil); err == nil {
		t.Error("a certificate with another's key is loaded")
	}
	if _, err := identity.Load(key, cert, nil); err == nil {
		t.Error("swapped files are loaded")
	}
}

// A fingerprint is taken as it is printed, and not in part.
func TestCheckFingerprint(t *testing.T) {
	t.Parallel()
	ca, err := identity.NewCA("test CA")
	if err != nil {
		t.Fatal(err)
	}
	good := ca.Fingerprint()
	if err := identity.CheckFingerprint(good); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "sha256:00", good[:len(good)-1], good + "0", strings.ToUpper(good), strings.TrimPrefix(good, "sha256:"), good + "\n"} {
		if err := identity.CheckFingerprint(bad); err == nil {
			t.Errorf("%q is taken for a fingerprint", bad)
		}
	}
}
