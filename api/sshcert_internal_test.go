package api

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"testing"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// What is asked of a session, and the life that a certificate gets, to the second.
func TestSSHSessionAndLife(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 10, 0, 0, 900_000_000, time.UTC)
	i, err := newSSHIssuer(SSHOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		mfa    bool
		left   time.Duration
		reason string
	}{
		"an hour left":          {true, time.Hour, ""},
		"a minute left":         {true, time.Minute, ""},
		"less than a minute":    {true, time.Minute - time.Millisecond, "session-ending"},
		"ended":                 {true, -time.Second, "session-ending"},
		"no second factor":      {false, time.Hour, "mfa-required"},
		"neither":               {false, time.Second, "mfa-required"},
		"no end that was given": {true, -now.Sub(time.Time{}), "session-ending"},
	} {
		err := i.checkSession(Caller{MFA: c.mfa, SessionEnd: now.Add(c.left)}, now)
		if fleet.ReasonOf(err) != c.reason || c.reason != "" && fleet.CodeOf(err) != fleet.CodeAccessDenied {
			t.Errorf("%s: %v, want %q", name, err, c.reason)
		}
	}
	for _, c := range []struct {
		session, ttl time.Duration
		from, to     string
	}{
		{time.Hour, 15 * time.Minute, "09:55:00", "10:15:00"},
		{time.Hour, time.Hour, "09:55:00", "11:00:00"},
		{5*time.Minute + 200*time.Millisecond, 15 * time.Minute, "09:55:00", "10:05:01"}, // of the session's 10:05:01.1
		{time.Minute, 15 * time.Minute, "09:55:00", "10:01:00"},
	} {
		from, to := i.life(now, now.Add(c.session), c.ttl)
		if got := from.Format(time.TimeOnly); got != c.from || from.Nanosecond() != 0 {
			t.Errorf("session %s, ttl %s: from %s, want %s", c.session, c.ttl, from, c.from)
		}
		if got := to.Format(time.TimeOnly); got != c.to || to.Nanosecond() != 0 || to.After(now.Add(c.session)) {
			t.Errorf("session %s, ttl %s: to %s, want %s", c.session, c.ttl, to, c.to)
		}
	}
}

// A process does not start with SSH options that it could not keep to.
func TestSSHOptionsRefused(t *testing.T) {
	t.Parallel()
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	strong, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]SSHOptions{
		"an RSA CA": {CA: weak}, "an empty account": {Accounts: []string{"root", ""}}, "a blank account": {Accounts: []string{" "}}, "an account of a node": {Accounts: []string{"root@node"}},
		"a long account": {Accounts: []string{"a12345678901234567890123456789012"}}, "back-dated by more than an hour": {Backdate: time.Hour + time.Second}, "post-dated": {Backdate: -time.Second},
	} {
		if _, err := newSSHIssuer(o); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	i, err := newSSHIssuer(SSHOptions{CA: strong, Accounts: []string{"a1234567890123456789012345678901"}, Backdate: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	// Whoever asks: nothing is signed for everybody, nor for an account that is not
	// configured, nor without a serial.
	ca, err := i.usable(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []fleet.SSHCert{
		{Serial: "1"}, {Serial: "1", Principal: "@"}, {Serial: "1", Principal: " @" + someNode}, {Serial: "1", Principal: "root@" + someNode}, {Serial: "1", Principal: i.accounts[0]},
		{Serial: "1", Principal: i.accounts[0] + "@"}, {Serial: "1", Principal: i.accounts[0] + "@*"}, {Serial: "", Principal: i.accounts[0] + "@" + someNode},
	} {
		if cert, err := i.sign(ca, ca.PublicKey(), c, "k"); err == nil {
			t.Errorf("%+v was signed: %s", c, cert)
		}
	}
	if _, err := i.sign(ca, ca.PublicKey(), fleet.SSHCert{Serial: "1", Principal: i.accounts[0] + "@" + someNode}, "k"); err != nil {
		t.Error(err)
	}
}
