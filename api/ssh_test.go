package api_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bettercompute/compute/api"
	"github.com/bettercompute/compute/devidp"
	"github.com/bettercompute/compute/fleet"
)

// sshRig is a rig with an SSH CA and a node; dev:oncall holds break-glass in acme
// and has a session with a second factor.
type sshRig struct {
	*rig
	srv    *api.Server
	ca     ed25519.PrivateKey
	caKey  ssh.PublicKey
	signer ssh.Signer // of the key that certificates are asked for
	key    string
	node   string
}

func newSSHRig(t *testing.T, o api.SSHOptions) *sshRig {
	t.Helper()
	r := &sshRig{rig: newRig(t)}
	var public ed25519.PublicKey
	var err error
	if public, r.ca, err = ed25519.GenerateKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	r.caKey = sshKey(t, public)
	o.CA = r.ca
	r.srv, r.url = r.serveWith(api.Options{CallsPerSecond: 1e6, SSH: o})
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if r.signer, err = ssh.NewSignerFromSigner(private); err != nil {
		t.Fatal(err)
	}
	r.key = line(r.signer.PublicKey())
	r.grant("acme", "oncall", fleet.RoleBreakGlass)
	r.session("oncall", devidp.Token{MFA: true, TTL: 8 * time.Hour})
	r.node = r.enrolled("127.0.0.31", fleet.Adopted).ID
	return r
}

// session gives a subject another session than the usual one.
func (r *rig) session(subject string, token devidp.Token) {
	r.t.Helper()
	token.Subject = subject
	text, err := r.issuer.Mint(token)
	if err != nil {
		r.t.Fatal(err)
	}
	if r.tokens == nil {
		r.tokens = map[string]string{}
	}
	r.tokens[subject] = text
}

func sshKey(t *testing.T, public any) ssh.PublicKey {
	t.Helper()
	k, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func line(k ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k))) }

func (r *sshRig) ask(more ...any) obj {
	return on(r.node, append([]any{"publicKey", r.key}, more...)...)
}

func (r *sshRig) issue(more ...any) fleet.IssuedSSHCertOut {
	r.t.Helper()
	var out fleet.IssuedSSHCertOut
	r.ok("oncall", "nodes/issueSshCert", r.ask(more...), &out)
	return out
}

func (r *sshRig) certificate(text string) *ssh.Certificate {
	r.t.Helper()
	k, comment, options, rest, err := ssh.ParseAuthorizedKey([]byte(text))
	if err != nil || comment != "" || len(options) > 0 || len(rest) > 0 {
		r.t.Fatalf("certificate %q: %v", text, err)
	}
	c, ok := k.(*ssh.Certificate)
	if !ok {
		r.t.Fatalf("%q is no certificate", text)
	}
	return c
}

