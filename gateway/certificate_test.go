package gateway_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/identity"
)

// asMachine asks the TLS listener with a certificate.
func (r *rig) asMachine(cert *tls.Certificate, path, epoch string, body any) (int, map[string]any) {
	r.t.Helper()
	return r.asMachineAt(r.GatewayURL, cert, path, epoch, body)
}

// asMachineAt asks one of several gateways.
func (r *rig) asMachineAt(gateway string, cert *tls.Certificate, path, epoch string, body any) (int, map[string]any) {
	r.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		r.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, gateway+path, strings.NewReader(string(b)))
	if err != nil {
		r.t.Fatal(err)
	}
	if epoch != "" {
		req.Header.Set("Compute-Session-Epoch", epoch)
	}
	pinned := identity.PinnedTLS(r.ca.Fingerprint(), "127.0.0.1")
	if cert != nil {
		pinned.Certificates = []tls.Certificate{*cert}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: pinned, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	var out map[string]any
	_ = json.NewDecoder(resp.Body).Decode(&out) // a 204 has no body
	return resp.StatusCode, out
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func csrOf(t *testing.T, key *ecdsa.PrivateKey) string {
	t.Helper()
	b, err := identity.NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// certOf reads a PEM chain with its key.
func certOf(t *testing.T, chain string, key *ecdsa.PrivateKey) *tls.Certificate {
	t.Helper()
	c := &tls.Certificate{PrivateKey: key}
	for block, rest := pem.Decode([]byte(chain)); block != nil; block, rest = pem.Decode(rest) {
		c.Certificate = append(c.Certificate, block.Bytes)
	}
	var err error
	if c.Leaf, err = x509.ParseCertificate(c.Certificate[0]); err != nil {
		t.Fatal(err)
	}
	return c
}

// rawJoin joins with a request made by hand.
func (r *rig) rawJoin(key *ecdsa.PrivateKey, uuid, token string) (*tls.Certificate, string) {
	r.t.Helper()
	status, out := r.asMachine(nil, "/node/v1/join", "", map[string]any{"token": token, "csr": csrOf(r.t, key), "hardware": map[string]any{"uuid": uuid}})
	if status != http.StatusOK {
		r.t.Fatalf("join: %d %v", status, out)
	}
	node, _ := out["nodeId"].(string)
	chain, _ := out["certificate"].(string)
	return certOf(r.t, chain, key), node
}

// The attacks on certificates: each is refused, and the certificate's own holder
// is served.
func TestCertificateAttacks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	key := newKey(t)
	cert, node := r.rawJoin(key, "4c4c4544-0051-3910-8053-b4c04f4e3934", r.joinToken(1))
	otherCert, otherNode := r.rawJoin(newKey(t), "4c4c4544-0051-3910-8053-b4c04f4e3935", r.joinToken(1))
	issue := func(issuer *identity.Issuer, g identity.Grant, k *ecdsa.PrivateKey) *tls.Certificate {
		g.At, g.NotAfter = time.Now(), time.Now().Add(time.Hour)
		chain, err := issuer.Issue(k.Public(), g)
		if err != nil {
			t.Fatal(err)
		}
		return certOf(t, string(chain), k)
	}
	foreignCA, err := identity.NewCA("foreign")
	if err != nil {
		t.Fatal(err)
	}
	between, err := foreignCA.NewIntermediate("foreign nodes")
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := identity.NewIssuer(between, foreignCA.Cert, "compute.example")
	if err != nil {
		t.Fatal(err)
	}
	serial := cert.Leaf.SerialNumber.Text(16)
	server, err := r.ca.NewServer("127.0.0.1").Certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cert *tls.Certificate
		want int
	}{
		"its own":           {cert, 200},
		"none":              {nil, 401},
		"of another CA":     {issue(foreign, identity.Grant{NodeID: node, Generation: 1, Serial: serial}, key), 401},
		"the gateway's own": {server, 401},
		// With the node's own key it is one that the database has forgotten.
		"never recorded, another key":    {issue(r.issuer, identity.Grant{NodeID: node, Generation: 1, Serial: "abc"}, newKey(t)), 401},
		"another node's id, own serial":  {issue(r.issuer, identity.Grant{NodeID: otherNode, Generation: 1, Serial: serial}, key), 401},
		"own id and serial, another key": {issue(r.issuer, identity.Grant{NodeID: node, Generation: 1, Serial: serial}, newKey(t)), 401},
		"another generation":             {issue(r.issuer, identity.Grant{NodeID: node, Generation: 2, Serial: serial}, key), 401},
	} {
		r.sessionAt(r.GatewayURL, cert) // to be taken over
		for _, path := range []string{"/node/v1/session", "/node/v1/renew"} {
			body := map[string]any{}
			if path == "/node/v1/renew" {
				body["csr"] = csrOf(t, key)
			}
			if status, out := r.asMachine(c.cert, path, "", body); status != c.want {
				t.Errorf("%s on %s: %d %v, want %d", name, path, status, out, c.want)
			}
		}
	}
	// Renewal with another key, or with somebody's certificate and one's own key.
	if status, _ := r.asMachine(cert, "/node/v1/renew", "", map[string]any{"csr": csrOf(t, newKey(t))}); status != http.StatusForbidden {
		t.Errorf("renewal for another key: %d, want 403", status)
	}
	// A session belongs to the certificate that opened it, and to its own epoch.
	former, epoch := r.sessionAt(r.GatewayURL, cert), r.sessionAt(r.GatewayURL, cert)
	status, out := r.asMachine(cert, "/node/v1/renew", "", map[string]any{"csr": csrOf(t, key)})
	if status != http.StatusOK {
		t.Fatalf("renew: %d %v", status, out)
	}
	renewed := certOf(t, fmt.Sprint(out["certificate"]), key)
	for name, c := range map[string]struct {
		cert  *tls.Certificate
		epoch string
		want  int
	}{
		"its own":              {cert, epoch, http.StatusNoContent},
		"a former epoch":       {cert, former, http.StatusConflict},
		"the next certificate": {renewed, epoch, http.StatusConflict},
		"another node":         {otherCert, epoch, http.StatusConflict},
		"no certificate":       {nil, epoch, http.StatusUnauthorized},
		"no epoch":             {cert, "", http.StatusBadRequest},
		"an epoch yet to come": {cert, epoch + "0", http.StatusConflict},
	} {
		if status, out := r.asMachine(c.cert, "/node/v1/session/next", c.epoch, map[string]any{"spec": 1 << 40}); status != c.want {
			t.Errorf("a session, %s: %d %v, want %d", name, status, out, c.want)
		}
	}
	// A session of another node's epoch.
	if status, out := r.asMachine(otherCert, "/node/v1/session/next", "1", map[string]any{}); status != http.StatusConflict {
		t.Errorf("no session opened: %d %v, want 409", status, out)
	}
}

