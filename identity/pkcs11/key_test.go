//go:build cgo

package pkcs11

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/identity/pkcs11/pkcs11test"
)

// tokens are those of these tests, made before the module is loaded: it looks
// for them once.
var tokens *pkcs11test.Tokens

func TestMain(m *testing.M) {
	var err error
	if tokens, err = pkcs11test.Setup(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	tokens.Remove()
	os.Exit(code)
}

func digest(s string) []byte {
	sum := sha256.Sum256([]byte(s))
	return sum[:]
}

// open is a key that the test closes, so that the next one loads the module
// anew.
func open(t *testing.T, uri string, of crypto.PublicKey) *Key {
	t.Helper()
	k, err := Open(uri, of)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() }) // it returns none
	return k
}

func checkSigns(t *testing.T, k *Key, public *ecdsa.PublicKey) {
	t.Helper()
	d := digest(rand.Text())
	sig, err := k.Sign(rand.Reader, d, crypto.SHA256)
	if err != nil {
		t.Fatalf("Sign: %v", err)
	}
	if !ecdsa.VerifyASN1(public, d, sig) {
		t.Error("the signature is not the key's")
	}
	if !public.Equal(k.Public()) {
		t.Error("the public key is another")
	}
}

// checkAway wants the answer that says what to do, of signing and of Ready.
func checkAway(t *testing.T, k *Key, cause string) {
	t.Helper()
	_, err := k.Sign(rand.Reader, digest("x"), crypto.SHA256)
	for _, err := range []error{err, k.Ready(t.Context())} {
		if fleet.CodeOf(err) != fleet.CodeUnavailable || fleet.ReasonOf(err) != fleet.ReasonCAKey || !strings.Contains(err.Error(), cause) {
			t.Errorf("away: %v; want UNAVAILABLE with %q", err, cause)
		}
		var told *fleet.Error
		if errors.As(err, &told) && (strings.Contains(told.Detail, tokens.Module) || told.RetryAfter <= 0) {
			t.Errorf("what is answered: %+v; want a Retry-After and nothing of the token", told)
		}
	}
}

// settle waits until a key can be used.
func settle(t *testing.T, k *Key) {
	t.Helper()
	var err error
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); time.Sleep(100 * time.Millisecond) {
		if err = k.Ready(t.Context()); err == nil {
			return
		}
	}
	t.Fatalf("the key does not come back: %v", err)
}

// A key is found by its label, its id or both, in a token by label or serial
// number; and it is the one meant or none.
func TestFind(t *testing.T) {
	tokens.Add(t, "find")
	pin := pkcs11test.PINFile(t, pkcs11test.PIN)
	first := tokens.AddKey(t, "find", "ca", "01", elliptic.P256())
	second := tokens.AddKey(t, "find", "ca", "02", elliptic.P384())
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	tokens.Import(t, "find", "weak", "03", weak)
	uri := tokens.URI("find", "ca", pin)
	checkSigns(t, open(t, strings.Replace(uri, "?", ";id=%01?", 1), nil), first)
	checkSigns(t, open(t, strings.Replace(uri, "object=ca?", "id=%02?", 1), nil), second)
	checkSigns(t, open(t, uri, second), second)
	checkAway(t, open(t, uri, nil), "2 keys")
	checkAway(t, open(t, tokens.URI("find", "none", pin), nil), "no such private key")
	checkAway(t, open(t, tokens.URI("find", "weak", pin), nil), "no ECDSA key")
	checkAway(t, open(t, strings.Replace(uri, "?", ";id=%01?", 1), second), "not that of the certificate")
	checkAway(t, open(t, tokens.URI("none", "ca", pin), nil), "look whether it is there")
	checkAway(t, open(t, tokens.URI("find", "ca", pin+"x"), nil), "read the PIN")
	if _, err := Open(strings.Replace(uri, tokens.Module, "/none.so", 1), nil); err == nil {
		t.Error("a module that is not there was taken")
	}
}

