package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"
)

// A certificate of the CA of nodes that is not formed as a node's is none: the
// form is not left to the CA alone.
func TestReadForm(t *testing.T) {
	t.Parallel()
	root, err := NewCA("root")
	if err != nil {
		t.Fatal(err)
	}
	between, err := root.NewIntermediate("nodes")
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := NewIssuer(between, root.Cert, "compute.example")
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	generation := func(value any) []pkix.Extension {
		der, err := asn1.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return []pkix.Extension{{Id: oidGeneration, Value: der}}
	}
	name := func(scheme string) []*url.URL {
		return []*url.URL{{Scheme: scheme, Host: "compute.example", Path: "/node/node_1"}}
	}
	for what, c := range map[string]struct {
		change func(*x509.Certificate)
		good   bool
	}{
		"a node's":                    {func(*x509.Certificate) {}, true},
		"without a generation":        {func(c *x509.Certificate) { c.ExtraExtensions = nil }, false},
		"a generation below nothing":  {func(c *x509.Certificate) { c.ExtraExtensions = generation(-1) }, false},
		"a generation that is a word": {func(c *x509.Certificate) { c.ExtraExtensions = generation("one") }, false},
		"another scheme":              {func(c *x509.Certificate) { c.URIs = name("https") }, false},
		"two names":                   {func(c *x509.Certificate) { c.URIs = append(name("spiffe"), name("spiffe")...) }, false},
		"a host's name beside":        {func(c *x509.Certificate) { c.DNSNames = []string{"gw.example"} }, false},
		"a CA's":                      {func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign }, false},
		"one for servers":             {func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, false},
		"one that ended, as it is not": {func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-48*time.Hour), time.Now().Add(-time.Minute)
		}, true},
	} {
		leaf := &x509.Certificate{SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, URIs: name("spiffe"), ExtraExtensions: generation(3)}
		c.change(leaf)
		// As a CA that signs what it is given.
		der, err := x509.CreateCertificate(rand.Reader, leaf, between.Cert, key.Public(), between.Signer)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		signed, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := issuer.Read([]*x509.Certificate{signed, between.Cert}); (err == nil) != c.good || err != nil && !errors.Is(err, ErrNoNode) {
			t.Errorf("%s: %+v, %v; want good = %v", what, got, err, c.good)
		}
	}

	// A certificate says what was granted, and none outlives its CA.
	at := time.Now().Truncate(time.Second)
	chain, err := issuer.Issue(key.Public(), Grant{NodeID: "node_1", Generation: 3, Serial: "a", At: at, NotAfter: at.Add(NodeCertLife)})
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(chain)
	issued, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if !issued.NotAfter.Equal(at.Add(NodeCertLife)) || !issued.NotBefore.Equal(at.Add(-backdate)) || issued.IsCA || issued.URIs[0].String() != "spiffe://compute.example/node/node_1" {
		t.Errorf("issued from %s to %s for %v", issued.NotBefore, issued.NotAfter, issued.URIs)
	}
	if _, err := issuer.Issue(key.Public(), Grant{NodeID: "node_1", Generation: 3, Serial: "b", At: at, NotAfter: between.Cert.NotAfter.Add(time.Second)}); err == nil || !strings.Contains(err.Error(), "rotate-node-ca") {
		t.Errorf("a certificate that outlives its CA: %v", err)
	}
}