// A certificate is a user's, for one account on one node, with a life that was
// asked for, signed by the CA; the record, event and audit row name its serial.
func TestIssueSSHCert(t *testing.T) {
	t.Parallel()
	r := newSSHRig(t, api.SSHOptions{Accounts: []string{"root", "ops"}})
	r.logger = slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	_, r.url = r.serveWith(api.Options{CallsPerSecond: 1e6, SSH: api.SSHOptions{CA: r.ca, Accounts: []string{"root", "ops"}}})
	before := time.Now()
	out := r.issue("principal", "ops", "ttlSeconds", 600)
	c := r.certificate(out.Certificate)
	if c.CertType != ssh.UserCert || len(c.ValidPrincipals) != 1 || c.ValidPrincipals[0] != "ops@"+r.node || line(c.SignatureKey) != line(r.caKey) {
		t.Errorf("certificate %+v", c)
	}
	if len(c.CriticalOptions) != 0 || len(c.Extensions) != 1 {
		t.Errorf("options %v, extensions %v; want only permit-pty", c.CriticalOptions, c.Extensions)
	}
	if line(c.Key) != r.key || !strings.HasPrefix(c.KeyId, "dev:oncall req_") {
		t.Errorf("key %s, key id %q", line(c.Key), c.KeyId)
	}
	hosts := &ssh.CertChecker{IsHostAuthority: func(k ssh.PublicKey, _ string) bool { return line(k) == line(r.caKey) }}
	for _, address := range []string{"ops@" + r.node + ":22", r.node + ":22"} {
		if err := hosts.CheckHostKey(address, nil, c); err == nil {
			t.Errorf("who trusts the CA takes it for the host certificate of %s", address)
		}
	}
	end := time.Unix(int64(c.ValidBefore), 0)
	if life := end.Sub(before); life < 598*time.Second || life > 10*time.Minute+time.Minute {
		t.Errorf("it ends %s from now, want ttlSeconds", life)
	}
	s := out.SSHCert
	if !s.ValidBefore.Equal(end) || s.ValidAfter.Unix() != int64(c.ValidAfter) || s.State != fleet.SSHCertActive || s.Principal != "ops@"+r.node || s.IssuedBy != "dev:oncall" {
		t.Errorf("record %+v", s)
	}
	if !strings.Contains(out.Note, "ends no session") {
		t.Errorf("note %q", out.Note)
	}
	var page fleet.SSHCertsPage
	r.ok("oncall", "nodes/listSshCerts", on(r.node), &page)
	if len(page.Items) != 1 || page.Items[0] != s {
		t.Errorf("listed %+v, want %+v", page.Items, s)
	}
	if n := r.count(`SELECT count(*) FROM audit WHERE method = 'nodes/issueSshCert' AND outcome = 'OK' AND node_id = $1 AND resource = $2`, r.node, "ssh-cert/"+s.Serial); n != 1 {
		t.Errorf("%d audit rows", n)
	}
	everything := r.text(`SELECT coalesce(string_agg(ssh_certs::text, ' '), '') || (SELECT string_agg(events::text, ' ') FROM events) || (SELECT string_agg(audit::text, ' ') FROM audit) FROM ssh_certs`)
	for name, secret := range map[string]string{"certificate": base64.StdEncoding.EncodeToString(c.Marshal()), "public key": strings.Fields(r.key)[1]} {
		for where, text := range map[string]string{"records": everything, "log": r.log.String(), "list": fmt.Sprint(page)} {
			if text == "" || strings.Contains(text, secret) {
				t.Errorf("the %s is in the %s", name, where)
			}
		}
	}
}

// A fresh certificate is good on hosts whose clocks are behind by less than the
// back-date, and no longer than it was asked for.
func TestSSHCertClocks(t *testing.T) {
	t.Parallel()
	const backdate = 4 * time.Minute
	r := newSSHRig(t, api.SSHOptions{Backdate: backdate})
	for _, ttl := range []time.Duration{0, time.Minute, time.Hour} {
		var more []any
		if ttl != 0 {
			more = []any{"ttlSeconds", ttl / time.Second}
		}
		out := r.issue(more...)
		if ttl == 0 {
			ttl = 15 * time.Minute
		}
		c := r.certificate(out.Certificate)
		// The end is that of the moment of issuing, in whole seconds.
		issued := out.SSHCert.ValidBefore.Add(-ttl)
		for off, good := range map[time.Duration]bool{
			-time.Second: true, -30 * time.Second: true, -(backdate - time.Second): true, -(backdate + 2*time.Second): false,
			0: true, ttl - time.Second: true, ttl + time.Second: false,
		} {
			checker := &ssh.CertChecker{Clock: func() time.Time { return issued.Add(off) },
				IsUserAuthority: func(k ssh.PublicKey) bool { return line(k) == line(r.caKey) }}
			if err := checker.CheckCert("root@"+r.node, c); (err == nil) != good {
				t.Errorf("life %s, the host's clock off by %s: %v, want good %v", ttl, off, err, good)
			}
		}
	}
}

