package identity

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"testing"
	"testing/synctest"
	"time"
)

// The pin holds for dates and names too; only a clock that is behind is borne.
func TestVerifyPinned(t *testing.T) {
	t.Parallel()
	ca, err := NewCA("test CA")
	if err != nil {
		t.Fatal(err)
	}
	c, err := ca.NewServer("gw.example", "192.0.2.1").Certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	chain := []*x509.Certificate{c.Leaf, ca.Cert}
	between, err := ca.NewIntermediate("nodes")
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := NewIssuer(between, ca.Cert, "compute.example")
	if err != nil {
		t.Fatal(err)
	}
	issued, err := issuer.Issue(c.Leaf.PublicKey, Grant{NodeID: "gw.example", Generation: 1, Serial: "1", At: time.Now(), NotAfter: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(issued)
	node, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	// A node's certificate with the gateway's names, which its CA would never sign.
	named := *node
	named.DNSNames, named.SerialNumber = []string{"gw.example"}, big.NewInt(2)
	posing, err := sign(&named, between.Cert, c.Leaf.PublicKey, between.Signer)
	if err != nil {
		t.Fatal(err)
	}
	server := named
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	below, err := sign(&server, between.Cert, c.Leaf.PublicKey, between.Signer)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for name, v := range map[string]struct {
		chain []*x509.Certificate
		host  string
		at    time.Time
		ok    bool
	}{
		"by name":                            {chain, "gw.example", now, true},
		"by address":                         {chain, "192.0.2.1", now, true},
		"another name":                       {chain, "evil.example", now, false},
		"another address":                    {chain, "192.0.2.2", now, false},
		"clock days behind":                  {chain, "gw.example", now.AddDate(0, 0, -9), true},
		"clock at the epoch":                 {chain, "gw.example", time.Unix(0, 0), true},
		"certificate expired":                {chain, "gw.example", now.AddDate(0, 0, 9), false},
		"chain without the CA":               {chain[:1], "gw.example", now, false},
		"a node's certificate":               {[]*x509.Certificate{node, between.Cert, ca.Cert}, "gw.example", now, false},
		"a node's certificate with our name": {[]*x509.Certificate{posing, between.Cert, ca.Cert}, "gw.example", now, false},
		"a server's below the CA of nodes":   {[]*x509.Certificate{below, between.Cert, ca.Cert}, "gw.example", now, false},
		"the CA itself":                      {chain[1:], "gw.example", now, false},
	} {
		err := verifyPinned(v.chain, ca.Fingerprint(), v.host, v.at)
		if (err == nil) != v.ok || (err != nil && !errors.Is(err, ErrNotPinned)) {
			t.Errorf("%s: %v, want ok = %v", name, err, v.ok)
		}
	}
}

// The listener's certificate is the same until it is due.
func TestServerRenews(t *testing.T) {
	t.Parallel()
	ca, err := NewCA("test CA")
	if err != nil {
		t.Fatal(err)
	}
	s := ca.NewServer("gw.example")
	first, err := s.Certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.Certificate(nil); err != nil || again != first {
		t.Errorf("asked again: another certificate, %v", err)
	}
	s.renew = time.Now().Add(-time.Second)
	if later, err := s.Certificate(nil); err != nil || later == first {
		t.Errorf("due: the same certificate, %v", err)
	}
}

// awayKey is a CA's key that can be away.
type awayKey struct {
	crypto.Signer
	away bool
}

func (k *awayKey) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if k.away {
		return nil, errors.New("away")
	}
	return k.Signer.Sign(rand, digest, opts)
}

// A listener whose certificate is due while the CA's key is away goes on with the
// one it has as long as that is good, and has a new one when the key is back.
func TestCertificateWhileTheKeyIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ca, err := NewCA("test CA")
		if err != nil {
			t.Fatal(err)
		}
		key := &awayKey{Signer: ca.Signer}
		ca.Signer = key
		server := ca.NewServer("gw.example")
		first, err := server.Certificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		key.away = true
		time.Sleep(serverLife * 5 / 6)
		if c, err := server.Certificate(nil); err != nil || c != first {
			t.Errorf("due, and the key away: %v, want the certificate that is good", err)
		}
		key.away = false
		time.Sleep(renewPause)
		renewed, err := server.Certificate(nil)
		if err != nil || renewed == first {
			t.Errorf("the key is back: %v, want a new certificate", err)
		}
		key.away = true
		time.Sleep(serverLife)
		if _, err := server.Certificate(nil); err == nil {
			t.Error("a certificate that has ended was shown")
		}
	})
}
