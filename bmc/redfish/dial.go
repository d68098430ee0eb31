package redfish

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/bettercompute/compute/bmc"
)

// dialer opens connections to one BMC: the address is judged after it was
// resolved and before any packet, and the certificate inside the handshake,
// before any request.
type dialer struct {
	target bmc.Target
	allow  func(ip string) error
	pinned func(fingerprint string) error
	// leaf is the fingerprint of the certificate seen last.
	leaf string
}

func (d *dialer) transport(wait time.Duration) *http.Transport {
	return &http.Transport{
		DialContext:           d.dial,
		DialTLSContext:        d.dialTLS,
		MaxIdleConnsPerHost:   1,
		IdleConnTimeout:       30 * time.Second,
		ResponseHeaderTimeout: wait,
	}
}

// dialError is an error from before the first byte of a request.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// ownError is an error of ours in the middle of a dial, such as a database that
// is away: it says nothing of the BMC.
type ownError struct{ err error }

func (e *ownError) Error() string { return e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }

func (d *dialer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a := d.target.Address
	ips, err := resolve(ctx, a.Host)
	if err != nil {
		return nil, &dialError{err}
	}
	var refused, failed error
	for _, ip := range ips {
		if d.allow != nil {
			if err := d.allow(ip.String()); err != nil {
				refused = &bmc.Error{Kind: bmc.KindNotAllowed, Doing: "connect to " + a.String(),
					Cause:  fmt.Sprintf("%s is outside the networks allowed for this site", ip),
					Remedy: "correct the address, or allow its network on the site", Err: err}
				continue
			}
		}
		var nd net.Dialer
		conn, err := nd.DialContext(ctx, "tcp", netip.AddrPortFrom(ip, uint16(a.Port)).String()) //nolint:gosec // ports are parsed as 16 bits
		if err == nil {
			return conn, nil
		}
		failed = errors.Join(failed, err)
	}
	if failed == nil {
		return nil, refused
	}
	return nil, &dialError{failed}
}

func resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	return ips, err
}

func (d *dialer) dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	raw, err := d.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	conf, err := d.tlsConfig()
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	conn := tls.Client(raw, conf)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, d.handshakeError(err)
	}
	return conn, nil
}

func (d *dialer) tlsConfig() (*tls.Config, error) {
	t := d.target.TLS
	conf := &tls.Config{ServerName: d.target.Address.Host, MinVersion: tls.VersionTLS12}
	if t.Legacy {
		allowLegacy(conf)
	}
	if t.Mode == "pin" || t.Mode == "insecure" {
		conf.InsecureSkipVerify = true //nolint:gosec // judged in VerifyConnection, or switched off by the operator
	} else if t.CA != "" {
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM([]byte(t.CA)) {
			return nil, d.distrust("the CA bundle holds no certificate", "give a PEM bundle in tls.ca", nil)
		}
	}
	conf.VerifyConnection = d.verify
	return conf, nil
}

// allowLegacy admits what BMCs of before 2015 need: TLS 1.0, RSA key exchange
// and 3DES, and a hello without the large post-quantum share some cannot read.
func allowLegacy(conf *tls.Config) {
	conf.MinVersion = tls.VersionTLS10
	conf.CurvePreferences = []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384, tls.CurveP521}
	for _, s := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		conf.CipherSuites = append(conf.CipherSuites, s.ID)
	}
}

// verify runs at the end of the handshake, after the chain was checked in mode
// verify; its error ends the connection before a request is sent.
func (d *dialer) verify(cs tls.ConnectionState) error {
	if len(cs.PeerCertificates) == 0 {
		return d.distrust("it shows no certificate", "", nil)
	}
	fp := Fingerprint(cs.PeerCertificates[0])
	if d.target.TLS.Mode != "pin" {
		d.leaf = fp
		return nil
	}
	switch d.target.TLS.Fingerprint {
	case fp:
	case "":
		if d.pinned != nil {
			if err := d.pinned(fp); err != nil {
				return &ownError{fmt.Errorf("keep the fingerprint of %s: %w", d.target.Address, err)}
			}
		}
		d.target.TLS.Fingerprint = fp
	default:
		return &bmc.Error{Kind: bmc.KindTrust, Doing: "trust " + d.target.Address.String(), Shown: fp,
			Cause:  fmt.Sprintf("its certificate is %s, not the pinned %s", fp, d.target.TLS.Fingerprint),
			Remedy: "find out why the certificate changed; accept it with computectl metal accept-certificates (metal/update bmc.tls.fingerprint), then retry"}
	}
	d.leaf = fp
	return nil
}

// Fingerprint is how certificates are pinned: "sha256:" and the hex of the
// hash of the whole certificate.
func Fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (d *dialer) distrust(cause, remedy string, err error) error {
	return &bmc.Error{Kind: bmc.KindTrust, Doing: "trust " + d.target.Address.String(), Cause: cause, Remedy: remedy, Err: err}
}

// nothingInCommon says that the BMC ended the handshake with one of the alerts
// for that (RFC 8446, section 6.2). crypto/tls keeps their type to itself and
// hands them on as network errors; others, such as an internal error, may pass.
func nothingInCommon(err error) bool {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "remote error" {
		return false
	}
	switch op.Err.Error() {
	case "tls: handshake failure", "tls: protocol version not supported", "tls: insufficient security level":
		return true
	}
	return false
}

// handshakeError tells a connection that broke from a handshake that ended in
// a disagreement, which no repetition mends.
func (d *dialer) handshakeError(err error) error {
	var own *ownError
	var known *bmc.Error
	var netErr net.Error
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &own), errors.As(err, &known):
		return err
	case errors.As(err, &cert):
		return d.distrust(cert.Err.Error(), "give the CA in tls.ca, pin the certificate (tls.mode pin), or correct the address", err)
	case nothingInCommon(err):
		return d.distrust("no TLS version or cipher in common: "+err.Error(), "allow what old BMCs need with legacyTls", err)
	case errors.Is(err, io.EOF), errors.As(err, &netErr), errors.Is(err, context.Canceled):
		return &dialError{err}
	default:
		return d.distrust(err.Error(), "see whether this is the BMC's https port; old BMCs may need legacyTls", err)
	}
}