// A certificate never outlives the session that it was issued to.
func TestSSHCertEndsWithTheSession(t *testing.T) {
	t.Parallel()
	r := newSSHRig(t, api.SSHOptions{})
	r.session("oncall", devidp.Token{MFA: true, TTL: 5 * time.Minute})
	latest := time.Now().Add(5 * time.Minute)
	if out := r.issue("ttlSeconds", 3600); out.SSHCert.ValidBefore.After(latest) {
		t.Errorf("it ends %s, the session %s", out.SSHCert.ValidBefore, latest)
	}
}

// keysToRefuse are texts that are no key to certify.
func keysToRefuse(t *testing.T, good string) map[string]string {
	t.Helper()
	weak, err := rsa.GenerateKey(rand.Reader, 3072)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	wire := func(kind string, parts ...[]byte) string {
		blob := ssh.Marshal(struct {
			Kind string
			Rest []byte `ssh:"rest"`
		}{kind, nil})
		for _, p := range parts {
			blob = append(blob, ssh.Marshal(struct{ P []byte }{p})...)
		}
		return kind + " " + base64.StdEncoding.EncodeToString(blob)
	}
	p521, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	stray := []byte(line(sshKey(t, &p256.PublicKey))) // ends in =, so that the character before has bits to spare
	stray[len(stray)-2]++
	body := strings.Fields(good)[1]
	point := make([]byte, 32)
	identity := append([]byte{1}, point[1:]...)
	signed := append([]byte{1}, point[1:]...)
	signed[31] |= 0x80
	return map[string]string{
		"nothing":                      "",
		"RSA":                          line(sshKey(t, &weak.PublicKey)),
		"P-384":                        line(sshKey(t, &p384.PublicKey)),
		"P-521":                        line(sshKey(t, &p521.PublicKey)),
		"DSA":                          wire("ssh-dss", []byte{1}, []byte{1}, []byte{1}, []byte{1}),
		"a security key":               wire("sk-ssh-ed25519@openssh.com", point, []byte("ssh:")),
		"a security key, P-256":        wire("sk-ecdsa-sha2-nistp256@openssh.com", []byte("nistp256"), append([]byte{4}, make([]byte, 64)...), []byte("ssh:")),
		"a security key by Ed25519":    "ssh-ed25519 " + strings.Fields(wire("sk-ssh-ed25519@openssh.com", point, []byte("ssh:")))[1],
		"options":                      `command="id" ` + good,
		"an option before it":          "no-pty " + good,
		"a second line":                good + "\n" + good,
		"a line break at the end":      good + "\n",
		"a carriage return":            good + "\r",
		"CR LF":                        good + "\r\n",
		"a NUL":                        good + "\x00",
		"a NUL in its comment":         good + " a\x00b",
		"a form feed":                  good + " a\f",
		"a line separator":             good + " a\u2028b",
		"a paragraph separator":        good + " a\u2029b",
		"a delete":                     good + " a\x7f",
		"a line break in its base64":   "ssh-ed25519 " + body[:20] + "\n" + body[20:],
		"a line break in its comment":  good + " a\nssh-rsa AAAA",
		"a NEL in its comment":         good + " a\u0085cert-authority",
		"a tab":                        strings.Replace(good, " ", "\t", 1),
		"a blank before it":            " " + good,
		"two blanks":                   strings.Replace(good, " ", "  ", 1),
		"a comment line":               "# " + good,
		"another type than its own":    "ecdsa-sha2-nistp256 " + body,
		"a certificate's type":         "ssh-ed25519-cert-v01@openssh.com " + body,
		"bytes after the key":          wire("ssh-ed25519", point, []byte("more")),
		"a short key":                  wire("ssh-ed25519", point[1:]),
		"base64 cut":                   "ssh-ed25519 " + body[:20],
		"base64 with stray bits":       string(stray),
		"base64 with another sign":     "ssh-ed25519 " + body[:len(body)-1] + "!",
		"a point that signs for all":   wire("ssh-ed25519", identity),
		"the same with the sign bit":   wire("ssh-ed25519", signed),
		"the zero point":               wire("ssh-ed25519", point),
		"a point off the curve":        wire("ecdsa-sha2-nistp256", []byte("nistp256"), append([]byte{4}, make([]byte, 64)...)),
		"P-256 by name, P-384 in fact": strings.Replace(line(sshKey(t, &p384.PublicKey)), "nistp384", "nistp256", 1),
	}
}

