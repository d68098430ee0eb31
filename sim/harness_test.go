package sim_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/sim"
)

// still is a time scale at which no simulated time passes by itself: a test
// moves it with Advance.
const still = 1e-6

// insecure is a client that trusts any certificate and keeps no connection, as
// the machines come and go with the test.
func insecure(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // simulated BMCs
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// plain is a machine that does nothing surprising: what a test does not set is
// the same in every run.
func plain() sim.MachineSpec {
	return sim.MachineSpec{Profile: "openbmc", Seed: 7, ETag: "header", ResetTypesFrom: "inline"}
}

func newRack(t *testing.T, opts sim.Options) *sim.Rack {
	t.Helper()
	if opts.TimeScale == 0 {
		opts.TimeScale = still
	}
	r, err := sim.NewRack(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("closing the rack: %v", err)
		}
	})
	return r
}

// bmc is a machine as a client of its Redfish service.
type bmc struct {
	t *testing.T
	r *sim.Rack
	m *sim.Machine
	c *http.Client
}

func newBMC(t *testing.T, spec sim.MachineSpec) *bmc {
	t.Helper()
	return addBMC(t, newRack(t, sim.Options{Seed: 3}), spec)
}

func addBMC(t *testing.T, r *sim.Rack, spec sim.MachineSpec) *bmc {
	t.Helper()
	m, err := r.Add(spec)
	if err != nil {
		t.Fatal(err)
	}
	return &bmc{t, r, m, insecure(t)}
}

func (b *bmc) faults(doc string) {
	b.t.Helper()
	f, err := sim.ParseFaults([]byte(doc))
	if err != nil {
		b.t.Fatal(err)
	}
	if err := b.m.SetFaults(f); err != nil {
		b.t.Fatal(err)
	}
}

type response struct {
	status int
	header http.Header
	raw    []byte
	body   map[string]any
}

// String is what a failed test prints.
func (r *response) String() string {
	if r == nil {
		return "no answer"
	}
	return fmt.Sprintf("%d %.300s", r.status, r.raw)
}

// call makes a request with Basic auth. It returns nil when the connection ended
// without a whole answer.
func (b *bmc) call(method, path string, body any, headers ...string) *response {
	b.t.Helper()
	return b.as(b.m.Username(), b.m.Password(), method, path, body, headers...)
}

func (b *bmc) as(user, password, method, path string, body any, headers ...string) *response {
	b.t.Helper()
	var in io.Reader
	if s, ok := body.(string); ok {
		in = strings.NewReader(s)
	} else if body != nil {
		j, err := json.Marshal(body)
		if err != nil {
			b.t.Fatal(err)
		}
		in = bytes.NewReader(j)
	}
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.m.Address()+path, in)
	if err != nil {
		b.t.Fatal(err)
	}
	if user != "" {
		req.SetBasicAuth(user, password)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return b.do(req)
}

func (b *bmc) do(req *http.Request) *response {
	b.t.Helper()
	resp, err := b.c.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil
	}
	out := &response{status: resp.StatusCode, header: resp.Header, raw: raw}
	_ = json.Unmarshal(raw, &out.body) // a test of a broken body looks at raw
	return out
}

func (b *bmc) get(path string) map[string]any {
	b.t.Helper()
	r := b.call(http.MethodGet, path, nil)
	if r == nil || r.status != http.StatusOK {
		b.t.Fatalf("GET %s: %v", path, r)
	}
	return r.body
}

// done makes a change that has to be accepted.
func (b *bmc) done(method, path string, body any) *response {
	b.t.Helper()
	r := b.call(method, path, body)
	if r == nil || r.status >= 300 {
		b.t.Fatalf("%s %s: %v", method, path, r)
	}
	return r
}

const (
	sysPath   = "/redfish/v1/Systems/system"
	resetPath = sysPath + "/Actions/ComputerSystem.Reset"
	cdPath    = "/redfish/v1/Managers/bmc/VirtualMedia/Slot_2"
)

func (b *bmc) reset(kind string) *response {
	b.t.Helper()
	return b.call(http.MethodPost, resetPath, map[string]any{"ResetType": kind})
}

func (b *bmc) insert(image string) *response {
	b.t.Helper()
	return b.call(http.MethodPost, cdPath+"/Actions/VirtualMedia.InsertMedia", map[string]any{"Image": image})
}

func (b *bmc) override(enabled, target string) *response {
	b.t.Helper()
	return b.call(http.MethodPatch, sysPath, map[string]any{"Boot": map[string]any{
		"BootSourceOverrideEnabled": enabled, "BootSourceOverrideTarget": target}})
}

func (b *bmc) power() string {
	b.t.Helper()
	return b.m.View(false).Power
}

// at is the value at a path of members and indexes.
func at(doc any, path ...any) any {
	for _, p := range path {
		switch k := p.(type) {
		case string:
			m, ok := doc.(map[string]any)
			if !ok {
				return nil
			}
			doc = m[k]
		case int:
			l, ok := doc.([]any)
			if !ok || k >= len(l) {
				return nil
			}
			doc = l[k]
		}
	}
	return doc
}

// messageID is the last part of the first MessageId of a refusal.
func messageID(r *response) string {
	id, _ := at(r.body, "error", "@Message.ExtendedInfo", 0, "MessageId").(string)
	return id[strings.LastIndexByte(id, '.')+1:]
}

// eventually polls a condition that another goroutine makes true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("never happened: %s", what)
		case <-tick.C:
		}
	}
}

// receive takes what another goroutine sends.
func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}
