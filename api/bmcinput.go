package api

import (
	"crypto/x509"
	"fmt"
	"net/netip"
	"strings"

	"github.com/bettercompute/compute/fleet"
)

// The limits of IPMI 2.0 on credentials, in bytes.
const (
	ipmiPassword = 20
	ipmiUser     = 16
)

// ipmiLimits checks credentials that IPMI would cut silently.
func ipmiLimits(driver, username, password, prefix string) error {
	if driver != "ipmi" {
		return nil
	}
	e := fleet.Errorf(fleet.CodeInvalidInput, "", "IPMI takes a user name of %d bytes and a password of %d at most", ipmiUser, ipmiPassword)
	if len(username) > ipmiUser {
		e.Fields = append(e.Fields, fleet.FieldError{Field: prefix + "username", Constraint: fmt.Sprintf("at most %d bytes with IPMI", ipmiUser)})
	}
	if len(password) > ipmiPassword {
		e.Fields = append(e.Fields, fleet.FieldError{Field: prefix + "password", Constraint: fmt.Sprintf("at most %d bytes with IPMI", ipmiPassword)})
	}
	if len(e.Fields) == 0 {
		return nil
	}
	return e
}

// bmcAddress reads an address for a driver: with ipmi, an address that is
// written as of a web service means the same host by IPMI.
func bmcAddress(written, driver, prefix string) (fleet.BMCAddress, error) {
	a, err := fleet.ParseBMCAddress(written)
	switch {
	case err != nil:
		return a, fleet.Invalid(prefix+"address", err.Error())
	case driver == "redfish" && a.Scheme == "ipmi":
		return a, fleet.Invalid(prefix+"driver", "auto or ipmi with an ipmi:// address")
	case driver == "ipmi" && a.Scheme != "ipmi":
		if a.Port == 443 || a.Port == 80 {
			a.Port = 623
		}
		return fleet.BMCAddress{Scheme: "ipmi", Host: a.Host, Port: a.Port}, nil
	}
	return a, nil
}

// drivenBy is the driver that an address leaves no choice but.
func drivenBy(a fleet.BMCAddress, driver string) string {
	if a.Scheme == "ipmi" {
		return "ipmi"
	}
	return driver
}

// inNetworks checks a literal address against the site's networks; a name is
// checked in every dial.
func inNetworks(address fleet.BMCAddress, networks []string, field string) error {
	ip, literal := address.IP()
	if !literal {
		return nil
	}
	for _, n := range networks {
		if p, err := netip.ParsePrefix(n); err == nil && p.Contains(ip.Unmap()) {
			return nil
		}
	}
	allowed := "none is allowed: set the site's allowedNetworks"
	if len(networks) > 0 {
		allowed = "allowed are " + strings.Join(networks, ", ")
	}
	return fleet.Invalid(field, "an address in the site's networks; "+allowed)
}

// certificates says whether a text is PEM with at least one certificate.
func certificates(pem string) bool { return x509.NewCertPool().AppendCertsFromPEM([]byte(pem)) }

// notInTheClear refuses a plain HTTP address whose trust was not said to be
// none: over it everybody on the way reads the password.
func notInTheClear(a fleet.BMCAddress, mode, field string) error {
	if a.Scheme != "http" || mode == "insecure" {
		return nil
	}
	return fleet.Invalid(field, "an https:// address: over plain HTTP the BMC's password could be read on the way; where the network is trusted, say tls.mode insecure")
}

// trustInput checks a BMC's trust as it is given at first.
func trustInput(a fleet.BMCAddress, in fleet.BMCIn, prefix string) error {
	mode := ""
	if in.TLS != nil {
		mode = in.TLS.Mode
	}
	if err := notInTheClear(a, mode, prefix+"address"); err != nil {
		return err
	}
	switch {
	case in.TLS == nil:
		return nil
	case in.TLS.CA != nil && !certificates(*in.TLS.CA):
		return fleet.Invalid(prefix+"tls.ca", "PEM certificates")
	case in.TLS.Fingerprint != nil && in.TLS.Mode != "pin":
		return fleet.Invalid(prefix+"tls.fingerprint", "given with mode pin only")
	}
	return nil
}

func sameMAC(given string, present *string) bool {
	return present != nil && strings.EqualFold(given, *present)
}
