package redfish_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/redfish"
	"github.com/bettercompute/compute/bmc/redfish/recorded"
	"github.com/bettercompute/compute/fleet"
)

func TestC16Trust(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fault string
		tls   func(b *bench) bmc.TLS
		ok    bool
	}{
		{"c16-own-ca", func(b *bench) bmc.TLS { return bmc.TLS{Mode: "verify", CA: string(b.rack.CA())} }, true},
		{"c16-self-signed", func(b *bench) bmc.TLS { return bmc.TLS{Mode: "verify", CA: string(b.rack.CA())} }, false},
		{"c16-self-signed", func(*bench) bmc.TLS { return bmc.TLS{Mode: "verify"} }, false},
		{"c16-self-signed", func(*bench) bmc.TLS { return bmc.TLS{} }, false},
		{"c16-self-signed", func(*bench) bmc.TLS { return bmc.TLS{Mode: "insecure"} }, true},
		{"c16-self-signed", func(*bench) bmc.TLS { return bmc.TLS{Mode: "pin"} }, true},
		{"c16-self-signed", func(*bench) bmc.TLS {
			return bmc.TLS{Mode: "pin", Fingerprint: "sha256:" + strings.Repeat("0", 64)}
		}, false},
		{"c16-ip-not-in-san", func(b *bench) bmc.TLS { return bmc.TLS{Mode: "verify", CA: string(b.rack.CA())} }, false},
		{"c16-ip-not-in-san", func(*bench) bmc.TLS { return bmc.TLS{Mode: "pin"} }, true},
		{"c16-expired", func(b *bench) bmc.TLS { return bmc.TLS{Mode: "verify", CA: string(b.rack.CA())} }, false},
		{"c16-own-ca", func(*bench) bmc.TLS { return bmc.TLS{Mode: "verify", CA: "no certificate"} }, false},
	} {
		b := newBench(t, found("Off"))
		b.fault(c.fault)
		b.tls = c.tls(b)
		t.Run(c.fault+"/"+b.tls.Mode, func(t *testing.T) {
			t.Parallel()
			client, err := redfish.Open(b.ctx(), b.target(), b.opts)
			if c.ok {
				if err != nil {
					t.Fatal(err)
				}
				if _, err := client.Power(b.ctx()); err != nil {
					t.Error(err)
				}
				_ = client.Close(b.ctx())
				return
			}
			wantKind(t, err, bmc.KindTrust)
			if n := len(b.m.Requests()); n != 0 {
				t.Errorf("%d requests were sent without trust", n)
			}
			var be *bmc.Error
			if !errors.As(err, &be) || be.Remedy == "" {
				t.Errorf("no remedy: %+v", be)
			}
		})
	}
}

// TestC16Pinned: the first certificate is reported before a credential is sent,
// is good as long as it stays, and stops all work once it changes.
func TestC16Pinned(t *testing.T) {
	t.Parallel()
	b := newBench(t, found("Off"))
	var pinned string
	b.opts.Pinned = func(fp string) error {
		if n := len(b.m.Requests()); n != 0 {
			t.Errorf("%d requests before the fingerprint was kept", n)
		}
		pinned = fp
		return nil
	}
	c := b.open()
	if _, err := c.Power(b.ctx()); err != nil || !strings.HasPrefix(pinned, "sha256:") {
		t.Fatalf("%v, pinned %q", err, pinned)
	}
	if err := c.Close(b.ctx()); err != nil {
		t.Fatal(err)
	}
	b.tls.Fingerprint = pinned
	b.fault("c16-rotated-mid-run")
	c = b.open()
	var err error
	for ctx := b.ctx(); err == nil && ctx.Err() == nil; {
		_, err = c.Power(ctx)
	}
	wantKind(t, err, bmc.KindTrust)
	before := len(b.m.Requests())
	for name, change := range changes(b, c) {
		if k := bmc.KindOf(change()); k != bmc.KindTrust {
			t.Errorf("%s: kind %q", name, k)
		}
	}
	_, err = redfish.Open(b.ctx(), b.target(), b.opts)
	wantKind(t, err, bmc.KindTrust)
	if n := len(b.m.Requests()); n != before {
		t.Errorf("%d requests after the certificate changed", n-before)
	}
}

