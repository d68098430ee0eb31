package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/bettercompute/compute/identity"
)

// The keys that init makes are left alone by a second one, and the certificate
// of a node that they sign is good to openssl, also after the CA of nodes was
// rotated under an open issuer.
func TestNodeCA(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := initKeys(dir); err != nil {
		t.Fatal(err)
	}
	made, err := os.ReadFile(file("node-ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if err := initKeys(dir); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(file("node-ca.pem")); err != nil || string(again) != string(made) {
		t.Errorf("a second init changed the CA of nodes: %v", err)
	}
	if info, err := os.Stat(file("node-ca-key.pem")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v; want mode 0600", info, err)
	}

	root, err := identity.Load(file("ca.pem"), file("ca-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	c := gatewayConfig{nodeCA: file("node-ca.pem"), nodeCAKey: file("node-ca-key.pem"), trustDomain: "compute.example"}
	issuer, err := c.issuer(root, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	before := issueTo(t, issuer, file("before.pem"))
	old := issuer.CA().Cert.SerialNumber
	cmd := newKeysRotateNodeCACmd()
	cmd.SetArgs([]string{"--dir", dir})
	cmd.SetOut(io.Discard)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(time.Minute); issuer.CA().Cert.SerialNumber.Cmp(old) == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("the issuer did not take up the new CA of nodes")
		}
	}
	after := issueTo(t, issuer, file("after.pem"))
	for _, leaf := range []string{before, after} {
		out, err := exec.CommandContext(t.Context(), "openssl", "verify", "-purpose", "sslclient", "-CAfile", file("ca.pem"), "-untrusted", leaf, leaf).CombinedOutput()
		if err != nil {
			t.Errorf("openssl verify %s: %v\n%s", leaf, err, out)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "openssl", "verify", "-CAfile", file("ca.pem"), file("node-ca.pem")).CombinedOutput(); err != nil {
		t.Errorf("openssl verify node-ca.pem: %v\n%s", err, out)
	}
}

// issueTo writes a node's certificate with its chain and returns the file.
func issueTo(t *testing.T, issuer *identity.Issuer, file string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := identity.NewSerial()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	chain, err := issuer.Issue(key.Public(), identity.Grant{NodeID: "node_1", Generation: 1, Serial: serial, At: now, NotAfter: now.Add(identity.NodeCertLife)})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, chain, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
