package gateway_test

import (
	"crypto"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/gateway"
	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/identity/pkcs11"
	"github.com/bettercompute/compute/identity/pkcs11/pkcs11test"
)

// tokenCA is a CA of nodes whose key lies in a token.
type tokenCA struct {
	*pkcs11test.Tokens
	t         *testing.T
	root      *identity.CA
	token     string // the folder of SoftHSM's token
	pin       string
	cert, key string
	issuer    *identity.Issuer
}

func newTokenCA(t *testing.T) *tokenCA {
	t.Helper()
	dir := t.TempDir()
	c := &tokenCA{Tokens: pkcs11test.New(t), t: t, pin: pkcs11test.PINFile(t, pkcs11test.PIN), cert: filepath.Join(dir, "node-ca.pem"), key: filepath.Join(dir, "node-ca-key.pem")}
	c.token = c.Add(t, "nodes")
	return c
}

func openToken(uri string, of crypto.PublicKey) (identity.RemoteKey, error) {
	return pkcs11.Open(uri, of)
}

// certify makes the CA of a fresh key of the token.
func (c *tokenCA) certify(object, id string) {
	c.t.Helper()
	c.AddKey(c.t, "nodes", object, id, elliptic.P256())
	if err := c.root.CertifyNodeCA(c.t.Context(), c.cert, c.key, c.URI("nodes", object, c.pin), openToken); err != nil {
		c.t.Fatal(err)
	}
}

// use makes a gateway's CA of nodes this one.
func (c *tokenCA) use(cfg *gateway.Config) {
	c.root = cfg.CA
	c.certify("first", "01")
	var err error
	if c.issuer, err = identity.OpenIssuer(c.cert, c.key, cfg.CA.Cert, "compute.example", openToken); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = c.issuer.CA().Signer.(identity.RemoteKey).Close() }) // other tests need the module anew
	cfg.Nodes = c.issuer
}

// verify has openssl check the certificate of a machine that joined.
func (c *tokenCA) verify(state agent.State) {
	c.t.Helper()
	root := filepath.Join(c.t.TempDir(), "root.pem")
	if err := os.WriteFile(root, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.root.Cert.Raw}), 0o600); err != nil {
		c.t.Fatal(err)
	}
	leaf := filepath.Join(state.Dir, "cert.pem")
	if out, err := exec.CommandContext(c.t.Context(), "openssl", "verify", "-purpose", "sslclient", "-CAfile", root, "-untrusted", leaf, leaf).CombinedOutput(); err != nil {
		c.t.Errorf("openssl verify: %v\n%s", err, out)
	}
}

// degraded waits until /readyz tells what is degraded, or that nothing is.
func (r *rig) degraded(want string) {
	r.t.Helper()
	var body []byte
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); time.Sleep(100 * time.Millisecond) {
		resp, err := http.Get(r.BootURL + "/readyz")
		if err != nil {
			r.t.Fatal(err)
		}
		if body, err = io.ReadAll(resp.Body); err != nil {
			r.t.Fatal(err)
		}
		resp.Body.Close()
		var ready struct{ Degraded []string }
		if err := json.Unmarshal(body, &ready); err != nil || resp.StatusCode != http.StatusOK {
			r.t.Fatalf("/readyz: %d %s", resp.StatusCode, body)
		}
		if all := strings.Join(ready.Degraded, "; "); all == want || want != "" && strings.Contains(all, want) {
			return
		}
	}
	r.t.Fatalf("/readyz: %s; want degraded %q", body, want)
}

// The CA of nodes may lie in a token. While that is away a join is answered
// UNAVAILABLE and spends nothing, sessions go on, and /readyz tells; the machine
// that goes on asking is in when the token is back. The key is replaced under
// the running gateway.
func TestNodeCAInToken(t *testing.T) {
	c := newTokenCA(t)
	r := newRig(t, c.use)
	state, _ := r.joined(&memberHost{uuid: "4c4c4544-0000-4a10-8010-b4c04f000001"})
	c.verify(state)
	r.degraded("")

	aside := filepath.Join(t.TempDir(), "token")
	if err := os.Rename(c.token, aside); err != nil {
		t.Fatal(err)
	}
	second := &memberHost{uuid: "4c4c4544-0000-4a10-8010-b4c04f000002", macs: []string{"00:1b:21:00:00:02"}}
	state = agent.State{Dir: t.TempDir()}
	joined := make(chan error, 1)
	token := r.joinToken(1)
	go func() {
		_, err := agent.Join(t.Context(), agent.JoinConfig{GatewayURL: r.GatewayURL, CAFingerprint: r.ca.Fingerprint(), Token: token, State: state,
			Log: r.slog(), RetryPause: 10 * time.Millisecond}, second)
		joined <- err
	}()
	r.degraded("no machine can join")
	for limit := time.Now().Add(time.Minute); !strings.Contains(r.log.String(), "certificate not signed"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("no join was answered without the token")
		}
	}
	select {
	case err := <-joined:
		t.Fatalf("the join ended without the token: %v", err)
	default:
	}
	if err := os.Rename(aside, c.token); err != nil {
		t.Fatal(err)
	}
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	c.verify(state)
	r.degraded("")

	c.certify("second", "02")
	old := c.issuer.CA().Cert
	for limit := time.Now().Add(time.Minute); c.issuer.CA().Cert.Equal(old); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("the gateway did not take up the new key")
		}
	}
	state, _ = r.joined(&memberHost{uuid: "4c4c4544-0000-4a10-8010-b4c04f000003", macs: []string{"00:1b:21:00:00:03"}})
	c.verify(state)
	if issued := readCert(t, state); issued.CheckSignatureFrom(c.issuer.CA().Cert) != nil {
		t.Error("the certificate is not of the new CA of nodes")
	}
}

func readCert(t *testing.T, state agent.State) *x509.Certificate {
	t.Helper()
	cert, err := identity.LoadCert(filepath.Join(state.Dir, "cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
