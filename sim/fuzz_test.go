package sim_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/bettercompute/compute/sim"
)

// FuzzParseFaults reads anything as a fault file, and puts what is one on a machine.
func FuzzParseFaults(f *testing.F) {
	for _, name := range sim.FaultNames() {
		if _, err := sim.NamedFaults(name); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(`faults: [{name: a, match: {path: "**", every: 2, state: {post: true}}, patch: {Boot: null}}]`)
	f.Add(`{"faults": [{"name": "b", "match": {}, "effect": {"/systems/0/media": []}}], "machine": {"post": 3}}`)
	r, err := sim.NewRack(sim.Options{TimeScale: still})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = r.Close() })
	m, err := r.Add(plain())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(_ *testing.T, doc string) {
		if file, err := sim.ParseFaults([]byte(doc)); err == nil {
			_ = m.SetFaults(file) // a refusal is an answer
		}
	})
}

// FuzzRequest sends anything to a machine: whatever it is, the answer is one of
// a service that works, and a refusal names its message.
func FuzzRequest(f *testing.F) {
	f.Add("POST", resetPath, `{"ResetType": "On"}`)
	f.Add("PATCH", sysPath, `{"Boot": {"BootSourceOverrideTarget": null}}`)
	f.Add("POST", cdPath+"/Actions/VirtualMedia.InsertMedia", `{"Image": "http://[::1"}`)
	f.Add("GET", "/redfish/v1/Systems/?$skip=-4&$expand=*", "")
	f.Add("POST", sessions, `[]`)
	f.Add("PATCH", "/redfish/v1/AccountService/Accounts/root", `{"RoleId": 4, "Enabled": "x"}`)
	f.Add("DELETE", "/redfish/v1/TaskService/TaskMonitors/7", "")
	f.Fuzz(func(t *testing.T, method, path, body string) {
		if !strings.HasPrefix(path, "/") {
			path = "/" + path
		}
		b := addBMC(t, newRack(t, sim.Options{}), plain())
		req, err := http.NewRequestWithContext(t.Context(), method, b.m.Address()+path, strings.NewReader(body))
		if err != nil {
			return
		}
		req.SetBasicAuth(b.m.Username(), b.m.Password())
		r := b.do(req)
		if r == nil {
			return // the client refused to send it, or the machine's BMC restarts
		}
		if r.status >= 500 && r.status != http.StatusServiceUnavailable {
			t.Errorf("%s %q %q: %v", method, path, body, r)
		}
		if r.status >= 400 && len(r.raw) > 0 && r.body != nil && messageID(r) == "" {
			t.Errorf("%s %q %q: no MessageId in %v", method, path, body, r)
		}
	})
}
