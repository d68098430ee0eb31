package activities

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
)

func gpus(models ...string) fleet.Inventory {
	inv := fleet.Inventory{Model: "X1", Health: "OK"}
	for _, m := range models {
		inv.GPUs = append(inv.GPUs, fleet.Device{Model: m})
	}
	return inv
}

func TestJudgeHardware(t *testing.T) {
	t.Parallel()
	h100, site := &PoolWant{GPUModel: "NVIDIA H100 SXM5 80GB", GPUsPerNode: 2}, fleet.SiteSpec{}
	sick := gpus()
	sick.Health, sick.Disks = "Critical", []fleet.Disk{{Serial: "D7", Health: "Critical"}}
	warned := gpus()
	warned.Health = "Warning"
	cases := []struct {
		name  string
		inv   fleet.Inventory
		pool  *PoolWant
		code  string
		words []string
	}{
		{name: "no pool", inv: gpus()},
		{name: "other spellings of the model", inv: gpus("NVIDIA H100 80GB HBM3", "HGX H100"), pool: h100},
		{name: "one missing", inv: gpus("NVIDIA H100 80GB HBM3"), pool: h100, code: CodeMismatch, words: []string{"wants 2", "shows 1"}},
		{name: "one too many", inv: gpus("H100 SXM5", "H100 SXM5", "H100 SXM5"), pool: h100, code: CodeMismatch, words: []string{"shows 3"}},
		{name: "another model", inv: gpus("H100 PCIe", "H100 PCIe"), pool: h100, code: CodeMismatch, words: []string{"H100 PCIe"}},
		{name: "none, number not said", inv: gpus(), pool: &PoolWant{GPUModel: "H100"}, code: CodeMismatch, words: []string{"shows none"}},
		{name: "critical", inv: sick, code: CodeHealth, words: []string{"disk D7"}},
		{name: "a warning does not fail it", inv: warned},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := judgeHardware(c.inv, c.pool, site, "report")
			switch {
			case c.code == "" && v.Fails != nil:
				t.Errorf("fails: %+v", v.Fails)
			case c.code != "" && (v.Fails == nil || v.Fails.Code != c.code):
				t.Fatalf("verdict %+v", v)
			}
			for _, w := range c.words {
				if !strings.Contains(v.Fails.Cause, w) {
					t.Errorf("the cause %q does not say %q", v.Fails.Cause, w)
				}
			}
		})
	}
}

func TestFirmwareIsReported(t *testing.T) {
	t.Parallel()
	inv := gpus()
	inv.BIOSVersion, inv.Firmware = "2.1", []fleet.Component{{Name: "BMC", Version: "1.0"}}
	site := fleet.SiteSpec{FirmwareBaseline: map[string]map[string]string{"X1": {"bios": "2.2", "bmc": "1.0", "NIC": "7"}}}
	want := []string{"firmware NIC: 7 in the baseline, not shown by the BMC", "firmware bios: 2.1, the baseline says 2.2"}
	if diff := cmp.Diff(want, judgeHardware(inv, nil, site, "report").Notes); diff != "" {
		t.Error(diff)
	}
	if notes := judgeHardware(inv, nil, site, "ignore").Notes; len(notes) != 0 {
		t.Errorf("ignored baseline reported: %v", notes)
	}
}

// TestMergeInventories: the machine's own lists win where it has them, what
// only the BMC knows stays, and what was missing is no more once it was given.
func TestMergeInventories(t *testing.T) {
	t.Parallel()
	bmcSaw := fleet.Inventory{Serial: "S1", MemoryMiB: 1024, Disks: []fleet.Disk{{Serial: "D1", Slot: "3", Health: "OK"}},
		Firmware: []fleet.Component{{Name: "BMC", Version: "1"}}, Missing: []string{"GPUs", "TPM"}}
	machineSaw := fleet.Inventory{Disks: []fleet.Disk{{Serial: "D1", Path: "/dev/sda"}, {Serial: "D2"}}, GPUs: []fleet.Device{{Model: "H100"}},
		BMC: &fleet.BMCLAN{Address: "192.0.2.17"}}
	want := fleet.Inventory{Serial: "S1", MemoryMiB: 1024, Disks: []fleet.Disk{{Serial: "D1", Slot: "3", Health: "OK", Path: "/dev/sda"}, {Serial: "D2"}},
		GPUs: []fleet.Device{{Model: "H100"}}, Firmware: []fleet.Component{{Name: "BMC", Version: "1"}}, Missing: []string{"TPM"}, InBand: true,
		BMC: &fleet.BMCLAN{Address: "192.0.2.17"}}
	if diff := cmp.Diff(want, mergeInventories(bmcSaw, machineSaw)); diff != "" {
		t.Error(diff)
	}
}
