// Package identity holds the certificate authorities of the control plane: the
// gateway's own certificate, which machines pin, and the certificates of nodes.
// A CA's key is used through crypto.Signer, so that it can lie in a file, a
// token or a key service.
package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"regexp"
	"time"
)

// caLife is how long a root that this package makes is good for. Machines pin
// it; changing it means telling them all.
const caLife = 20 * 365 * 24 * time.Hour

// backdate is how far certificates begin in the past, for clocks that are
// behind.
const backdate = time.Hour

// CA signs certificates.
type CA struct {
	Cert   *x509.Certificate
	Signer crypto.Signer
}

// Fingerprint is how machines pin a certificate: "sha256:" and the digest of
// its DER form in hex.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// fingerprintForm is what Fingerprint makes.
var fingerprintForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// CheckFingerprint refuses what is no fingerprint of a certificate, so that one
// that was cut short is not taken for another gateway's.
func CheckFingerprint(s string) error {
	if !fingerprintForm.MatchString(s) {
		return fmt.Errorf("the fingerprint %q is none: sha256: and 64 hex digits in lower case, as compute keys fingerprint prints them", s)
	}
	return nil
}

// Fingerprint is the CA certificate's.
func (ca *CA) Fingerprint() string { return Fingerprint(ca.Cert) }

// NewCA makes a root with a fresh ECDSA P-256 key.
func NewCA(name string) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of %s: %w", name, err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	t := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-backdate), NotAfter: now.Add(caLife),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}
	cert, err := sign(t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", name, err)
	}
	return &CA{Cert: cert, Signer: key}, nil
}

// Create makes a CA in two files, and loads the one that is there. Only its
// owner can read the key file.
func Create(certFile, keyFile, name string, tokens OpenToken) (*CA, error) {
	if _, err := os.Stat(certFile); err == nil {
		return Load(certFile, keyFile, tokens)
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("look for the CA: %w", err)
	}
	ca, err := NewCA(name)
	if err != nil {
		return nil, err
	}
	return ca, ca.save(certFile, keyFile)
}

// save writes a CA whose key was made here. The key first: a certificate without
// its key would be taken for a CA.
func (ca *CA) save(certFile, keyFile string) error {
	der, err := x509.MarshalPKCS8PrivateKey(ca.Signer)
	if err != nil {
		return fmt.Errorf("write the key of %s: %w", ca.Cert.Subject.CommonName, err)
	}
	if err := writePEM(keyFile, "PRIVATE KEY", der, 0o600); err != nil {
		return err
	}
	return writePEM(certFile, "CERTIFICATE", ca.Cert.Raw, 0o644)
}

// Load reads a CA from its certificate's file and its key, in a file or a token
// (see readKey), and checks that they belong together; a key in a token is found
// by the certificate.
func Load(certFile, keyName string, tokens OpenToken) (*CA, error) {
	cert, err := LoadCert(certFile)
	if err != nil {
		return nil, err
	}
	if !cert.IsCA {
		return nil, fmt.Errorf("%s is no CA certificate", certFile)
	}
	remote, b, err := readKey(keyName, cert.PublicKey, tokens)
	if err != nil {
		return nil, err
	}
	if remote != nil {
		return &CA{Cert: cert, Signer: remote}, nil
	}
	block, err := parsePEM(keyName, b, "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(block)
	if err != nil {
		return nil, fmt.Errorf("read the CA key %s: it is no PKCS#8 key", keyName)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("the CA key %s cannot sign", keyName)
	}
	public, ok := signer.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("the CA key %s is not that of %s", keyName, certFile)
	}
	return &CA{Cert: cert, Signer: signer}, nil
}

// LoadCert reads the first certificate of a PEM file.
func LoadCert(file string) (*x509.Certificate, error) {
	block, err := readPEM(file, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(block)
	if err != nil {
		return nil, fmt.Errorf("read the certificate %s: %w", file, err)
	}
	return cert, nil
}

func readPEM(file, kind string) ([]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the CA: %w", err)
	}
	return parsePEM(file, b, kind)
}

func parsePEM(file string, b []byte, kind string) ([]byte, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("%s holds no PEM block %q", file, kind)
	}
	return block.Bytes, nil
}

func writePEM(file, kind string, der []byte, mode os.FileMode) error {
	return writeFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}

// writeFile puts a file in place whole or not at all.
func writeFile(file string, b []byte, mode os.FileMode) error {
	if err := os.WriteFile(file+".new", b, mode); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("put %s in place: %w", file, err)
	}
	return nil
}

// newSerial is a random serial number of 127 bits.
func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}

func sign(t, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, public, signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}