// Only Ed25519 and ECDSA P-256 keys are certified, and nothing travels with them.
func TestSSHKeysRefused(t *testing.T) {
	t.Parallel()
	r := newSSHRig(t, api.SSHOptions{})
	keys := keysToRefuse(t, r.key)
	issued := r.issue().Certificate
	keys["a certificate"], keys["a certificate by its key's type"] = issued, "ssh-ed25519 "+strings.Fields(issued)[1]
	r.exec(`DELETE FROM ssh_certs`)
	for name, key := range keys {
		p := r.call("oncall", "nodes/issueSshCert", r.ask("publicKey", key), nil)
		if p == nil || p.Code != fleet.CodeInvalidInput || len(p.Fields) != 1 || p.Fields[0].Field != "publicKey" {
			t.Errorf("%s: %+v, want INVALID_INPUT of publicKey", name, p)
		}
	}
	if n := r.count(`SELECT count(*) FROM ssh_certs`); n != 0 {
		t.Errorf("%d certificates were recorded", n)
	}
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{line(sshKey(t, &p256.PublicKey)), r.key, r.key + " ann@laptop", r.key + " ann's key, no-pty"} {
		out := r.issue("publicKey", key)
		if c := r.certificate(out.Certificate); !strings.HasPrefix(key, line(c.Key)) || strings.Contains(c.KeyId, "ann") {
			t.Errorf("%s was certified as %s (%s)", key, line(c.Key), c.KeyId)
		}
	}
}

// What issueSshCert refuses, and that it leaves no record then.
func TestIssueSSHCertRefused(t *testing.T) {
	t.Parallel()
	r := newSSHRig(t, api.SSHOptions{Accounts: []string{"root", "ops"}})
	r.grant("acme", "tired", fleet.RoleBreakGlass)
	r.grant("acme", "single", fleet.RoleBreakGlass)
	r.session("tired", devidp.Token{MFA: true, TTL: 50 * time.Second})
	for _, who := range []string{"owner", "viewer", "operator", "owner2"} {
		r.session(who, devidp.Token{MFA: true, TTL: time.Hour})
	}
	for name, c := range map[string]struct {
		who    string
		in     obj
		want   fleet.Code
		reason string
	}{
		"no second factor":        {"single", r.ask(), fleet.CodeAccessDenied, "mfa-required"},
		"a session about to end":  {"tired", r.ask(), fleet.CodeAccessDenied, "session-ending"},
		"the tenant's owner":      {"owner", r.ask(), fleet.CodeAccessDenied, "not-permitted"},
		"a viewer":                {"viewer", r.ask(), fleet.CodeAccessDenied, "not-permitted"},
		"an operator":             {"operator", r.ask(), fleet.CodeAccessDenied, "not-permitted"},
		"another tenant's node":   {"owner2", r.ask("tenantId", "globex"), fleet.CodeNotFound, ""},
		"no such node":            {"oncall", r.ask("nodeId", "node_"+strings.Repeat("u", 26)), fleet.CodeNotFound, ""},
		"an account not set up":   {"oncall", r.ask("principal", "postgres"), fleet.CodeInvalidInput, ""},
		"an empty principal":      {"oncall", r.ask("principal", ""), fleet.CodeInvalidInput, ""},
		"a blank principal":       {"oncall", r.ask("principal", " "), fleet.CodeInvalidInput, ""},
		"two principals":          {"oncall", r.ask("principal", "root,ops"), fleet.CodeInvalidInput, ""},
		"a principal with a node": {"oncall", r.ask("principal", "root@"+r.node), fleet.CodeInvalidInput, ""},
		"too short a life":        {"oncall", r.ask("ttlSeconds", 59), fleet.CodeInvalidInput, ""},
		"too long a life":         {"oncall", r.ask("ttlSeconds", 3601), fleet.CodeInvalidInput, ""},
		"a version":               {"oncall", r.ask("version", 1), fleet.CodeInvalidInput, ""},
		"a long node id":          {"oncall", r.ask("nodeId", "node_"+strings.Repeat("0", 53)), fleet.CodeInvalidInput, ""},
	} {
		if p := r.call(c.who, "nodes/issueSshCert", c.in, nil); p == nil || p.Code != c.want || p.Reason != c.reason {
			t.Errorf("%s: %+v, want %s (%s)", name, p, c.want, c.reason)
		}
	}
	if n := r.count(`SELECT count(*) FROM ssh_certs`); n != 0 {
		t.Errorf("%d certificates were recorded", n)
	}
	// Every field that is wrong is named at once.
	p := r.call("oncall", "nodes/issueSshCert", r.ask("publicKey", "ssh-rsa AAAA", "ttlSeconds", 5, "principal", "Root"), nil)
	if p == nil || len(p.Fields) != 3 {
		t.Errorf("three faults: %+v", p)
	}
}

