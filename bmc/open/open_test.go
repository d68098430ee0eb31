package open

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/redfish"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/sim"
)

func TestMayFallBack(t *testing.T) {
	t.Parallel()
	refused := fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	for name, c := range map[string]struct {
		err      error
		password string
		falls    bool
	}{
		"nothing listens":       {&bmc.Error{Kind: bmc.KindUnreachable, Err: refused}, "short", true},
		"no such path":          {&bmc.Error{Kind: bmc.KindUnsupported}, "short", true},
		"a web page":            {&bmc.Error{Kind: bmc.KindProtocol}, "short", true},
		"silence":               {&bmc.Error{Kind: bmc.KindUnreachable}, "short", false},
		"busy":                  {&bmc.Error{Kind: bmc.KindBusy}, "short", false},
		"trust":                 {&bmc.Error{Kind: bmc.KindTrust}, "short", false},
		"authentication":        {&bmc.Error{Kind: bmc.KindAuth}, "short", false},
		"address":               {&bmc.Error{Kind: bmc.KindNotAllowed}, "short", false},
		"another machine":       {&bmc.Error{Kind: bmc.KindWrongMachine}, "short", false},
		"a long password":       {&bmc.Error{Kind: bmc.KindUnsupported}, "123456789012345678901", false},
		"11 letters of 2 bytes": {&bmc.Error{Kind: bmc.KindUnsupported}, "üüüüüüüüüüü", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := mayFallBack(bmc.Target{Username: "admin", Password: c.password}, c.err)
			if (err == nil) != c.falls {
				t.Errorf("%v", err)
			}
		})
	}
}

func waits() bmc.Waits {
	return bmc.Waits{Request: 5 * time.Second, Poll: 10 * time.Millisecond, Busy: 10 * time.Millisecond, Change: time.Second, Post: time.Second}
}

func address(t *testing.T, s string) fleet.BMCAddress {
	t.Helper()
	a, err := fleet.ParseBMCAddress(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAutoFindsRedfish(t *testing.T) {
	t.Parallel()
	rack, err := sim.NewRack(sim.Options{TimeScale: 100})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rack.Close() })
	m, err := rack.Add(sim.MachineSpec{})
	if err != nil {
		t.Fatal(err)
	}
	for _, driver := range []string{"auto", "", "redfish"} {
		c, err := Open(t.Context(), bmc.Target{Address: address(t, m.Address()), Driver: driver, Username: m.Username(), Password: m.Password(),
			TLS: bmc.TLS{Mode: "pin"}}, bmc.Options{Waits: waits()})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := c.(*redfish.Client); !ok {
			t.Errorf("driver %q opened a %T", driver, c)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	// A refused login is the end: nothing is tried over another protocol.
	_, err = Open(t.Context(), bmc.Target{Address: address(t, m.Address()), Driver: "auto", Username: m.Username(), Password: "wrong",
		TLS: bmc.TLS{Mode: "pin"}}, bmc.Options{Waits: waits()})
	if bmc.KindOf(err) != bmc.KindAuth || m.Counts().LoginsFailed != 1 {
		t.Errorf("%v, %d failed logins", err, m.Counts().LoginsFailed)
	}
}

// TestNoCredentialsToStrangers: what is no Redfish service is asked for its
// root only, and never given a password.
func TestNoCredentialsToStrangers(t *testing.T) {
	t.Parallel()
	var others atomic.Int32
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || !strings.HasPrefix(r.URL.Path, "/redfish/v1") || r.Header.Get("Authorization") != "" {
			others.Add(1)
		}
		_, _ = w.Write([]byte("<html>a printer</html>"))
	}))
	t.Cleanup(srv.Close)
	// The password is too long for IPMI, so that nothing is sent to port 623.
	_, err := Open(t.Context(), bmc.Target{Address: address(t, srv.URL), Username: "admin", Password: "123456789012345678901",
		TLS: bmc.TLS{Mode: "insecure"}}, bmc.Options{Waits: waits()})
	if bmc.KindOf(err) != bmc.KindUnsupported || others.Load() != 0 {
		t.Errorf("%v, %d other requests", err, others.Load())
	}
}

func TestDrivers(t *testing.T) {
	t.Parallel()
	_, err := Open(t.Context(), bmc.Target{Driver: "telnet"}, bmc.Options{})
	if err == nil {
		t.Error("an unknown driver was opened")
	}
	outside := errors.New("outside")
	for _, driver := range []string{"auto", "ipmi"} {
		_, err := Open(t.Context(), bmc.Target{Address: address(t, "ipmi://127.0.0.1:6230"), Driver: driver, Username: "a", Password: "b"},
			bmc.Options{Waits: waits(), AllowAddress: func(string) error { return outside }})
		if bmc.KindOf(err) != bmc.KindNotAllowed {
			t.Errorf("%s: %v", driver, err)
		}
	}
	_, err = Open(t.Context(), bmc.Target{Address: address(t, "ipmi://127.0.0.1"), Driver: "redfish"}, bmc.Options{Waits: waits()})
	if bmc.KindOf(err) != bmc.KindUnsupported {
		t.Errorf("%v", err)
	}
}
