package sim_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/bettercompute/compute/sim"
	"github.com/google/go-cmp/cmp"
)

// TestSushy has a client that was written against real BMCs drive a machine of
// every profile: log in, inventory, media, boot override, power, boot, eject, a
// restart that boots from the network once, power off.
func TestSushy(t *testing.T) {
	t.Parallel()
	r := newRack(t, sim.Options{TimeScale: 400, Control: "127.0.0.1:0"})
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, r.CA(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, profile := range sim.Profiles() {
		for _, seed := range []uint64{11, 12, 13} {
			m, err := r.Add(sim.MachineSpec{Profile: profile, Seed: seed, MediaUnder: "manager", TLS: sim.TLSSpec{Mode: "ownCA"}})
			if err != nil {
				t.Fatal(err)
			}
			t.Run(profile+" "+m.ID(), func(t *testing.T) {
				t.Parallel()
				cmd := exec.CommandContext(t.Context(), "/usr/bin/python3", "testdata/sushy_check.py",
					m.Address(), m.Username(), m.Password(), r.ControlURL(), m.ID(), ca)
				// Nothing of the surroundings: a CA bundle named there would win over ours.
				cmd.Env = []string{"PATH=/usr/bin:/bin"}
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				var seen map[string]any
				if err := json.Unmarshal(out, &seen); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				v := m.View(true)
				want := map[string]any{"inserted": true, "image": true, "boot": "cd", "uuid": v.UUID, "serial": v.Serial,
					"nics": float64(len(v.MACs)), "restart": "pxe", "overrideAfter": "BootSourceOverrideEnabled.DISABLED"}
				// The processors and memory of an HGX machine are its baseboard's.
				if cpus, _ := seen["processors"].(float64); (cpus > 0) == (profile == "hgx") || (seen["memoryGiB"] != nil) == (profile == "hgx") {
					t.Errorf("%v processors, %v GiB", seen["processors"], seen["memoryGiB"])
				}
				for k, w := range want {
					if diff := cmp.Diff(w, seen[k]); diff != "" {
						t.Errorf("%s (-want +got):\n%s", k, diff)
					}
				}
			})
		}
	}
}
