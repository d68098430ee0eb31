package redfish

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"

	"github.com/bettercompute/compute/bmc"
)

// LookAt makes a TLS handshake with a BMC and sends nothing in it: what it
// shows is for a person to compare before anything is trusted. A BMC that needs
// what bmc.TLS.Legacy allows is looked at with that.
func LookAt(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Certificate, error) {
	waits := opts.Waits
	if waits == (bmc.Waits{}) {
		waits = bmc.DefaultWaits
	}
	ctx, cancel := context.WithTimeout(ctx, waits.Request)
	defer cancel()
	d := &dialer{target: target, allow: opts.AllowAddress}
	found, err := d.look(ctx)
	if bmc.KindOf(err) != bmc.KindTrust || target.TLS.Legacy {
		return found, d.named(err)
	}
	d.target.TLS.Legacy = true
	old, legacyErr := d.look(ctx)
	if legacyErr != nil {
		return found, d.named(err)
	}
	old.NeedsLegacy = true
	return old, nil
}

// named gives an error of the dial the kind that one of a request would have.
func (d *dialer) named(err error) error {
	var known *bmc.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	return &bmc.Error{Kind: bmc.KindUnreachable, Doing: "look at the certificate of " + d.target.Address.String(), Cause: "no answer: " + err.Error(),
		Remedy: "see whether the BMC answers at " + d.target.Address.String(), Err: err, Unsent: true}
}

func (d *dialer) look(ctx context.Context) (bmc.Certificate, error) {
	conf, err := d.tlsConfig()
	if err != nil {
		return bmc.Certificate{}, err
	}
	roots := conf.RootCAs
	conf.InsecureSkipVerify = true //nolint:gosec // nothing is sent; the judgment is reported
	conf.VerifyConnection = nil
	raw, err := d.dial(ctx, "", "")
	if err != nil {
		return bmc.Certificate{}, err
	}
	defer raw.Close()
	conn := tls.Client(raw, conf)
	if err := conn.HandshakeContext(ctx); err != nil {
		return bmc.Certificate{}, d.handshakeError(err)
	}
	state := conn.ConnectionState()
	if len(state.PeerCertificates) == 0 {
		return bmc.Certificate{}, d.distrust("it shows no certificate", "see whether this is the BMC's https port", nil)
	}
	leaf := state.PeerCertificates[0]
	found := bmc.Certificate{Fingerprint: Fingerprint(leaf), Subject: leaf.Subject.String(), Issuer: leaf.Issuer.String(), Names: leaf.DNSNames,
		NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter, Version: tls.VersionName(state.Version)}
	for _, ip := range leaf.IPAddresses {
		found.Names = append(found.Names, ip.String())
	}
	between := x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err = leaf.Verify(x509.VerifyOptions{DNSName: d.target.Address.Host, Roots: roots, Intermediates: between})
	if err != nil {
		found.Distrust = err.Error()
	}
	return found, nil
}
