package sim_test

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/bettercompute/compute/sim"
	"github.com/google/go-cmp/cmp"
)

var portMember = regexp.MustCompile(`"port":\d+`)

// control is a client of the control API.
type control struct {
	t   *testing.T
	url string
}

func (c control) call(method, path, body string) (int, []byte) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, b
}

func (c control) get(path string) map[string]any {
	c.t.Helper()
	status, b := c.call(http.MethodGet, path, "")
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil || status != http.StatusOK {
		c.t.Fatalf("%s: %d %s", path, status, b)
	}
	return v
}

func TestControlAPI(t *testing.T) {
	t.Parallel()
	r := newRack(t, sim.Options{Control: "127.0.0.1:0"})
	c := control{t, r.ControlURL()}
	status, b := c.call(http.MethodPost, "/sim/machines", `{"profile": "dell", "seed": 4, "post": "60s", "resetTypes": ["On"], "tls": {"rotate": true}}`)
	if status != http.StatusCreated {
		t.Fatalf("POST: %d %s", status, b)
	}
	items, _ := c.get("/sim/machines")["items"].([]any)
	item, _ := items[0].(map[string]any)
	for _, k := range []string{"id", "address", "username", "password", "power", "override", "media", "accounts"} {
		if item[k] == nil {
			t.Errorf("items lack %s", k)
		}
	}
	id, _ := item["id"].(string)
	path := "/sim/machines/" + id
	if status, b := c.call(http.MethodPut, path+"/faults", "faults:\n- {name: x, match: {path: '**'}, apply: false}\n"); status != http.StatusOK {
		t.Errorf("PUT of YAML: %d %s", status, b)
	}
	if status, b := c.call(http.MethodPut, path+"/faults", `{"faults": [{"name": "y", "match": {"path": "**"}, "reply": {"status": 299}}]}`); status != http.StatusOK {
		t.Errorf("PUT of JSON: %d %s", status, b)
	}
	if got := at(c.get(path+"/faults"), "faults", 0, "hits"); got != 0.0 {
		t.Errorf("hits: %v", got)
	}
	if status, _ := c.call(http.MethodPut, path+"/faults?name=c13-four-sessions", ""); status != http.StatusOK {
		t.Errorf("PUT by name: %d", status)
	}
	if status, _ := c.call(http.MethodPut, path+"/faults", `{"faults": [{"name": "z"}]}`); status != http.StatusBadRequest {
		t.Errorf("PUT of nothing: %d", status)
	}
	if status, _ := c.call(http.MethodDelete, path+"/faults", ""); status != http.StatusNoContent {
		t.Errorf("DELETE: %d", status)
	}
	if status, _ := c.call(http.MethodPatch, path, `{"/health": "Critical"}`); status != http.StatusOK || at(c.get(path), "state", "systems", 0, "health") != "Critical" {
		t.Errorf("PATCH: %d", status)
	}
	if status, _ := c.call(http.MethodPost, path+"/restart", ""); status != http.StatusConflict {
		t.Errorf("restart of a machine that is off: %d", status)
	}
	if status, _ := c.call(http.MethodPost, "/sim/clock", `{"advance": "90s"}`); status != http.StatusOK {
		t.Errorf("clock: %d", status)
	}
	for _, p := range []string{"/bootlog", "/requests"} {
		if c.get(path + p)["items"] == nil {
			t.Errorf("%s has no items", p)
		}
	}
	counts := c.get(path + "/counts")
	for _, k := range []string{"insertMedia", "changesInFlightMax", "sessionsOpen", "sessionsOpenMax", "logins", "loginsFailed"} {
		if _, there := counts[k]; !there {
			t.Errorf("counts lack %s", k)
		}
	}
	if status, _ := c.call(http.MethodDelete, path, ""); status != http.StatusNoContent || r.Machine(id) != nil {
		t.Errorf("DELETE of the machine: %d", status)
	}
	if status, _ := c.call(http.MethodGet, path, ""); status != http.StatusNotFound {
		t.Errorf("a machine that is gone: %d", status)
	}
}

