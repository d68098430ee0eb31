package gateway_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bettercompute/compute/identity"
)

// sessionAt opens a session and returns its epoch.
func (r *rig) sessionAt(gateway string, cert *tls.Certificate) string {
	r.t.Helper()
	status, out := r.asMachineAt(gateway, cert, "/node/v1/session", "", map[string]any{})
	if status != http.StatusOK {
		r.t.Fatalf("session: %d %v", status, out)
	}
	return fmt.Sprint(out["epoch"])
}

// A revocation ends a session at whichever gateway it is, while the machine waits
// there, and no gateway opens another one; other nodes' sessions go on.
func TestRevocationOnEveryGateway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gateways := []string{r.GatewayURL, r.another()}
	type machine struct {
		cert        *tls.Certificate
		node, epoch string
		ended       chan string
	}
	waits := func(gateway string, m machine, seconds int) string {
		status, out := r.asMachineAt(gateway, m.cert, "/node/v1/session/next", m.epoch, map[string]any{"waitSeconds": seconds, "spec": 1 << 40})
		return fmt.Sprintf("%d %v", status, out["reason"])
	}
	var machines []machine
	for i, gateway := range append(gateways, gateways[1]) {
		m := machine{ended: make(chan string, 1)}
		m.cert, m.node = r.rawJoin(newKey(t), machineNumber(60+i), r.joinToken(1))
		m.epoch = r.sessionAt(gateway, m.cert)
		machines = append(machines, m)
		if i < len(gateways) { // the last one is left alone
			go func() { m.ended <- waits(gateway, m, 3600) }()
		}
	}
	for i, gateway := range gateways {
		m := machines[i]
		r.revoke(m.node)
		if got := <-m.ended; got != "409 no-session" {
			t.Errorf("the machine that waits at gateway %d is answered %s", i, got)
		}
		for j, other := range gateways {
			if status, _ := r.asMachineAt(other, m.cert, "/node/v1/session", "", map[string]any{}); status != http.StatusUnauthorized {
				t.Errorf("gateway %d opens a session again: %d", j, status)
			}
			if status, _ := r.asMachineAt(other, m.cert, "/node/v1/renew", "", map[string]any{"csr": csrOf(t, newKey(t))}); status != http.StatusUnauthorized {
				t.Errorf("gateway %d renews: %d", j, status)
			}
		}
		if got := waits(gateway, m, 0); got != "409 no-session" {
			t.Errorf("gateway %d serves it still: %s", i, got)
		}
	}
	if got := waits(gateways[1], machines[2], 0); got != "204 <nil>" {
		t.Errorf("another node's session: %s", got)
	}
}

// A certificate is judged on a TLS session that is resumed too, where nothing is
// checked in the handshake any more.
func TestResumedConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	key := newKey(t)
	cert, node := r.rawJoin(key, machineNumber(65), r.joinToken(1))
	pinned := identity.PinnedTLS(r.ca.Fingerprint(), "127.0.0.1")
	pinned.Certificates, pinned.ClientSessionCache = []tls.Certificate{*cert}, tls.NewLRUClientSessionCache(1)
	transport := &http.Transport{TLSClientConfig: pinned, ForceAttemptHTTP2: true}
	ask := func(path string) (status int, resumed bool) {
		t.Helper()
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.GatewayURL+path, strings.NewReader(`{"csr":`+quoted(csrOf(t, key))+`}`))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, resp.TLS.DidResume
	}
	want := func(what, path string, status int) {
		t.Helper()
		if got, resumed := ask(path); got != status || !resumed {
			t.Errorf("%s on %s: %d, resumed %v; want %d on a resumed connection", what, path, got, resumed, status)
		}
	}
	if status, resumed := ask("/node/v1/session"); status != http.StatusOK || resumed {
		t.Fatalf("first: %d, resumed %v", status, resumed)
	}
	want("good", "/node/v1/session", http.StatusOK)
	r.exec(`UPDATE certificates SET not_after = now() - interval '1 second' WHERE node_id = $1`, node)
	want("expired", "/node/v1/session", http.StatusUnauthorized)
	want("expired", "/node/v1/renew", http.StatusOK)
	r.revoke(node)
	want("revoked", "/node/v1/session", http.StatusUnauthorized)
	want("revoked", "/node/v1/renew", http.StatusUnauthorized)
}

func quoted(s string) string {
	b, _ := json.Marshal(s) // a string can be written
	return string(b)
}

// Machines that send their join slowly, or never to its end, keep nobody else
// from joining.
func TestSlowJoins(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, stop := context.WithCancel(t.Context())
	var sending, ended sync.WaitGroup
	defer ended.Wait()
	defer stop()
	for range 40 {
		body, more := io.Pipe()
		defer func() { _ = more.Close() }() // it cannot fail
		sending.Add(1)
		// The gateway says so when it begins to read.
		begun := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got100Continue: sending.Done})
		req, err := http.NewRequestWithContext(begun, http.MethodPost, r.GatewayURL+"/node/v1/join", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Expect", "100-continue")
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: identity.PinnedTLS(r.ca.Fingerprint(), "127.0.0.1"), ExpectContinueTimeout: time.Hour}}
		ended.Go(func() {
			defer client.CloseIdleConnections()
			if resp, err := client.Do(req); err == nil {
				resp.Body.Close()
				if resp.StatusCode == http.StatusServiceUnavailable {
					sending.Done() // refused before it was read
				}
			}
		})
	}
	sending.Wait()
	if status, out := r.tryJoin(newKey(t), machineNumber(66), r.joinToken(1)); status != http.StatusOK {
		t.Errorf("a join beside those that are sent slowly: %d %v", status, out)
	}
}
