package redfish_test

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/redfish"
	"github.com/bettercompute/compute/fleet"
)

// TestLegacyTLS: a BMC that speaks TLS of 2010 only is refused before any
// request, naming the way, and is worked with where its operator allows that for
// this BMC.
func TestLegacyTLS(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]*tls.Config{
		"TLS 1.0": {MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10},
		"RSA key exchange with 3DES": {MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12,
			CipherSuites: []uint16{tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("On"))
			to, err := url.Parse(b.m.Address())
			if err != nil {
				t.Fatal(err)
			}
			proxy := httputil.NewSingleHostReverseProxy(to)
			proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // a simulated BMC
			var requests atomic.Int32
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				proxy.ServeHTTP(w, r)
			}))
			srv.TLS = old
			srv.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are what is tested
			srv.StartTLS()
			t.Cleanup(srv.Close)
			target := b.target()
			if target.Address, err = fleet.ParseBMCAddress(srv.URL); err != nil {
				t.Fatal(err)
			}
			target.TLS = bmc.TLS{Mode: "pin"}

			_, err = redfish.Open(b.ctx(), target, b.opts)
			wantKind(t, err, bmc.KindTrust)
			var be *bmc.Error
			if !errors.As(err, &be) || !strings.Contains(be.Remedy, "legacyTls") || requests.Load() != 0 {
				t.Errorf("%+v after %d requests", be, requests.Load())
			}

			target.TLS.Legacy = true
			c, err := redfish.Open(b.ctx(), target, b.opts)
			if err != nil {
				t.Fatal(err)
			}
			if state, err := c.Power(b.ctx()); err != nil || state != bmc.PowerOn {
				t.Errorf("power is %s, %v", state, err)
			}
			_ = c.Close(b.ctx()) // the session is the simulator's
		})
	}
}