// TestPinThatCannotBeKept ends before a credential is sent. That our own
// database is away, in whatever words, is no trouble with the BMC.
func TestPinThatCannotBeKept(t *testing.T) {
	t.Parallel()
	for _, away := range []error{errors.New("the database is away"), io.ErrUnexpectedEOF, io.EOF, &net.OpError{Op: "read", Err: errors.New("reset")}, context.DeadlineExceeded} {
		b := newBench(t, found("Off"))
		b.opts.Pinned = func(string) error { return away }
		_, err := redfish.Open(b.ctx(), b.target(), b.opts)
		if !errors.Is(err, away) || bmc.KindOf(err) != "" || len(b.m.Requests()) != 0 {
			t.Errorf("%v, kind %q, %d requests", err, bmc.KindOf(err), len(b.m.Requests()))
		}
	}
}

// TestAddressNotAllowed: no packet leaves for an address outside the site.
func TestAddressNotAllowed(t *testing.T) {
	t.Parallel()
	var conns atomic.Int32
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ConnState = func(net.Conn, http.ConnState) { conns.Add(1) }
	srv.StartTLS()
	t.Cleanup(srv.Close)
	for _, host := range []string{"127.0.0.1", "localhost"} {
		a, err := fleet.ParseBMCAddress(strings.Replace(srv.URL, "127.0.0.1", host, 1))
		if err != nil {
			t.Fatal(err)
		}
		var asked []string
		_, err = redfish.Open(t.Context(), bmc.Target{Address: a, TLS: bmc.TLS{Mode: "insecure"}}, bmc.Options{Waits: waits(),
			AllowAddress: func(ip string) error { asked = append(asked, ip); return errors.New("outside") }})
		wantKind(t, err, bmc.KindNotAllowed)
		if len(asked) == 0 || conns.Load() != 0 {
			t.Errorf("asked for %q, %d connections", asked, conns.Load())
		}
	}
}

