package sim

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"time"
)

// Values of TLSSpec.Mode.
const (
	tlsSelfSigned = "selfSigned"
	tlsOwnCA      = "ownCA"
	tlsWrongName  = "wrongName"
	tlsExpired    = "expired"
)

// Certificates are derived from seeds, keys and signatures included, so that a
// machine shows the same one after a restart without any being stored.

// steadySigner signs the same bytes the same way each time (RFC 6979).
type steadySigner struct{ *ecdsa.PrivateKey }

func (s steadySigner) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return s.PrivateKey.Sign(nil, digest, opts)
}

func derivedKey(parts ...any) (*ecdsa.PrivateKey, error) {
	r := seeded(append([]any{"key"}, parts...)...)
	for range 16 {
		var b []byte
		for range 4 {
			b = binary.BigEndian.AppendUint64(b, r.Uint64())
		}
		// A scalar past the group's order is refused; the next one will do.
		if k, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), b); err == nil {
			return k, nil
		}
	}
	return nil, errors.New("no private key can be derived")
}

// authority is the rack's own CA, for machines whose TLS mode is ownCA.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(seed uint64) (*authority, error) {
	key, err := derivedKey("ca", seed)
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Simulated rack CA"},
		NotBefore: notBefore, NotAfter: notAfter,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(nil, tmpl, tmpl, key.Public(), steadySigner{key})
	if err != nil {
		return nil, fmt.Errorf("making the rack's CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{cert, key}, err
}

// pem is the CA's certificate.
func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

var (
	notBefore = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	notAfter  = time.Date(2049, 12, 31, 0, 0, 0, 0, time.UTC)
)

func (r *Rack) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			m := r.at(h.Conn.LocalAddr())
			if m == nil {
				return nil, errors.New("no machine has this address")
			}
			return m.certificate()
		},
	}
}

// certificate is the one that the machine shows now, made when first wanted.
func (m *Machine) certificate() (*tls.Certificate, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cert != nil && m.certOf == m.st.TLS {
		return m.cert, nil
	}
	c, err := m.makeCertificate(m.st.TLS)
	if err != nil {
		return nil, err
	}
	m.cert, m.certOf = c, m.st.TLS
	return c, nil
}

func (m *Machine) makeCertificate(t TLSState) (*tls.Certificate, error) {
	key, err := derivedKey(m.rack.opts.Seed, m.ordinal, t.Generation, t.Mode)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(m.addr)
	if err != nil {
		return nil, err
	}
	pub, err := key.PublicKey.Bytes()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(pub)
	tmpl := &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(sum[:15]),
		Subject:      pkix.Name{CommonName: m.id, Organization: []string{m.prof.Vendor}},
		NotBefore:    notBefore, NotAfter: notAfter,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.ParseIP(host)}, DNSNames: []string{m.id},
	}
	if t.Mode == tlsWrongName {
		tmpl.IPAddresses, tmpl.DNSNames = nil, []string{"bmc.example.invalid"}
	}
	if t.Mode == tlsExpired {
		tmpl.NotAfter = notBefore.AddDate(1, 0, 0)
	}
	parent, signer := tmpl, key
	if t.Mode == tlsOwnCA {
		parent, signer = m.rack.ca.cert, m.rack.ca.key
	}
	der, err := x509.CreateCertificate(nil, tmpl, parent, key.Public(), steadySigner{signer})
	if err != nil {
		return nil, fmt.Errorf("making the certificate of %s: %w", m.id, err)
	}
	return &tls.Certificate{Certificate: [][]byte{bytes.Clone(der)}, PrivateKey: key}, nil
}
