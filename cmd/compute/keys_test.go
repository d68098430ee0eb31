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
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/identity/pkcs11/pkcs11test"
)

// The keys that init makes are left alone by a second one, and the certificate
// of a node that they sign is good to openssl, also after the CA of nodes was
// rotated under an open issuer.
func TestNodeCA(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := initKeys(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	made, err := os.ReadFile(file("node-ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if err := initKeys(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(file("node-ca.pem")); err != nil || string(again) != string(made) {
		t.Errorf("a second init changed the CA of nodes: %v", err)
	}
	if info, err := os.Stat(file("node-ca-key.pem")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v; want mode 0600", info, err)
	}

	root, err := identity.Load(file("ca.pem"), file("ca-key.pem"), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := gatewayConfig{nodeCA: file("node-ca.pem"), nodeCAKey: file("node-ca-key.pem"), trustDomain: "compute.example"}
	issuer, err := c.issuer(t.Context(), root, slog.New(slog.DiscardHandler))
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

// The CAs' keys may be made in a token: the CA of nodes gets a certificate for one
// and the key's file its URI, and init leaves them alone.
func TestKeysInToken(t *testing.T) {
	tokens := pkcs11test.New(t)
	tokens.Add(t, "ca")
	pin := pkcs11test.PINFile(t, pkcs11test.PIN)
	dir := t.TempDir()
	run := func(args ...string) (string, error) {
		var out strings.Builder
		cmd := newKeysCmd()
		cmd.SetArgs(args)
		cmd.SetOut(&out)
		cmd.SetErr(io.Discard)
		err := cmd.ExecuteContext(t.Context())
		return strings.TrimSpace(out.String()), err
	}
	if err := initKeys(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := nodeCAFiles(dir)
	before, err := os.ReadFile(certFile)
	if err != nil {
		t.Fatal(err)
	}
	node := tokens.AddKey(t, "ca", "nodes", "01", elliptic.P256())
	if _, err := run("rotate-node-ca", "--dir", dir, "--key", tokens.URI("ca", "none", pin)); err == nil || !strings.Contains(err.Error(), "no such private key") {
		t.Errorf("a key that is not in the token: %v", err)
	}
	if same, err := os.ReadFile(certFile); err != nil || string(same) != string(before) {
		t.Errorf("the CA was replaced in vain: %v", err)
	}
	uri := tokens.URI("ca", "nodes", pin)
	if _, err := run("rotate-node-ca", "--dir", dir, "--key", uri); err != nil {
		t.Fatal(err)
	}
	cert, err := identity.LoadCert(certFile)
	if err != nil || !node.Equal(cert.PublicKey) {
		t.Errorf("the CA's certificate is not of the token's key: %v", err)
	}
	if text, err := os.ReadFile(keyFile); err != nil || strings.TrimSpace(string(text)) != uri {
		t.Errorf("%s holds %q (%v), want the URI", keyFile, text, err)
	}

	public := tokens.AddKey(t, "ca", "ssh", "02", elliptic.P256())
	line, err := identity.SSHPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	sshKey, sshPublic := sshCAFiles(dir)
	uri = tokens.URI("ca", "ssh", pin)
	if err := os.WriteFile(sshKey, []byte(uri+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{uri, sshKey} {
		if out, err := run("ssh", "public", name); err != nil || out != line {
			t.Errorf("keys ssh public: %q, %v; want %q", out, err, line)
		}
	}
	if err := initKeys(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if got, err := identity.ReadSSHPublicKey(sshPublic); err != nil || got != line {
		t.Errorf("init wrote the public key %q (%v), want the token's", got, err)
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
