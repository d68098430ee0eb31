package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// serverLife is how long a gateway's certificate is good for; it is made anew
// at two thirds of it. The key never leaves the process.
const serverLife = 7 * 24 * time.Hour

// renewPause is between attempts to renew a listener's certificate that is still
// good.
const renewPause = time.Minute

// Server makes and renews the certificate of a TLS listener.
type Server struct {
	ca    *CA
	hosts []string

	mu      sync.Mutex
	current *tls.Certificate
	renew   time.Time
}

// NewServer makes the certificate source of a listener that is reached by the
// given host names and addresses.
func (ca *CA) NewServer(hosts ...string) *Server { return &Server{ca: ca, hosts: hosts} }

// Certificate is tls.Config's GetCertificate. The chain it presents ends in the
// CA, so that a machine that knows only its fingerprint can check it.
func (s *Server) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.current != nil && now.Before(s.renew) {
		return s.current, nil
	}
	c, err := s.issue(now)
	if err != nil && s.current != nil && now.Before(s.current.Leaf.NotAfter) {
		s.renew = now.Add(renewPause) // the CA's key can be away
		return s.current, nil
	}
	if err != nil {
		return nil, err
	}
	s.current, s.renew = c, now.Add(serverLife*2/3)
	return c, nil
}

func (s *Server) issue(now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the listener's key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: "gateway"}, NotBefore: now.Add(-backdate), NotAfter: now.Add(serverLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, h := range s.hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	defer func() { go letGo(s.ca.Signer) }() // it is needed next in days
	cert, err := sign(t, s.ca.Cert, key.Public(), s.ca.Signer)
	if err != nil {
		return nil, fmt.Errorf("sign the listener's certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw, s.ca.Cert.Raw}, PrivateKey: key, Leaf: cert}, nil
}

// ErrNotPinned says that a server did not show the pinned CA, or no certificate
// of it.
var ErrNotPinned = errors.New("the server's certificate is not of the pinned CA")

// PinnedTLS is the client side: TLS to a host, trusting one CA, known by its
// fingerprint. The host's name is checked like the dates, with one allowance: a
// clock that is behind is taken to stand at the certificate's beginning, since a
// machine that was just switched on has often no better one.
func PinnedTLS(fingerprint, host string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: host,
		// The chain is verified below, against the pin instead of the system's
		// roots, on every connection, resumed ones too.
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection does it
		VerifyConnection: func(cs tls.ConnectionState) error {
			return verifyPinned(cs.PeerCertificates, fingerprint, host, time.Now())
		},
	}
}

func verifyPinned(chain []*x509.Certificate, fingerprint, host string, now time.Time) error {
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	pinned := false
	for _, c := range chain {
		if now.Before(c.NotBefore) {
			now = c.NotBefore
		}
		if c.IsCA && Fingerprint(c) == fingerprint {
			roots.AddCert(c)
			pinned = true
			continue
		}
		between.AddCert(c)
	}
	if !pinned {
		return ErrNotPinned
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: host, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotPinned, err)
	}
	return nil
}
