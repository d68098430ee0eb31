package tpm_test

import (
	"bytes"
	"testing"

	"github.com/bettercompute/compute/agent/tpm"
	"github.com/bettercompute/compute/agent/tpm/tpmtest"
	"github.com/bettercompute/compute/identity"
)

// A TPM answers what was made for it each time, and is known by one name; it
// holds none of the keys between.
func TestProve(t *testing.T) {
	t.Parallel()
	dev := &tpm.TPM{Path: tpmtest.Start(t)}
	names := map[string]bool{}
	for range 4 { // a TPM has room for three keys
		var want []byte
		got, err := dev.Prove(func(keys identity.TPMKeys) (c identity.TPMCredential, err error) {
			var ek string
			c, want, ek, err = identity.NewTPMCredential(keys)
			names[ek] = true
			return c, err
		})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Error("the TPM read another secret")
		}
	}
	if len(names) != 1 {
		t.Errorf("the TPM has %d names, want one", len(names))
	}
}

// What a person says of the TPM.
func TestChoose(t *testing.T) {
	t.Parallel()
	if got := tpm.Choose("off"); got != nil {
		t.Errorf("off: %v", got)
	}
	if got := tpm.Choose("/dev/tpm9"); got == nil || got.Path != "/dev/tpm9" {
		t.Errorf("a path: %v", got)
	}
	if _, err := tpm.Choose("/nowhere").Prove(nil); err == nil {
		t.Error("a TPM that is not there proves itself")
	}
}
