package identity_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/bettercompute/compute/identity"
)

const domain = "compute.example"

// authority is a root, its CA of nodes and a key of a node.
type authority struct {
	root   *identity.CA
	issuer *identity.Issuer
	key    *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	root, err := identity.NewCA("root")
	if err != nil {
		t.Fatal(err)
	}
	between, err := root.NewIntermediate("nodes")
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := identity.NewIssuer(between, root.Cert, domain)
	if err != nil {
		t.Fatal(err)
	}
	return authority{root: root, issuer: issuer, key: p256(t)}
}

func p256(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (a authority) issue(t *testing.T, node string, generation int64) []byte {
	t.Helper()
	serial, err := identity.NewSerial()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	b, err := a.issuer.Issue(a.key.Public(), identity.Grant{NodeID: node, Generation: generation, Serial: serial, At: now, NotAfter: now.Add(identity.NodeCertLife)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func parse(t *testing.T, b []byte) []*x509.Certificate {
	t.Helper()
	var out []*x509.Certificate
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

// What is issued is read back, and openssl agrees that it is a client's.
func TestIssueAndRead(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	issued := a.issue(t, "node_1", 7)
	got, err := a.issuer.Read(parse(t, issued))
	if err != nil {
		t.Fatal(err)
	}
	hash, err := identity.KeyHash(a.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	if got.NodeID != "node_1" || got.Generation != 7 || string(got.KeyHash) != string(hash) || got.Serial == "" {
		t.Errorf("read %+v", got)
	}
	dir := t.TempDir()
	file := func(name string, b []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	root := file("root.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.root.Cert.Raw}))
	leaf := file("leaf.pem", issued)
	for purpose, want := range map[string]bool{"sslclient": true, "sslserver": false} {
		err := exec.CommandContext(t.Context(), "openssl", "verify", "-purpose", purpose, "-CAfile", root, "-untrusted", leaf, leaf).Run()
		if (err == nil) != want {
			t.Errorf("openssl verify -purpose %s: %v, want ok = %v", purpose, err, want)
		}
	}
}

// The CA of nodes is replaced by another of the same root without ending what
// the old one signed.
func TestIntermediateRotates(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	old := a.issue(t, "node_1", 1)
	next, err := a.root.NewIntermediate("nodes 2")
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := identity.NewIssuer(next, a.root.Cert, domain)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := issuer.Read(parse(t, old)); err != nil {
		t.Errorf("a certificate of the former CA: %v", err)
	}
	other, err := identity.NewCA("other root")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := identity.NewIssuer(next, other.Cert, domain); err == nil {
		t.Error("a CA of nodes of another root is taken")
	}
}

// Certificates that are no node's of ours.
func TestReadRefuses(t *testing.T) {
	t.Parallel()
	a, b := newAuthority(t), newAuthority(t)
	server, err := a.root.NewServer("gw.example").Certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := identity.NewIssuer(a.issuer.CA(), a.root.Cert, "other.example")
	if err != nil {
		t.Fatal(err)
	}
	foreign := authority{root: a.root, issuer: elsewhere, key: a.key}
	for name, chain := range map[string][]*x509.Certificate{
		"none":                     nil,
		"of another CA":            parse(t, b.issue(t, "node_1", 1)),
		"of another CA, our chain": append(parse(t, b.issue(t, "node_1", 1))[:1], a.issuer.CA().Cert, a.root.Cert),
		"the gateway's own":        {server.Leaf, a.root.Cert},
		"the CA of nodes itself":   {a.issuer.CA().Cert},
		"another trust domain":     parse(t, foreign.issue(t, "node_1", 1)),
		"a path in the name":       parse(t, a.issue(t, "node_1/x", 1)),
		"no node's name":           parse(t, a.issue(t, "", 1)),
	} {
		if got, err := a.issuer.Read(chain); !errors.Is(err, identity.ErrNoNode) {
			t.Errorf("%s: %+v, %v; want %v", name, got, err, identity.ErrNoNode)
		}
	}
}

func TestParseCSR(t *testing.T) {
	t.Parallel()
	request := func(template *x509.CertificateRequest, key crypto.Signer) []byte {
		der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good := request(&x509.CertificateRequest{}, p256(t))
	forged := append([]byte{}, good...)
	block, _ := pem.Decode(forged)
	block.Bytes[len(block.Bytes)-1] ^= 1
	for name, c := range map[string]struct {
		csr []byte
		ok  bool
	}{
		"good":              {good, true},
		"another node's id": {request(&x509.CertificateRequest{URIs: []*url.URL{{Scheme: "spiffe", Host: domain, Path: "/node/node_2"}}}, p256(t)), false},
		"a host name":       {request(&x509.CertificateRequest{DNSNames: []string{"gw.example"}}, p256(t)), false},
		"RSA":               {request(&x509.CertificateRequest{}, weak), false},
		"P-384":             {request(&x509.CertificateRequest{}, p384), false},
		"forged":            {pem.EncodeToMemory(block), false},
		"two":               {append(append([]byte{}, good...), good...), false},
		"nothing":           {nil, false},
		"a certificate":     {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), false},
	} {
		if _, err := identity.ParseCSR(c.csr); (err == nil) != c.ok || (err != nil && !errors.Is(err, identity.ErrBadCSR)) {
			t.Errorf("%s: %v, want ok = %v", name, err, c.ok)
		}
	}
}
