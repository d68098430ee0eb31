package check

import (
	"context"
	"fmt"
	"strings"

	"github.com/bettercompute/compute/bmc"
)

// certificate looks at the certificate and says whether to go on.
func (r *run) certificate(ctx context.Context, way Way, target bmc.Target, opts bmc.Options) bool {
	cert, err := way.Certificate(ctx, target, opts)
	switch {
	case err != nil && bmc.KindOf(err) == bmc.KindUnreachable && target.Driver != "redfish":
		return true // it may be one of IPMI alone; opening it says what is wrong
	case err != nil:
		r.failed("certificate", err)
		return false
	case cert.Fingerprint == "":
		return true
	}
	f := Certificate(cert, target.TLS)
	r.add(f)
	if cert.NeedsLegacy {
		r.add(Finding{Area: "certificate", Grade: Broken, Says: "the handshake succeeds only with the versions and ciphers of before 2015",
			Then: "no connection is made without being told to", Try: "update the BMC's firmware, or enroll with bmc.legacyTls (here: --legacy-tls)"})
		return false
	}
	return f.Grade != Broken
}

// Certificate judges what a BMC shows by how it is to be trusted.
func Certificate(cert bmc.Certificate, tls bmc.TLS) Finding {
	f := Finding{Area: "certificate", Grade: Works}
	about := fmt.Sprintf("%s, of %s for %s, valid %s to %s, %s", cert.Fingerprint, cert.Issuer, orNone(strings.Join(cert.Names, " ")),
		cert.NotBefore.UTC().Format("2006-01-02"), cert.NotAfter.UTC().Format("2006-01-02"), cert.Version)
	if cert.Issuer == cert.Subject {
		about = strings.Replace(about, "of "+cert.Issuer, "self-signed "+cert.Subject, 1)
	}
	pin := "compare the fingerprint with the one on the BMC's own page, then pin it (--tls-mode pin --tls-fingerprint " + cert.Fingerprint + ")"
	switch {
	case tls.Mode == "pin" && tls.Fingerprint == cert.Fingerprint:
		f.Says = "it is the pinned one: " + about
	case tls.Mode == "pin" && tls.Fingerprint == "":
		f.Grade, f.Says = Odd, "it would be trusted on first use: "+about
		f.Then, f.Try = "the fingerprint that enrolling sees is kept, and any other sends no password", pin
	case tls.Mode == "pin":
		f.Grade, f.Says = Broken, "it is not the pinned "+tls.Fingerprint+": "+about
		f.Then, f.Try = thenOf[bmc.KindTrust], "find out why it changed; "+pin
	case tls.Mode == "insecure":
		f.Grade, f.Says = Odd, "it is not checked (tls.mode insecure): "+about
		f.Then, f.Try = "the password is sent to whoever answers there", pin
	case cert.Distrust != "":
		f.Grade, f.Says = Broken, "it is not trusted ("+cert.Distrust+"): "+about
		f.Then, f.Try = thenOf[bmc.KindTrust], pin+", or give its CA (--tls-ca-file)"
	default:
		f.Says = "it is trusted: " + about
	}
	return f
}

// login says how the client logged in.
func (r *run) login(s bmc.Survey, target bmc.Target) {
	what := s.Protocol
	if s.Product != "" {
		what += " of " + s.Product
	}
	r.add(Finding{Area: "reach", Grade: Works, Says: what + " answers"})
	f := Finding{Area: "login", Grade: Works, Says: "as " + target.Username}
	switch s.Login {
	case "session":
		f.Says += ", with a session"
	case "basic":
		f.Grade, f.Says, f.Quirk = Odd, f.Says+", without sessions: the service offers none", "basic-auth"
		f.Then = "every request carries the password, inside TLS"
	default:
		f.Says += ", with " + s.Login
	}
	r.add(f)
	if s.Privilege != "" {
		p := Finding{Area: "privilege", Grade: Works, Says: "the account is " + s.Privilege + " on this channel"}
		switch s.Privilege {
		case "administrator":
		case "operator":
			p.Grade, p.Then = Odd, "sessions ask for no more: it is what power and boot device need"
		default:
			p.Grade, p.Then, p.Try = Broken, thenOf[bmc.KindAuth], "give the account the privilege operator or administrator on the LAN channel"
		}
		r.add(p)
	}
	if s.Sessions >= 0 {
		text := fmt.Sprintf("%d open, ours included", s.Sessions)
		if s.Sessions == 0 {
			text = "the list of sessions shows none, not even ours"
		}
		if s.SessionTimeout > 0 {
			text += fmt.Sprintf("; an idle one ends after %s", s.SessionTimeout)
		}
		r.add(Finding{Area: "sessions", Grade: Works, Says: text})
	}
}

func orNone(s string) string {
	if s == "" {
		return "no name"
	}
	return s
}