// Expiry is the database's clock's to say; an expired certificate renews within
// grace and does nothing else; an old generation does nothing.
func TestExpiredAndOld(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	key := newKey(t)
	cert, node := r.rawJoin(key, "4c4c4544-0051-3910-8053-b4c04f4e3934", r.joinToken(1))
	ask := func(path string) int {
		status, _ := r.asMachine(cert, path, "1", map[string]any{"csr": csrOf(t, key)})
		return status
	}
	if got := ask("/node/v1/session"); got != 200 {
		t.Fatalf("fresh: %d", got)
	}
	age := func(interval string) {
		if _, err := r.Pool().Exec(t.Context(), `UPDATE certificates SET not_after = now() - $1::interval WHERE node_id = $2`, interval, node); err != nil {
			t.Fatal(err)
		}
	}
	age("1 second")
	await(t, "the end of the session whose certificate expired", func() bool { return ask("/node/v1/session/next") == 409 })
	for path, want := range map[string]int{"/node/v1/session": 401, "/node/v1/renew": 200} {
		if got := ask(path); got != want {
			t.Errorf("expired within grace on %s: %d, want %d", path, got, want)
		}
	}
	for past, want := range map[string]int{"29 days 23:00": 200, "30 days 00:00:01": 401, "31 days": 401} {
		age(past)
		if got := ask("/node/v1/renew"); got != want {
			t.Errorf("expired %s ago: %d, want %d", past, got, want)
		}
	}
	age("-1 hour")
	// Each alone ends what the machine may do: an old generation, and a revocation.
	for name, sql := range map[string][2]string{
		"an old generation": {`UPDATE nodes SET identity_generation = identity_generation + 1 WHERE id = $1`, `UPDATE nodes SET identity_generation = identity_generation - 1 WHERE id = $1`},
		"revoked":           {`UPDATE certificates SET revoked_at = now() WHERE node_id = $1`, `UPDATE certificates SET revoked_at = NULL WHERE node_id = $1`},
	} {
		epoch := r.sessionAt(r.GatewayURL, cert)
		r.exec(sql[0], node)
		await(t, "the end of the session: "+name, func() bool {
			status, _ := r.asMachine(cert, "/node/v1/session/next", epoch, map[string]any{"spec": 1 << 40})
			return status == http.StatusConflict
		})
		for _, path := range []string{"/node/v1/session", "/node/v1/renew"} {
			if got := ask(path); got != 401 {
				t.Errorf("%s on %s: %d, want 401", name, path, got)
			}
		}
		r.exec(sql[1], node)
	}
	r.revoke(node)
	for _, path := range []string{"/node/v1/session", "/node/v1/renew"} {
		if got := ask(path); got != 401 {
			t.Errorf("revoked on %s: %d, want 401", path, got)
		}
	}
}

