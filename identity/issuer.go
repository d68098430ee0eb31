package identity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"regexp"
	"sync"
	"time"
)

// NodeCertLife is how long a node's certificate is good for; agents renew it at
// two thirds.
const NodeCertLife = 24 * time.Hour

// intermediateLife is how long a CA of nodes is good for. It is replaced by one
// of the same root; certificates of the old one stay good until they end.
const intermediateLife = 3 * 365 * 24 * time.Hour

// oidGeneration is the extension that holds a node's identity generation, an
// INTEGER. It lies under the arc for examples, so that it is nobody else's.
var oidGeneration = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 32473, 71, 1}

// Issuer signs the certificates of nodes.
type Issuer struct {
	// Root is what machines pin.
	Root *x509.Certificate
	// TrustDomain is the domain of the nodes' SPIFFE ids.
	TrustDomain string
	// files are those that the CA was read from, nil when it was given.
	files *caFiles

	mu sync.Mutex
	ca *CA
}

// NewIntermediate makes a CA below this one that signs client certificates only.
func (ca *CA) NewIntermediate(name string) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of %s: %w", name, err)
	}
	return ca.intermediate(name, key)
}

// intermediate makes a CA below this one of a key.
func (ca *CA) intermediate(name string, key crypto.Signer) (*CA, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	t := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-backdate), NotAfter: now.Add(intermediateLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	cert, err := sign(t, ca.Cert, key.Public(), ca.Signer)
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", name, err)
	}
	return &CA{Cert: cert, Signer: key}, nil
}

// trustDomain is what a SPIFFE trust domain may be.
var trustDomain = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,252}[a-z0-9])?$`)

// NewIssuer checks that the CA of nodes is of the root that machines pin.
func NewIssuer(ca *CA, root *x509.Certificate, domain string) (*Issuer, error) {
	if !trustDomain.MatchString(domain) {
		return nil, fmt.Errorf("the trust domain %q is no domain name in lower case", domain)
	}
	if err := ca.Cert.CheckSignatureFrom(root); err != nil {
		return nil, fmt.Errorf("the CA of nodes is not of the gateway's CA: %w", err)
	}
	return &Issuer{ca: ca, Root: root, TrustDomain: domain}, nil
}

// Ready says why no certificates can be signed now.
func (i *Issuer) Ready(ctx context.Context) error { return KeyReady(ctx, i.CA().Signer) }

// CA is the intermediate of Root that signs now.
func (i *Issuer) CA() *CA {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.files != nil {
		i.ca = i.files.newer(i.ca, i.Root)
	}
	return i.ca
}

// KeyHash names a public key: the SHA-256 of its SPKI.
func KeyHash(public crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return nil, fmt.Errorf("read the public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return sum[:], nil
}

// ErrBadCSR says what a certificate request must be.
var ErrBadCSR = errors.New("the certificate request must be signed by its own ECDSA P-256 key and ask for no names or extensions")

// ParseCSR reads a request, in PEM, and checks that whoever made it holds the
// key. The name and everything else in the certificate are ours to say, so a
// request that asks for any is refused instead of answered with less.
func ParseCSR(pemBytes []byte) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode(pemBytes)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(rest) > 0 {
		return nil, fmt.Errorf("%w: it is no single PEM block", ErrBadCSR)
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: it cannot be read", ErrBadCSR)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("%w: its signature is wrong", ErrBadCSR)
	}
	key, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("%w: its key is another", ErrBadCSR)
	}
	if len(csr.Extensions) > 0 || len(csr.DNSNames)+len(csr.IPAddresses)+len(csr.URIs)+len(csr.EmailAddresses) > 0 {
		return nil, fmt.Errorf("%w: it asks for names or extensions", ErrBadCSR)
	}
	return csr, nil
}

// NewCSR makes a request for a key, in PEM.
func NewCSR(key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// Grant is what a node's certificate says. Its dates are the database's, so
// that a gateway whose clock is off makes none that is good too long.
type Grant struct {
	NodeID     string
	Generation int64
	// Serial is in hex, as NewSerial makes it.
	Serial   string
	At       time.Time
	NotAfter time.Time
}

// NewSerial makes the serial number of a certificate, in hex.
func NewSerial() (string, error) {
	n, err := newSerial()
	if err != nil {
		return "", err
	}
	return n.Text(16), nil
}

// Issue signs a node's certificate and returns it with its intermediate, in
// PEM.
func (i *Issuer) Issue(public crypto.PublicKey, g Grant) ([]byte, error) {
	serial, ok := new(big.Int).SetString(g.Serial, 16)
	if !ok {
		return nil, fmt.Errorf("the serial number %q is none", g.Serial)
	}
	generation, err := asn1.Marshal(g.Generation)
	if err != nil {
		return nil, fmt.Errorf("write the generation: %w", err)
	}
	t := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: g.NodeID}, NotBefore: g.At.Add(-backdate), NotAfter: g.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
		URIs:            []*url.URL{{Scheme: "spiffe", Host: i.TrustDomain, Path: "/node/" + g.NodeID}},
		ExtraExtensions: []pkix.Extension{{Id: oidGeneration, Value: generation}}}
	ca := i.CA()
	if ca.Cert.NotAfter.Before(g.NotAfter) {
		return nil, fmt.Errorf("the CA of nodes ends %s, before the certificate would: rotate it (compute keys rotate-node-ca)", ca.Cert.NotAfter.Format(time.DateOnly))
	}
	cert, err := sign(t, ca.Cert, public, ca.Signer)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of node %s: %w", g.NodeID, err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Cert.Raw})...), nil
}