func TestDemoImages(t *testing.T) {
	t.Parallel()
	c := control{t, newRack(t, sim.Options{Control: "127.0.0.1:0"}).ControlURL()}
	status, image := c.call(http.MethodGet, "/images/small.raw", "")
	_, sum := c.call(http.MethodGet, "/images/small.raw.sha256", "")
	if want := fmt.Sprintf("%x  small.raw\n", sha256.Sum256(image)); status != http.StatusOK || len(image) != 1<<20 || want != string(sum) {
		t.Errorf("%d, %d bytes, sum %q, want %q", status, len(image), sum, want)
	}
	other := control{t, newRack(t, sim.Options{Control: "127.0.0.1:0", Seed: 9}).ControlURL()}
	if _, again := other.call(http.MethodGet, "/images/small.raw", ""); !bytes.Equal(image, again) {
		t.Error("the image differs from rack to rack")
	}
	if status, _ := c.call(http.MethodGet, "/images/other.raw", ""); status != http.StatusNotFound {
		t.Errorf("an image that is not there: %d", status)
	}
}

// leaf is the certificate that a machine shows.
func leaf(t *testing.T, m *sim.Machine) *x509.Certificate {
	t.Helper()
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", strings.TrimPrefix(m.Address(), "https://")) //nolint:gosec // looked at, not trusted
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c, ok := conn.(*tls.Conn)
	if !ok {
		t.Fatal("no TLS connection")
	}
	return c.ConnectionState().PeerCertificates[0]
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	r := newRack(t, sim.Options{})
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(r.CA()) {
		t.Fatal("no CA")
	}
	host := func(m *sim.Machine) string {
		h, _, _ := strings.Cut(strings.TrimPrefix(m.Address(), "https://"), ":")
		return h
	}
	got := map[string]bool{}
	for _, mode := range []string{"selfSigned", "ownCA", "wrongName", "expired"} {
		spec := plain()
		spec.TLS.Mode = mode
		b := addBMC(t, r, spec)
		c := leaf(t, b.m)
		_, err := c.Verify(x509.VerifyOptions{Roots: roots, DNSName: host(b.m)})
		got[mode] = err == nil
		if c.VerifyHostname(host(b.m)) != nil != (mode == "wrongName") {
			t.Errorf("%s: name", mode)
		}
		if c.PublicKeyAlgorithm != x509.ECDSA {
			t.Errorf("%s: %s", mode, c.PublicKeyAlgorithm)
		}
	}
	if diff := cmp.Diff(map[string]bool{"selfSigned": false, "ownCA": true, "wrongName": false, "expired": false}, got); diff != "" {
		t.Errorf("verified by the rack's CA (-want +got):\n%s", diff)
	}
}

func TestCertificateRotation(t *testing.T) {
	t.Parallel()
	b := newBMC(t, plain())
	first, again := leaf(t, b.m), leaf(t, b.m)
	b.faults(`faults: [{name: rotated, match: {skip: 1, times: 1}, effect: {"/tls/generation": 2}}]`)
	b.get(sysPath)
	if !first.Equal(again) || !leaf(t, b.m).Equal(first) {
		t.Error("the certificate changed by itself")
	}
	b.get(sysPath)
	if leaf(t, b.m).Equal(first) {
		t.Error("the certificate did not change")
	}
}

// TestTenThousandMachines holds a rack of the size that is promised.
func TestTenThousandMachines(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r := newRack(t, sim.Options{})
	profiles := sim.Profiles()
	for n := range 10_000 {
		if _, err := r.Add(sim.MachineSpec{Profile: profiles[n%len(profiles)]}); err != nil {
			t.Fatal(err)
		}
	}
	b := &bmc{t, r, r.Machines()[9_999], insecure(t)}
	b.get("/redfish/v1/Systems")
	runtime.GC()
	runtime.ReadMemStats(&after)
	if used := int64(after.HeapInuse+after.StackInuse) - int64(before.HeapInuse+before.StackInuse); used > 1<<30/4 {
		t.Errorf("10,000 machines at rest take %d MiB", used>>20)
	}
}
