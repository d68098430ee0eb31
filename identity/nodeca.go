package identity

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"
)

// nodeCAName is the common name of the CAs of nodes.
const nodeCAName = "Better Compute CA of nodes"

// CreateNodeCA makes the CA of nodes below a root, and leaves the one that is
// there.
func (ca *CA) CreateNodeCA(certFile, keyFile string) error {
	if _, err := os.Stat(certFile); err == nil {
		return nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("look for the CA of nodes: %w", err)
	}
	return ca.RotateNodeCA(certFile, keyFile)
}

// RotateNodeCA puts a fresh CA of nodes in place. What the former one signed
// stays good until it ends: nodes show their whole chain, and the root is the
// same.
func (ca *CA) RotateNodeCA(certFile, keyFile string) error {
	next, err := ca.NewIntermediate(nodeCAName)
	if err != nil {
		return err
	}
	return next.save(certFile, keyFile)
}

// CertifyNodeCA is RotateNodeCA with a key of a token: the token makes and keeps
// the key, and the key's file then holds its URI. The key has to sign now.
func (ca *CA) CertifyNodeCA(ctx context.Context, certFile, keyFile, uri string, tokens OpenToken) error {
	key, err := tokens(uri, nil)
	if err != nil {
		return err
	}
	defer letGo(key)
	if err := key.Ready(ctx); err != nil {
		return err
	}
	next, err := ca.intermediate(nodeCAName, key)
	if err != nil {
		return err
	}
	if _, err := key.Sign(rand.Reader, make([]byte, sha256.Size), crypto.SHA256); err != nil {
		return fmt.Errorf("try the key: %w", err)
	}
	if err := writeFile(keyFile, []byte(uri+"\n"), 0o600); err != nil {
		return err
	}
	return writePEM(certFile, "CERTIFICATE", next.Cert.Raw, 0o644)
}

// lookEvery bounds how often an issuer looks whether its files changed.
const lookEvery = 2 * time.Second

// caFiles are the files of a CA that can be replaced while it is used.
type caFiles struct {
	cert, key string
	tokens    OpenToken
	modified  time.Time
	looked    time.Time
}

// OpenIssuer is NewIssuer with the CA of two files, or of a file and the URI of
// its key. It takes up another CA that is put in their place.
func OpenIssuer(certFile, keyName string, root *x509.Certificate, domain string, tokens OpenToken) (*Issuer, error) {
	info, err := os.Stat(certFile)
	if err != nil {
		return nil, fmt.Errorf("read the CA of nodes: %w", err)
	}
	ca, err := Load(certFile, keyName, tokens)
	if err != nil {
		return nil, err
	}
	i, err := NewIssuer(ca, root, domain)
	if err != nil {
		return nil, err
	}
	i.files = &caFiles{cert: certFile, key: keyName, tokens: tokens, modified: info.ModTime(), looked: time.Now()}
	return i, nil
}

// newer is the CA of the files when they changed and hold one of the root, else
// the one in use: between the writing of two files they belong to two CAs.
func (f *caFiles) newer(used *CA, root *x509.Certificate) *CA {
	now := time.Now()
	if now.Sub(f.looked) < lookEvery {
		return used
	}
	f.looked = now
	info, err := os.Stat(f.cert)
	if err != nil || info.ModTime().Equal(f.modified) {
		return used
	}
	ca, err := Load(f.cert, f.key, f.tokens)
	if err != nil || ca.Cert.CheckSignatureFrom(root) != nil {
		return used
	}
	f.modified = info.ModTime()
	go letGo(used.Signer) // it waits for the signatures that are being made
	return ca
}
