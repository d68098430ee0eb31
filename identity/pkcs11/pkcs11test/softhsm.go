// Package pkcs11test makes tokens for tests.
package pkcs11test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// PIN is the user's of each token.
const PIN = "1234-user"

// SOPIN is the security officer's of each token.
const SOPIN = "5678-officer"

// Tokens are SoftHSM's of one test process: its module reads one configuration,
// when it is loaded.
type Tokens struct {
	// Module is the PKCS#11 module.
	Module string
	// Dir holds the tokens, a folder each.
	Dir string
}

// Setup makes the tokens' folder and tells SoftHSM of it, by the environment of
// this process. It is for TestMain, which calls Remove at the end.
func Setup() (*Tokens, error) {
	dir, err := os.MkdirTemp("", "softhsm")
	if err != nil {
		return nil, err
	}
	t := &Tokens{Dir: filepath.Join(dir, "tokens")}
	if err := os.Mkdir(t.Dir, 0o700); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "softhsm2.conf")
	if err := os.WriteFile(config, []byte("directories.tokendir = "+t.Dir+"\nobjectstore.backend = file\nlog.level = ERROR\n"), 0o600); err != nil {
		return nil, err
	}
	found, err := filepath.Glob("/usr/lib/softhsm/libsofthsm2.so")
	if err != nil || len(found) == 0 {
		return nil, errors.New("SoftHSM is not installed (.ci/packages installs softhsm2)")
	}
	t.Module = found[0]
	return t, os.Setenv("SOFTHSM2_CONF", config)
}

// New makes a folder of tokens for a test that is not parallel. Its keys have to
// be closed before another test of the process makes tokens.
func New(t *testing.T) *Tokens {
	t.Helper()
	tokens, err := Setup()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tokens.Remove)
	t.Setenv("SOFTHSM2_CONF", os.Getenv("SOFTHSM2_CONF")) // says that the test is not parallel
	return tokens
}

// Remove removes the tokens.
func (t *Tokens) Remove() { _ = os.RemoveAll(filepath.Dir(t.Dir)) } // a leftover harms nobody

// Add makes a token with a label and returns its folder.
func (t *Tokens) Add(tb testing.TB, label string) string {
	tb.Helper()
	before := t.folders(tb)
	if out, err := exec.Command("softhsm2-util", "--init-token", "--free", "--label", label, "--so-pin", SOPIN, "--pin", PIN).CombinedOutput(); err != nil {
		tb.Fatalf("softhsm2-util --init-token: %v\n%s", err, out)
	}
	for dir := range t.folders(tb) {
		if !before[dir] {
			return dir
		}
	}
	tb.Fatal("softhsm2-util made no token")
	return ""
}

func (t *Tokens) folders(tb testing.TB) map[string]bool {
	tb.Helper()
	found, err := filepath.Glob(filepath.Join(t.Dir, "*"))
	if err != nil {
		tb.Fatal(err)
	}
	all := map[string]bool{}
	for _, f := range found {
		all[f] = true
	}
	return all
}

// AddKey puts a fresh key into a token and returns its public key.
func (t *Tokens) AddKey(tb testing.TB, label, object, id string, curve elliptic.Curve) *ecdsa.PublicKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	t.Import(tb, label, object, id, key)
	return &key.PublicKey
}

// Import puts a key into a token.
func (t *Tokens) Import(tb testing.TB, label, object, id string, key crypto.PrivateKey) {
	tb.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	file := filepath.Join(tb.TempDir(), "key.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		tb.Fatal(err)
	}
	if out, err := exec.Command("softhsm2-util", "--import", file, "--token", label, "--label", object, "--id", id, "--pin", PIN).CombinedOutput(); err != nil {
		tb.Fatalf("softhsm2-util --import: %v\n%s", err, out)
	}
}

// PINFile writes a PIN into a file as a person would, with a newline.
func PINFile(tb testing.TB, pin string) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "pin")
	if err := os.WriteFile(file, []byte(pin+"\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}

// URI names a key of a token.
func (t *Tokens) URI(label, object, pinFile string) string {
	return "pkcs11:token=" + url.PathEscape(label) + ";object=" + url.PathEscape(object) + "?module-path=" + t.Module + "&pin-source=file:" + pinFile
}