// Many signatures at once share few sessions and are each right.
func TestManyAtOnce(t *testing.T) {
	tokens.Add(t, "many")
	public := tokens.AddKey(t, "many", "ca", "01", elliptic.P256())
	k := open(t, tokens.URI("many", "ca", pkcs11test.PINFile(t, pkcs11test.PIN)), nil)
	k.patience = time.Minute
	var wg sync.WaitGroup
	for i := range 16 * usesAtOnce {
		wg.Go(func() {
			d := digest(fmt.Sprint(i))
			sig, err := k.Sign(rand.Reader, d, crypto.SHA256)
			if err != nil || !ecdsa.VerifyASN1(public, d, sig) {
				t.Errorf("signature %d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

// A token that is taken away and put back is used again by itself.
func TestAwayAndBack(t *testing.T) {
	dir := tokens.Add(t, "away")
	public := tokens.AddKey(t, "away", "ca", "01", elliptic.P256())
	k := open(t, tokens.URI("away", "ca", pkcs11test.PINFile(t, pkcs11test.PIN)), nil)
	checkSigns(t, k, public)
	aside := filepath.Join(t.TempDir(), "token")
	if err := os.Rename(dir, aside); err != nil {
		t.Fatal(err)
	}
	checkAway(t, k, "look whether it is there")
	if err := os.Rename(aside, dir); err != nil {
		t.Fatal(err)
	}
	settle(t, k)
	checkSigns(t, k, public)
	// Let go, as a key that was replaced, it still serves whoever has it.
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	checkSigns(t, k, public)
}

// A refused PIN is told and not tried again before its file changes: tokens lock
// after a few wrong ones.
func TestRefusedPIN(t *testing.T) {
	tokens.Add(t, "pin")
	public := tokens.AddKey(t, "pin", "ca", "01", elliptic.P256())
	pin := pkcs11test.PINFile(t, "wrong-pin")
	k := open(t, tokens.URI("pin", "ca", pin), nil)
	checkAway(t, k, "refuse")
	// The token would take it now, which nobody may find out by trying.
	setPIN(t, "pin", "wrong-pin")
	k.opener.pause = 0
	checkAway(t, k, "not tried again")
	if err := os.WriteFile(pin, []byte("wrong-pin"), 0o600); err != nil {
		t.Fatal(err)
	}
	settle(t, k)
	checkSigns(t, k, public)
}

// The same package built without cgo, as in static programs, says so.
func TestWithoutCgo(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "test", "-v", "-run", "^TestWithout$", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestWithout") {
		t.Errorf("without cgo: %v\n%s", err, out)
	}
}

// setPIN sets a token's PIN as its security officer does. No key may be open
// meanwhile.
func setPIN(t *testing.T, label, pin string) {
	t.Helper()
	m := pkcs11.New(tokens.Module)
	defer m.Destroy()
	if err := m.Initialize(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Finalize() }() // the keys of the next tests would fail
	slots, err := m.GetSlotList(true)
	if err != nil {
		t.Fatal(err)
	}
	for _, slot := range slots {
		if info, err := m.GetTokenInfo(slot); err != nil || info.Label != label {
			continue
		}
		session, err := m.OpenSession(slot, pkcs11.CKF_SERIAL_SESSION|pkcs11.CKF_RW_SESSION)
		if err == nil {
			err = m.Login(session, pkcs11.CKU_SO, pkcs11test.SOPIN)
		}
		if err == nil {
			err = m.InitPIN(session, pin)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no token %s", label)
}

// A call that the module does not come back from holds nobody up: others are
// told within their patience, few calls are left with it, and all is well once
// it comes back.
func TestHang(t *testing.T) {
	tokens.Add(t, "hang")
	public := tokens.AddKey(t, "hang", "ca", "01", elliptic.P256())
	hang := filepath.Join(t.TempDir(), "hang")
	module := buildHanging(t, hang)
	k := open(t, strings.Replace(tokens.URI("hang", "ca", pkcs11test.PINFile(t, pkcs11test.PIN)), tokens.Module, module, 1), nil)
	checkSigns(t, k, public)
	if err := os.WriteFile(hang, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	k.patience = 50 * time.Millisecond
	for range usesAtOnce {
		checkAway(t, k, "does not answer")
	}
	checkAway(t, k, "wait for the token")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.Ready(ctx); fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Errorf("Ready of a caller that is gone: %v", err)
	}
	if err := os.Remove(hang); err != nil {
		t.Fatal(err)
	}
	k.patience = answerWithin
	settle(t, k)
	checkSigns(t, k, public)
}

// buildHanging makes a module that is SoftHSM, but signs only while a file is
// not there.
func buildHanging(t *testing.T, file string) string {
	t.Helper()
	include, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/miekg/pkcs11").Output()
	if err != nil {
		t.Fatal(err)
	}
	module := filepath.Join(t.TempDir(), "hanging.so")
	cmd := exec.Command("gcc", "-shared", "-fPIC", "-o", module, "-I", strings.TrimSpace(string(include)),
		"-DREAL=\""+tokens.Module+"\"", "-DWHILE=\""+file+"\"", "testdata/hanging.c")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return module
}
