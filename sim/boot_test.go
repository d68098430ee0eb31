package sim_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/bettercompute/compute/sim"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const iso = "http://images.example/x.iso"

// twoBoots powers a machine on, and after its first boot restarts it.
func twoBoots(b *bmc) []sim.Boot {
	b.t.Helper()
	b.reset("On")
	b.r.Advance(5 * time.Minute)
	b.reset("ForceRestart")
	b.r.Advance(5 * time.Minute)
	return b.m.BootLog()
}

func TestBootSource(t *testing.T) {
	t.Parallel()
	boot := func(cause, source, url string) sim.Boot {
		return sim.Boot{Cause: cause, Source: source, URL: url, Mode: "UEFI"}
	}
	tests := map[string]struct {
		disk            string
		enabled, target string
		media           bool
		want            []sim.Boot
	}{
		"no override, empty disk":    {"", "", "", false, []sim.Boot{boot("On", "none", ""), boot("ForceRestart", "none", "")}},
		"no override, disk":          {"data", "", "", true, []sim.Boot{boot("On", "disk", ""), boot("ForceRestart", "disk", "")}},
		"no override, medium":        {"", "", "", true, []sim.Boot{boot("On", "cd", iso), boot("ForceRestart", "cd", iso)}},
		"cd once":                    {"data", "Once", "Cd", true, []sim.Boot{boot("On", "cd", iso), boot("ForceRestart", "disk", "")}},
		"cd continuous":              {"data", "Continuous", "Cd", true, []sim.Boot{boot("On", "cd", iso), boot("ForceRestart", "cd", iso)}},
		"cd without a medium":        {"data", "Once", "Cd", false, []sim.Boot{boot("On", "disk", ""), boot("ForceRestart", "disk", "")}},
		"pxe once":                   {"data", "Once", "Pxe", false, []sim.Boot{boot("On", "pxe", ""), boot("ForceRestart", "disk", "")}},
		"hdd once":                   {"data", "Once", "Hdd", true, []sim.Boot{boot("On", "disk", ""), boot("ForceRestart", "disk", "")}},
		"disabled override does not": {"data", "Disabled", "Cd", true, []sim.Boot{boot("On", "disk", ""), boot("ForceRestart", "disk", "")}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := plain()
			spec.DiskContent = tt.disk
			b := newBMC(t, spec)
			if tt.media {
				b.insert(iso)
			}
			if tt.enabled != "" {
				b.override(tt.enabled, tt.target)
			}
			got := twoBoots(b)
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(sim.Boot{}, "At", "System")); diff != "" {
				t.Errorf("boot log (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHTTPBoot(t *testing.T) {
	t.Parallel()
	spec := sim.MachineSpec{Profile: "supermicro", Seed: 1, DiskContent: "data"}
	b := newBMC(t, spec)
	b.done(http.MethodPatch, "/redfish/v1/Systems/1", map[string]any{"Boot": map[string]any{"BootSourceOverrideEnabled": "Once",
		"BootSourceOverrideTarget": "UefiHttp", "HttpBootUri": "http://boot.example/boot.efi"}})
	b.done(http.MethodPost, "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset", map[string]any{"ResetType": "On"})
	b.r.Advance(5 * time.Minute)
	want := []sim.Boot{{System: "1", Cause: "On", Source: "http", URL: "http://boot.example/boot.efi", Mode: "UEFI"}}
	if diff := cmp.Diff(want, b.m.BootLog(), cmpopts.IgnoreFields(sim.Boot{}, "At")); diff != "" {
		t.Errorf("boot log (-want +got):\n%s", diff)
	}
}

// TestBootHomeSettings writes the override where it lives on such a machine, and
// sees it on the live resource only in the boot.
func TestBootHomeSettings(t *testing.T) {
	t.Parallel()
	spec := plain()
	spec.BootHome = "settings"
	b := newBMC(t, spec)
	b.insert(iso)
	if r := b.override("Continuous", "Cd"); r.status != 400 || messageID(r) != "OperationSupportedInFutureStateURI" {
		t.Errorf("PATCH of the live resource: %d %s", r.status, r.raw)
	}
	settings, _ := at(b.get(sysPath), "@Redfish.Settings", "SettingsObject", "@odata.id").(string)
	tag := b.call(http.MethodGet, settings, nil).header.Get("ETag")
	body := map[string]any{"Boot": map[string]any{"BootSourceOverrideEnabled": "Continuous", "BootSourceOverrideTarget": "Cd"}}
	if r := b.call(http.MethodPatch, settings, body, "If-Match", tag); r.status >= 300 {
		t.Fatalf("PATCH of the settings: %d %s", r.status, r.raw)
	}
	target := func(path string) any { return at(b.get(path), "Boot", "BootSourceOverrideTarget") }
	if live, set := target(sysPath), target(settings); live != "None" || set != "Cd" {
		t.Errorf("before the boot: live %v, settings %v", live, set)
	}
	b.reset("On")
	b.r.Advance(5 * time.Minute)
	if live := target(sysPath); live != "Cd" {
		t.Errorf("after the boot: live %v, want Cd", live)
	}
	if got := b.m.BootLog()[0].Source; got != "cd" {
		t.Errorf("booted %s, want cd", got)
	}
}

func TestBootHomeDecoy(t *testing.T) {
	t.Parallel()
	spec := plain()
	spec.BootHome = "liveWithDecoy"
	b := newBMC(t, spec)
	settings, _ := at(b.get(sysPath), "@Redfish.Settings", "SettingsObject", "@odata.id").(string)
	if _, there := b.get(settings)["Boot"]; there {
		t.Error("the decoy shows Boot")
	}
	body := map[string]any{"Boot": map[string]any{"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Cd"}}
	if r := b.call(http.MethodPatch, settings, body); r.status != 400 || messageID(r) != "PropertyNotWritable" {
		t.Errorf("PATCH of the decoy: %d %s", r.status, r.raw)
	}
	if r := b.override("Once", "Cd"); r.status >= 300 {
		t.Errorf("PATCH of the live resource: %d %s", r.status, r.raw)
	}
}

func TestBootPatchRefusals(t *testing.T) {
	t.Parallel()
	b := newBMC(t, plain())
	for name, tt := range map[string]struct {
		body any
		id   string
	}{
		"unknown target":   {map[string]any{"Boot": map[string]any{"BootSourceOverrideTarget": "Tape"}}, "PropertyValueNotInList"},
		"wrong type":       {map[string]any{"Boot": map[string]any{"BootSourceOverrideTarget": 4}}, "PropertyValueTypeError"},
		"unknown property": {map[string]any{"Boot": map[string]any{"Wheels": 4}}, "PropertyUnknown"},
		"read-only":        {map[string]any{"SerialNumber": "x"}, "PropertyNotWritable"},
		"unknown member":   {map[string]any{"Wheels": 4}, "PropertyUnknown"},
		"no JSON":          {`{"Boot":`, "MalformedJSON"},
	} {
		r := b.call(http.MethodPatch, sysPath, tt.body)
		if r.status != 400 || messageID(r) != tt.id {
			t.Errorf("%s: got %d %s, want 400 %s", name, r.status, messageID(r), tt.id)
		}
	}
}

func TestETagPrecondition(t *testing.T) {
	t.Parallel()
	b := newBMC(t, plain())
	tag := b.call(http.MethodGet, sysPath, nil).header.Get("ETag")
	body := map[string]any{"AssetTag": "one"}
	if r := b.call(http.MethodPatch, sysPath, body, "If-Match", tag); r.status >= 300 {
		t.Fatalf("with the tag just read: %d %s", r.status, r.raw)
	}
	if r := b.call(http.MethodPatch, sysPath, body, "If-Match", tag); r.status != http.StatusPreconditionFailed {
		t.Errorf("with an old tag: %d, want 412", r.status)
	}
	if r := b.call(http.MethodPatch, sysPath, body); r.status >= 300 {
		t.Errorf("without a tag: %d", r.status)
	}
}
