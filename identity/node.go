package identity

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"strings"
	"time"
)

// NodeCert is who a client certificate says that its holder is.
type NodeCert struct {
	NodeID     string
	Generation int64
	// Serial is in hex.
	Serial   string
	KeyHash  []byte
	NotAfter time.Time
}

// ErrNoNode says that a client certificate is none of a node's.
var ErrNoNode = errors.New("the certificate is no node's")

// Read checks a client's certificate chain down to the root, for what it may be
// used for and for its form, and says whose it is. It does not judge its end,
// its revocation or its generation: those are the database's to say, whose clock
// and rows are one for all gateways.
func (i *Issuer) Read(chain []*x509.Certificate) (NodeCert, error) {
	if len(chain) == 0 {
		return NodeCert{}, fmt.Errorf("%w: none was shown", ErrNoNode)
	}
	leaf := chain[0]
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(i.Root)
	between.AddCert(i.CA().Cert)
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		// The leaf's own time: its end is judged by the database's clock.
		CurrentTime: leaf.NotAfter.Add(-time.Second)})
	if err != nil {
		return NodeCert{}, fmt.Errorf("%w: %w", ErrNoNode, err)
	}
	if leaf.IsCA || len(leaf.URIs) != 1 || len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.EmailAddresses) > 0 {
		return NodeCert{}, fmt.Errorf("%w: it has other names", ErrNoNode)
	}
	id := leaf.URIs[0]
	node, ok := strings.CutPrefix(id.Path, "/node/")
	if id.Scheme != "spiffe" || id.Host != i.TrustDomain || !ok || node == "" || strings.Contains(node, "/") {
		return NodeCert{}, fmt.Errorf("%w: its name is %s", ErrNoNode, id.Redacted())
	}
	out := NodeCert{NodeID: node, Serial: leaf.SerialNumber.Text(16), NotAfter: leaf.NotAfter, Generation: -1}
	for _, e := range leaf.Extensions {
		if e.Id.Equal(oidGeneration) {
			if rest, err := asn1.Unmarshal(e.Value, &out.Generation); err != nil || len(rest) > 0 {
				return NodeCert{}, fmt.Errorf("%w: its generation cannot be read", ErrNoNode)
			}
		}
	}
	if out.Generation < 0 {
		return NodeCert{}, fmt.Errorf("%w: it has no generation", ErrNoNode)
	}
	if out.KeyHash, err = KeyHash(leaf.PublicKey); err != nil {
		return NodeCert{}, err
	}
	return out, nil
}
