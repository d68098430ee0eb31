// Package tpm proves that the machine holds its TPM.
package tpm

import (
	"errors"
	"fmt"
	"os"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
	"github.com/google/go-tpm/tpm2/transport/linuxtpm"
	"github.com/google/go-tpm/tpm2/transport/linuxudstpm"

	"github.com/bettercompute/compute/identity"
)

// Device is the TPM behind the kernel's resource manager, which programs share.
const Device = "/dev/tpmrm0"

// TPM is a TPM 2.0 at a path: a device, or the Unix socket of an emulator.
// Nothing is stored in it, and no key of it survives a Prove.
type TPM struct{ Path string }

// Choose reads what a person says of the TPM: auto is the kernel's where there
// is one, off is none, all else a path. nil is none.
func Choose(how string) *TPM {
	switch how {
	case "off":
		return nil
	case "auto":
		if _, err := os.Stat(Device); err != nil {
			return nil
		}
		return &TPM{Path: Device}
	default:
		return &TPM{Path: how}
	}
}

func (t *TPM) open() (transport.TPMCloser, error) {
	info, err := os.Stat(t.Path)
	if err != nil {
		return nil, err
	}
	if info.Mode()&os.ModeSocket != 0 {
		return linuxudstpm.Open(t.Path)
	}
	return linuxtpm.Open(t.Path)
}

// Prove asks for a challenge of the TPM's keys and returns the secret that only
// this TPM could read in it. A discrete TPM takes seconds.
func (t *TPM) Prove(challenge func(identity.TPMKeys) (identity.TPMCredential, error)) (secret []byte, err error) {
	dev, err := t.open()
	if err != nil {
		return nil, fmt.Errorf("open the TPM %s: %w", t.Path, err)
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	ek, err := primary(dev, tpm2.TPMRHEndorsement, identity.EKTemplate())
	if err != nil {
		return nil, fmt.Errorf("make the endorsement key of the TPM %s: %w", t.Path, err)
	}
	defer func() { err = errors.Join(err, flush(dev, ek)) }()
	ak, err := primary(dev, tpm2.TPMRHEndorsement, identity.AKTemplate())
	if err != nil {
		return nil, fmt.Errorf("make an attestation key in the TPM %s: %w", t.Path, err)
	}
	defer func() { err = errors.Join(err, flush(dev, ak)) }()
	c, err := challenge(identity.TPMKeys{EK: ek.OutPublic.Bytes(), AK: ak.OutPublic.Bytes()})
	if err != nil {
		return nil, err
	}
	out, err := tpm2.ActivateCredential{
		ActivateHandle: tpm2.AuthHandle{Handle: ak.ObjectHandle, Name: ak.Name, Auth: tpm2.PasswordAuth(nil)},
		KeyHandle:      tpm2.AuthHandle{Handle: ek.ObjectHandle, Name: ek.Name, Auth: tpm2.Policy(tpm2.TPMAlgSHA256, 16, byEndorsement)},
		CredentialBlob: tpm2.TPM2BIDObject{Buffer: c.Blob},
		Secret:         tpm2.TPM2BEncryptedSecret{Buffer: c.Secret},
	}.Execute(dev)
	if err != nil {
		return nil, fmt.Errorf("the TPM %s does not answer the challenge: %w", t.Path, err)
	}
	return out.CertInfo.Buffer, nil
}

func primary(dev transport.TPM, hierarchy tpm2.TPMHandle, template tpm2.TPMTPublic) (*tpm2.CreatePrimaryResponse, error) {
	return tpm2.CreatePrimary{PrimaryHandle: hierarchy, InPublic: tpm2.New2B(template)}.Execute(dev)
}

func flush(dev transport.TPM, key *tpm2.CreatePrimaryResponse) error {
	_, err := tpm2.FlushContext{FlushHandle: key.ObjectHandle}.Execute(dev)
	return err
}

// byEndorsement is the policy of the TCG's endorsement keys.
func byEndorsement(dev transport.TPM, session tpm2.TPMISHPolicy, nonce tpm2.TPM2BNonce) error {
	_, err := tpm2.PolicySecret{AuthHandle: tpm2.TPMRHEndorsement, PolicySession: session, NonceTPM: nonce}.Execute(dev)
	return err
}
