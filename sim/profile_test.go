package sim_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/bettercompute/compute/sim"
	"github.com/google/go-cmp/cmp"
)

// TestTreeOfEveryProfile follows every link of the service: what is linked is
// there, says its own path, and has a type and a name.
func TestTreeOfEveryProfile(t *testing.T) {
	t.Parallel()
	r := newRack(t, sim.Options{})
	for _, profile := range sim.Profiles() {
		for seed := range uint64(6) {
			b := addBMC(t, r, sim.MachineSpec{Profile: profile, Seed: seed + 1})
			t.Run(b.m.ID()+" "+profile, func(t *testing.T) {
				t.Parallel()
				b := &bmc{t, r, b.m, insecure(t)}
				seen := crawl(b)
				if len(seen) < 40 {
					t.Errorf("only %d resources", len(seen))
				}
			})
		}
	}
}

// crawl reads the service from its root, and returns the documents by path.
func crawl(b *bmc) map[string]map[string]any {
	b.t.Helper()
	seen := map[string]map[string]any{}
	queue := []string{"/redfish/v1"}
	for len(queue) > 0 {
		path := queue[0]
		queue = queue[1:]
		key, _, paged := strings.Cut(strings.TrimRight(path, "/"), "?")
		if seen[key] != nil && !paged {
			continue
		}
		r := b.call(http.MethodGet, path, nil)
		if r.status != http.StatusOK {
			b.t.Errorf("%s: %d", path, r.status)
			continue
		}
		if r.body["@odata.id"] != key || r.body["@odata.type"] == nil || r.body["Name"] == nil {
			b.t.Errorf("%s: @odata.id %v, @odata.type %v, Name %v", path, r.body["@odata.id"], r.body["@odata.type"], r.body["Name"])
		}
		seen[key] = r.body
		queue = append(queue, linked(r.body, key)...)
	}
	return seen
}

// linked lists what a document links to, action targets apart.
func linked(v any, self string) []string {
	var out []string
	switch d := v.(type) {
	case map[string]any:
		for k, e := range d {
			s, ok := e.(string)
			if ok && (k == "@odata.id" && s != self && !strings.Contains(s, "#") || k == "Members@odata.nextLink" || k == "@Redfish.ActionInfo") {
				out = append(out, s)
			}
			if k != "error" {
				out = append(out, linked(e, self)...)
			}
		}
	case []any:
		for _, e := range d {
			out = append(out, linked(e, self)...)
		}
	}
	return out
}

// TestSeedVaries shows that what the seed decides differs between machines, and
// that one seed decides the same each time.
func TestSeedVaries(t *testing.T) {
	t.Parallel()
	r := newRack(t, sim.Options{})
	kinds := map[string]map[any]bool{}
	note := func(kind string, v any) {
		if kinds[kind] == nil {
			kinds[kind] = map[any]bool{}
		}
		kinds[kind][v] = true
	}
	for seed := range uint64(24) {
		b := addBMC(t, r, sim.MachineSpec{Profile: "generic", Seed: seed + 1})
		system, _ := at(b.get("/redfish/v1/Systems"), "Members", 0, "@odata.id").(string)
		doc := b.call(http.MethodGet, system, nil)
		note("system id", system)
		note("etag in the header", doc.header.Get("ETag") != "")
		note("etag in the body", doc.body["@odata.etag"] != nil)
		note("reset types inline", at(doc.body, "Actions", "#ComputerSystem.Reset", "ResetType@Redfish.AllowableValues") != nil)
		refused := b.call(http.MethodPatch, system, map[string]any{"Wheels": 4})
		note("message prefix", strings.TrimSuffix(at(refused.body, "error", "@Message.ExtendedInfo", 0, "MessageId").(string), messageID(refused)))
		note("order of processors", at(b.get(strings.TrimSuffix(system, "/")+"/Processors"), "Members", 0, "@odata.id"))
		note("reset status", b.call(http.MethodPost, strings.TrimSuffix(system, "/")+"/Actions/ComputerSystem.Reset", map[string]any{"ResetType": "On"}).status)
		note("session location", strings.HasPrefix(b.login().header.Get("Location"), "https"))
	}
	for kind, values := range kinds {
		if len(values) < 2 {
			t.Errorf("%s does not vary: %v", kind, values)
		}
	}
	one, two := r.Machines()[4], addBMC(t, r, sim.MachineSpec{Profile: "generic", Seed: 5})
	docOne := (&bmc{t, r, one, insecure(t)}).get("/redfish/v1/Systems")
	if diff := cmp.Diff(docOne, two.get("/redfish/v1/Systems")); diff != "" {
		t.Errorf("two machines of one seed differ:\n%s", diff)
	}
	if one.View(true).Serial == two.m.View(true).Serial {
		t.Error("two machines have one serial")
	}
}

// TestBaseboardIsAPart reads a machine that is two systems: power and drives on
// one, GPUs on the other, which has no Reset.
func TestBaseboardIsAPart(t *testing.T) {
	t.Parallel()
	b := newBMC(t, sim.MachineSpec{Profile: "hgx", Seed: 1})
	count := func(path string) any { return b.get(path)["Members@odata.count"] }
	main, board := "/redfish/v1/Systems/System_0", "/redfish/v1/Systems/HGX_Baseboard_0"
	got := []any{count("/redfish/v1/Systems"), count(main + "/Processors"), count(board + "/Processors"), count("/redfish/v1/Managers")}
	if diff := cmp.Diff([]any{2.0, 0.0, 6.0, 2.0}, got); diff != "" {
		t.Errorf("systems, processors of each, managers (-want +got):\n%s", diff)
	}
	if b.get(board)["Actions"] != nil || b.get(main)["SerialNumber"] == b.get(board)["SerialNumber"] {
		t.Error("the baseboard has actions, or the machine's serial")
	}
	if r := b.call(http.MethodPost, board+"/Actions/ComputerSystem.Reset", map[string]any{"ResetType": "ForceOff"}); r.status != http.StatusNotFound {
		t.Errorf("reset of the baseboard: %d, want 404", r.status)
	}
}

func TestThreeSystems(t *testing.T) {
	t.Parallel()
	spec := plain()
	spec.Systems = 3
	b := newBMC(t, spec)
	b.done(http.MethodPost, sysPath+"2/Actions/ComputerSystem.Reset", map[string]any{"ResetType": "On"})
	b.r.Advance(20e9)
	var got []any
	for _, id := range []string{"", "2", "3"} {
		doc := b.get(sysPath + id)
		got = append(got, doc["PowerState"])
	}
	if diff := cmp.Diff([]any{"Off", "On", "Off"}, got); diff != "" {
		t.Errorf("power (-want +got):\n%s", diff)
	}
	if a, c := b.get(sysPath)["UUID"], b.get(sysPath + "2")["UUID"]; a == c {
		t.Error("two systems have one UUID")
	}
}

func TestRefusesImpossibleMachines(t *testing.T) {
	t.Parallel()
	r := newRack(t, sim.Options{})
	for name, spec := range map[string]sim.MachineSpec{
		"profile": {Profile: "acme"}, "model": {Model: "Cray-1"}, "etag": {ETag: "cookie"}, "systems": {Systems: 99},
		"reset type": {ResetTypes: []string{"Explode"}}, "tls": {TLS: sim.TLSSpec{Mode: "none"}},
	} {
		if _, err := r.Add(spec); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
