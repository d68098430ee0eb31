//go:build !cgo

package pkcs11

import (
	"strings"
	"testing"
)

// Without cgo a key's URI is refused with what to do, and never taken for a key.
func TestWithout(t *testing.T) {
	k, err := Open("pkcs11:token=ca;object=k?module-path=/m.so", nil)
	if k != nil || err == nil || !strings.Contains(err.Error(), "make build PKCS11=1") {
		t.Errorf("Open: %v, %v", k, err)
	}
	if _, err := Open("pkcs11:token=ca", nil); err == nil || strings.Contains(err.Error(), "cgo") {
		t.Errorf("a wrong URI: %v", err)
	}
}
