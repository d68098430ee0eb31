package sim_test

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/sim"
	"github.com/google/go-cmp/cmp"
)

// gateway is the machine-facing side of a control plane: it lets one machine in,
// hands out commands one after the other, and keeps their results.
type gateway struct {
	bootConfig []byte
	commands   []string
	mu         sync.Mutex
	next       int
	used       int
	results    []map[string]any
	finished   chan struct{}
}

// newGateway starts a gateway; boot is its plain listener.
func newGateway(t *testing.T, commands ...string) (g *gateway, boot *httptest.Server) {
	t.Helper()
	ca, err := identity.NewCA("test")
	if err != nil {
		t.Fatal(err)
	}
	g = &gateway{commands: append(commands, `{"type":"finish","args":{}}`), finished: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /node/v1/call-in", g.callIn)
	mux.HandleFunc("POST /node/v1/commands/next", g.hand)
	mux.HandleFunc("POST /node/v1/commands/{id}/progress", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("POST /node/v1/commands/{id}/result", g.result)
	secure := httptest.NewUnstartedServer(mux)
	cert, err := ca.NewServer("127.0.0.1").Certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	secure.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}}
	secure.StartTLS()
	t.Cleanup(secure.Close)
	g.bootConfig, err = json.Marshal(map[string]string{"bootId": "b1", "gatewayUrl": secure.URL, "caFingerprint": ca.Fingerprint(), "token": "once"})
	if err != nil {
		t.Fatal(err)
	}
	plain := http.NewServeMux()
	plain.HandleFunc("GET /boot/b1/config", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(g.bootConfig) })
	plain.HandleFunc("GET /image.raw", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, imageBytes) })
	plain.HandleFunc("HEAD /image.raw", func(w http.ResponseWriter, _ *http.Request) {})
	boot = httptest.NewServer(plain)
	t.Cleanup(boot.Close)
	return g, boot
}

func (g *gateway) callIn(w http.ResponseWriter, r *http.Request) {
	var in struct{ BootID, Token string }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Token != "once" || in.BootID != "b1" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.used++; g.used > 1 {
		w.WriteHeader(http.StatusConflict)
		return
	}
	_, _ = io.WriteString(w, `{"nodeId":"node_1","operationId":"op_1","session":"s1"}`)
}

func (g *gateway) hand(w http.ResponseWriter, _ *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next >= len(g.commands) {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	var c map[string]any
	_ = json.Unmarshal([]byte(g.commands[g.next]), &c) // literals of the tests
	c["id"] = "cmd_" + string(rune('1'+g.next))
	_ = json.NewEncoder(w).Encode(map[string]any{"command": c})
	g.next++
}

func (g *gateway) result(w http.ResponseWriter, r *http.Request) {
	var out map[string]any
	_ = json.NewDecoder(r.Body).Decode(&out) // an empty result fails the test
	g.mu.Lock()
	defer g.mu.Unlock()
	g.results = append(g.results, out)
	w.WriteHeader(http.StatusNoContent)
	if len(g.results) == len(g.commands) {
		close(g.finished)
	}
}

func command(t *testing.T, kind string, args any) string {
	t.Helper()
	b, err := json.Marshal(map[string]any{"type": kind, "args": args})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestAgentOnASimulatedMachine runs the agent's own package on a machine that
// booted our image: everything it can be told, against the machine's true state.
func TestAgentOnASimulatedMachine(t *testing.T) {
	t.Parallel()
	g, boot := newGateway(t)
	b := addBMC(t, newRack(t, sim.Options{TimeScale: 2000}), plain())
	disks := b.m.View(true).Disks
	if err := b.m.Change(map[string]any{"/disks/5/dead": true, "/disks/2/content": "data", "/disks/3/content": "data"}); err != nil {
		t.Fatal(err)
	}
	g.commands = append([]string{
		command(t, "inventory", map[string]any{}),
		command(t, "test", map[string]any{"tests": []string{"memory", "cpu", "nic", "clock"}}),
		command(t, "erase", map[string]any{"method": "full", "disks": []string{disks[2].Serial, disks[5].Serial}, "skip": []string{disks[5].Serial}}),
		command(t, "erase", map[string]any{"method": "metadata", "disks": []string{disks[3].Serial}}),
		command(t, "writeImage", map[string]any{"url": boot.URL + "/image.raw", "checksum": "sha256:" + imageSum(), "format": "raw", "size": len(imageBytes)}),
		command(t, "configDrive", map[string]any{"metaData": "instance-id: i-1\n", "userData": "#cloud-config\n"}),
		command(t, "rescue", map[string]any{"sshKeys": []string{"ssh-ed25519 AAAA me"}}),
	}, g.commands...)
	b.insert(boot.URL + "/boot/b1/compute.iso")
	b.override("Once", "Cd")
	b.reset("On")
	receive(t, g.finished)
	for i, r := range g.results {
		if r["ok"] != true {
			t.Errorf("command %d: %v", i+1, r)
		}
	}
	if got := at(g.results[2], "data", "disks", 1, "method"); got != "skipped" {
		t.Errorf("the dead disk: %v, want skipped", got)
	}
	written, _ := at(g.results[4], "data", "disk", "serial").(string)
	v := b.m.View(true)
	for _, d := range v.Disks {
		if d.Serial == written && (d.Content != sim.ContentImage || d.Image.ConfigDrive == nil || d.Image.ConfigDrive.UserData != "#cloud-config\n") {
			t.Errorf("the disk that was written: %+v", d)
		}
	}
	got := []string{v.Disks[2].Content, v.Disks[3].Content, v.Running.RescueKeys[0]}
	if diff := cmp.Diff([]string{"empty", "remnants", "ssh-ed25519 AAAA me"}, got); diff != "" || written == "" {
		t.Errorf("erased whole, by metadata, and the key let in (-want +got):\n%s", diff)
	}
}

// TestUsedTokenGetsNothing restarts a machine by itself into the same medium:
// it calls in with the token it has used.
func TestUsedTokenGetsNothing(t *testing.T) {
	t.Parallel()
	g, boot := newGateway(t)
	b := addBMC(t, newRack(t, sim.Options{TimeScale: 2000}), plain())
	b.insert(boot.URL + "/boot/b1/compute.iso")
	b.override("Continuous", "Cd")
	b.reset("On")
	receive(t, g.finished)
	b.m.Restart()
	eventually(t, "the second call", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.used > 1
	})
	if len(g.results) != 1 {
		t.Errorf("results: %d, want 1", len(g.results))
	}
}