// TestPlainHTTP needs the operator's word.
func TestPlainHTTP(t *testing.T) {
	t.Parallel()
	a, err := fleet.ParseBMCAddress("redfish+http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	_, err = redfish.Open(t.Context(), bmc.Target{Address: a, TLS: bmc.TLS{Mode: "verify"}}, bmc.Options{Waits: waits()})
	wantKind(t, err, bmc.KindTrust)
}

// TestOtherOrigins: no link, redirect or session of the BMC leads our token to
// another machine.
func TestOtherOrigins(t *testing.T) {
	t.Parallel()
	var visits atomic.Int32
	other := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { visits.Add(1) }))
	t.Cleanup(other.Close)
	at := strings.TrimPrefix(other.URL, "https:")
	for name, rule := range map[string]string{
		"systems link":  `match: {method: GET, path: /redfish/v1}, patch: {Systems: {"@odata.id": "` + other.URL + `/redfish/v1/Systems"}}`,
		"sessions link": `match: {method: GET, path: /redfish/v1}, patch: {Links: {Sessions: {"@odata.id": "` + at + `/redfish/v1/Sessions"}}}`,
		"member":        `match: {method: GET, path: "**/Systems"}, set: {"/Members/0": {"@odata.id": "` + at + `/redfish/v1/Systems/1"}}`,
		"next page":     `match: {method: GET, path: "**/Systems"}, set: {"/Members@odata.nextLink": "` + other.URL + `/redfish/v1/Systems?page=2"}`,
		"redirect":      `match: {method: GET, path: "**/Systems"}, reply: {status: 302, headers: {Location: "` + other.URL + `/redfish/v1/Systems"}}`,
		"session":       `match: {method: POST, path: "**/Sessions"}, reply: {headers: {Location: "` + other.URL + `/redfish/v1/Sessions/1"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, found("Off"))
			b.rules("faults:\n  - {name: it, " + rule + "}")
			c, err := redfish.Open(b.ctx(), b.target(), b.opts)
			if err == nil {
				_, err = c.Power(b.ctx())
				_ = c.Close(context.WithoutCancel(b.ctx()))
			}
			wantKind(t, err, bmc.KindWrongMachine)
		})
	}
	if n := visits.Load(); n != 0 {
		t.Errorf("the other machine was visited %d times", n)
	}
}

// TestRedirectWithin: a slash more or less is followed, for reads and for the
// login.
func TestRedirectWithin(t *testing.T) {
	t.Parallel()
	files := recorded.Load(t, "OpenBMC-stock")
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.HasSuffix(r.URL.Path, "/"):
			http.Redirect(w, r, r.URL.Path+"/", http.StatusPermanentRedirect)
		case r.Method == http.MethodPost:
			w.Header().Set("X-Auth-Token", "t")
			w.WriteHeader(http.StatusCreated)
		default:
			body := files[strings.ToLower(strings.TrimRight(r.URL.Path, "/"))]
			if body == nil {
				w.WriteHeader(http.StatusNotFound)
			}
			_, _ = w.Write(body)
		}
	}))
	t.Cleanup(srv.Close)
	a, err := fleet.ParseBMCAddress(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	c, err := redfish.Open(t.Context(), bmc.Target{Address: a, Username: "u", Password: "p", TLS: bmc.TLS{Mode: "insecure"}}, bmc.Options{Waits: waits()})
	if err != nil {
		t.Fatal(err)
	}
	if p, err := c.Power(t.Context()); err != nil || p != bmc.PowerOff {
		t.Errorf("%s, %v", p, err)
	}
}

// TestUnreachable: what does not answer is unreachable, and was sent nothing.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	a, err := fleet.ParseBMCAddress("https://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	_, err = redfish.Open(t.Context(), bmc.Target{Address: a, TLS: bmc.TLS{Mode: "pin"}}, bmc.Options{Waits: waits()})
	wantKind(t, err, bmc.KindUnreachable)
	var be *bmc.Error
	if !errors.As(err, &be) || !be.Unsent {
		t.Errorf("%+v", be)
	}
}

// TestErase: a drive is erased by the BMC and proved, once.
func TestErase(t *testing.T) {
	t.Parallel()
	b := newBench(t, found("Off"))
	c := b.open()
	inv, err := c.Inventory(b.ctx())
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.Identify(b.ctx())
	if err != nil || !f.Capabilities.SecureErase {
		t.Fatalf("%+v, %v", f.Capabilities, err)
	}
	serial := inv.Disks[0].Serial
	records, err := c.EraseDrives(b.ctx(), []string{serial, "no-such-disk"})
	if err != nil || len(records) != 1 || records[0].Result != "done" || records[0].Serial != serial || records[0].Method != "full" {
		t.Fatalf("%+v, %v", records, err)
	}
	for _, d := range b.m.View(true).Disks {
		if got := string(d.Erased); (d.Serial == serial) != (got == "full") {
			t.Errorf("disk %s: erased %s", d.Serial, got)
		}
	}
	_, err = c.EraseDrives(b.ctx(), []string{"no-such-disk"})
	wantKind(t, err, bmc.KindUnsupported)
}

// TestEraseNotProved: an erase that ends badly is no erase.
func TestEraseNotProved(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]string{
		"task ends badly": `match: {method: POST, path: "**/Drive.SecureErase"}, apply: false, reply: {task: {ref: location, for: 10s, states: [Running, Completed], status: Critical}}`,
		"volume is left":  `match: {method: GET, path: "**/Drives/*"}, set: {"/Links": {Volumes: [{"@odata.id": "/redfish/v1/x"}]}}`,
		"refused":         `match: {method: POST, path: "**/Drive.SecureErase"}, apply: false, reply: {status: 400, body: {}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("Off"))
			c := b.open()
			inv, err := c.Inventory(b.ctx())
			if err != nil {
				t.Fatal(err)
			}
			b.rules("faults:\n  - {name: it, " + rule + "}")
			records, err := c.EraseDrives(b.ctx(), []string{inv.Disks[0].Serial})
			if err != nil || len(records) != 1 || records[0].Result != "failed" || records[0].Detail == "" {
				t.Errorf("%+v, %v", records, err)
			}
		})
	}
}

// TestLog reads the entries of a recorded log.
func TestLog(t *testing.T) {
	t.Parallel()
	b := newBench(t, found("Off"))
	if _, err := b.open().Log(b.ctx(), time.Time{}); err != nil {
		t.Error(err)
	}
}

// TestExchangesHoldNoSecret: what is kept as evidence names no password and no
// token.
func TestExchangesHoldNoSecret(t *testing.T) {
	t.Parallel()
	b := newBench(t, found("Off"))
	store := &kept{keep: true}
	b.opts.Session = store
	c := b.open()
	if _, err := c.SetPower(b.ctx(), bmc.PowerChange{Aim: bmc.AimOn}); err != nil {
		t.Fatal(err)
	}
	if len(b.seen) < 4 {
		t.Fatalf("%d exchanges", len(b.seen))
	}
	for _, e := range b.seen {
		all := e.Path + e.Error + e.MessageID
		if strings.Contains(all, store.token) || strings.Contains(all, b.m.Password()) {
			t.Errorf("%+v", e)
		}
	}
}