// The attacks on joining: requests that are none, and one that was heard and is
// sent again.
func TestJoinAttacks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	token := r.joinToken(5)
	key := newKey(t)
	body := map[string]any{"token": token, "csr": csrOf(t, key), "hardware": map[string]any{"uuid": "4c4c4544-0051-3910-8053-b4c04f4e3934"}}
	status, out := r.asMachine(nil, "/node/v1/join", "", body)
	if status != 200 {
		t.Fatalf("join: %d %v", status, out)
	}
	chain, _ := out["certificate"].(string)
	if status, _ := r.asMachine(certOf(t, chain, key), "/node/v1/session", "", map[string]any{}); status != 200 {
		t.Fatalf("session: %d", status)
	}
	if status, out := r.asMachine(nil, "/node/v1/join", "", body); status != 409 || out["reason"] != fleet.ReasonHasIdentity {
		t.Errorf("the join sent again: %d %v, want 409", status, out)
	}
	template := &x509.CertificateRequest{DNSNames: []string{"node_x"}}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	named := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	for name, c := range map[string]struct {
		body map[string]any
		want int
	}{
		"a CSR that asks for a name": {map[string]any{"token": token, "csr": named}, 400},
		"no CSR":                     {map[string]any{"token": token}, 400},
		"a bad token":                {map[string]any{"token": "x", "csr": csrOf(t, newKey(t))}, 403},
	} {
		if status, out := r.asMachine(nil, "/node/v1/join", "", c.body); status != c.want {
			t.Errorf("%s: %d %v, want %d", name, status, out, c.want)
		}
	}
	var nodes int
	if err := r.Pool().QueryRow(t.Context(), `SELECT count(*) FROM nodes WHERE provision_state = 'adopting'`).Scan(&nodes); err != nil {
		t.Fatal(err)
	}
	if nodes != 1 {
		t.Errorf("%d nodes joined, want 1", nodes)
	}
}