// Without a CA, or with one that was distrusted, nothing is issued; what was
// issued can be listed and revoked.
func TestSSHWithoutCA(t *testing.T) {
	t.Parallel()
	r := newSSHRig(t, api.SSHOptions{})
	out := r.issue()
	with := r.url
	_, r.url = r.serveWith(api.Options{CallsPerSecond: 1e6})
	r.refused("oncall", "nodes/issueSshCert", r.ask(), fleet.CodeUnsupported, "no-ssh-ca")
	var page fleet.SSHCertsPage
	r.ok("oncall", "nodes/listSshCerts", on(r.node), &page)
	if len(page.Items) != 1 {
		t.Errorf("listed %+v", page)
	}
	r.ok("oncall", "nodes/revokeSshCert", on(r.node, "serial", out.SSHCert.Serial), nil)
	r.url = with
	if err := r.store.DistrustSSHCA(t.Context(), line(r.caKey)); err != nil {
		t.Fatal(err)
	}
	r.refused("oncall", "nodes/issueSshCert", r.ask(), fleet.CodeUnsupported, "ssh-ca-distrusted")
	// A wrong input is named before, and a stranger is sent away before.
	r.refused("oncall", "nodes/issueSshCert", r.ask("ttlSeconds", 1), fleet.CodeInvalidInput, "")
	r.refused("stranger", "nodes/issueSshCert", r.ask(), fleet.CodeAccessDenied, "no-role")
	r.refused("oncall", "nodes/issueSshCert", r.ask("nodeId", absentNode), fleet.CodeUnsupported, "ssh-ca-distrusted")
}

// MFA is asked for unless it is switched off, and /readyz shows which.
func TestSSHRequireMFA(t *testing.T) {
	t.Parallel()
	r := newSSHRig(t, api.SSHOptions{WithoutMFA: true})
	r.session("oncall", devidp.Token{TTL: time.Hour})
	r.issue()
	strict := r.serve(1e6)
	for url, want := range map[string]string{r.url: `{"configured":true,"requireMFA":false}`, strict: `{"configured":false,"requireMFA":true}`} {
		resp, err := http.Get(url + "/readyz") //nolint:noctx // a test's own server
		if err != nil {
			t.Fatal(err)
		}
		var ready struct{ SSH json.RawMessage }
		if err := json.NewDecoder(resp.Body).Decode(&ready); err != nil || string(ready.SSH) != want {
			t.Errorf("readyz says %s (%v), want %s", ready.SSH, err, want)
		}
		resp.Body.Close()
	}
}
