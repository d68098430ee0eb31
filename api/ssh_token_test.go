package api_test

import (
	"crypto/elliptic"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bettercompute/compute/api"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/identity/pkcs11"
	"github.com/bettercompute/compute/identity/pkcs11/pkcs11test"
)

// The SSH CA may lie in a token, also in one that is away when the API starts:
// issuing is UNAVAILABLE and costs nothing, /readyz tells, all else goes on, and
// it works once the token is there.
func TestSSHCAInToken(t *testing.T) {
	tokens := pkcs11test.New(t)
	dir := tokens.Add(t, "ssh")
	public := sshKey(t, tokens.AddKey(t, "ssh", "ca", "01", elliptic.P256()))
	key, err := pkcs11.Open(tokens.URI("ssh", "ca", pkcs11test.PINFile(t, pkcs11test.PIN)), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = key.Close() }) // other tests need the module anew
	aside := filepath.Join(t.TempDir(), "token")
	if err := os.Rename(dir, aside); err != nil {
		t.Fatal(err)
	}
	r := newSSHRig(t, api.SSHOptions{})
	_, r.url = r.serveWith(api.Options{CallsPerSecond: 1e6, SSH: api.SSHOptions{CA: key, PerHour: 1}})
	degraded := func() bool {
		t.Helper()
		status, body := r.get("/readyz")
		var ready struct{ Degraded []string }
		if err := json.Unmarshal(body, &ready); err != nil || status != http.StatusOK {
			t.Fatalf("/readyz: %d %s", status, body)
		}
		return strings.Contains(strings.Join(ready.Degraded, ";"), "no SSH certificates are issued")
	}
	if !degraded() {
		t.Error("/readyz does not tell that the CA's key is away")
	}
	r.refused("oncall", "nodes/issueSshCert", r.ask(), fleet.CodeUnavailable, fleet.ReasonCAKey)
	r.ok("oncall", "nodes/listSshCerts", on(r.node), nil)

	if err := os.Rename(aside, dir); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(time.Minute); degraded(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("the key did not come back")
		}
	}
	issued := r.issue() // the one that an hour admits: the refused ones did not count
	c := r.certificate(issued.Certificate)
	check := ssh.CertChecker{IsUserAuthority: func(k ssh.PublicKey) bool { return line(k) == line(public) }}
	if err := check.CheckCert("root@"+r.node, c); err != nil || line(c.SignatureKey) != line(public) {
		t.Errorf("the certificate: %v, of CA %s", err, line(c.SignatureKey))
	}
	file := filepath.Join(t.TempDir(), "cert.pub")
	if err := os.WriteFile(file, []byte(issued.Certificate+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-L", "-f", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ECDSA "+ssh.FingerprintSHA256(public)) {
		t.Errorf("ssh-keygen -L: %v\n%s", err, out)
	}
	if err := identity.KeyReady(t.Context(), key); err != nil {
		t.Error(err)
	}
}
