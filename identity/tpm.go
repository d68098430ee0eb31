package identity

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/google/go-tpm/tpm2"
)

// EKTemplate is the TCG's template of an ECC P-256 endorsement key, which the PC
// Client profile requires of every TPM 2.0. The key of a TPM is the same each
// time that it is made.
func EKTemplate() tpm2.TPMTPublic { return tpm2.ECCEKTemplate }

// AKTemplate is the template of the attestation key that a challenge is bound
// to: one that cannot leave its TPM and signs only what the TPM made.
func AKTemplate() tpm2.TPMTPublic {
	t := tpm2.ECCSRKTemplate
	t.ObjectAttributes.Decrypt, t.ObjectAttributes.SignEncrypt = false, true
	t.Parameters = tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{
		CurveID: tpm2.TPMECCNistP256,
		Scheme: tpm2.TPMTECCScheme{Scheme: tpm2.TPMAlgECDSA,
			Details: tpm2.NewTPMUAsymScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSigSchemeECDSA{HashAlg: tpm2.TPMAlgSHA256})},
	})
	return t
}

// TPMKeys are the public areas (TPMT_PUBLIC) of a TPM's endorsement and
// attestation key.
type TPMKeys struct {
	EK []byte `json:"ek"`
	AK []byte `json:"ak"`
}

// TPMCredential is a secret for one TPM: TPM2_ActivateCredential reads it where
// both keys are in the same TPM, and nowhere else.
type TPMCredential struct {
	Blob   []byte `json:"blob"`
	Secret []byte `json:"secret"`
}

// NewTPMCredential makes a credential for a TPM, with the secret in the clear
// and the name by which the TPM is known.
func NewTPMCredential(keys TPMKeys) (c TPMCredential, secret []byte, ek string, err error) {
	ekPub, err := templated(keys.EK, EKTemplate())
	if err != nil {
		return c, nil, "", fmt.Errorf("the endorsement key: %w", err)
	}
	akPub, err := templated(keys.AK, AKTemplate())
	if err != nil {
		return c, nil, "", fmt.Errorf("the attestation key: %w", err)
	}
	if ek, err = ekName(ekPub); err != nil {
		return c, nil, "", fmt.Errorf("the endorsement key: %w", err)
	}
	if _, err := ekName(akPub); err != nil {
		return c, nil, "", fmt.Errorf("the attestation key: %w", err)
	}
	name, err := tpm2.ObjectName(akPub)
	if err != nil {
		return c, nil, "", fmt.Errorf("the attestation key: %w", err)
	}
	to, err := tpm2.ImportEncapsulationKey(ekPub)
	if err != nil {
		return c, nil, "", fmt.Errorf("the endorsement key: %w", err)
	}
	secret = make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return c, nil, "", fmt.Errorf("make a secret: %w", err)
	}
	blob, wrapped, err := tpm2.CreateCredential(rand.Reader, to, name.Buffer, secret)
	if err != nil {
		return c, nil, "", fmt.Errorf("make a credential: %w", err)
	}
	return TPMCredential{Blob: blob, Secret: wrapped}, secret, ek, nil
}

// templated reads a public area that is a template's but for the key itself.
func templated(public []byte, want tpm2.TPMTPublic) (*tpm2.TPMTPublic, error) {
	got, err := tpm2.Unmarshal[tpm2.TPMTPublic](public)
	if err != nil {
		return nil, errors.New("no public area of a TPM")
	}
	want.Unique = got.Unique
	if got.Type != want.Type || !bytes.Equal(tpm2.Marshal(want), public) {
		return nil, errors.New("not of the template that is asked for")
	}
	return got, nil
}

// ekName is the hash of a key's point, whose form is one, whatever that of the
// public area: one TPM has one name.
func ekName(pub *tpm2.TPMTPublic) (string, error) {
	parms, err := pub.Parameters.ECCDetail()
	if err != nil {
		return "", errors.New("not on a curve")
	}
	point, err := pub.Unique.ECC()
	if err != nil {
		return "", errors.New("not on a curve")
	}
	key, err := tpm2.ECDHPub(parms, point)
	if err != nil {
		return "", errors.New("not on its curve")
	}
	sum := sha256.Sum256(key.Bytes())
	return hex.EncodeToString(sum[:]), nil
}
