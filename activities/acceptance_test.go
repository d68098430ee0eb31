package activities

import (
	"strings"
	"testing"

	"github.com/bettercompute/compute/fleet"
)

// Each acceptance check refuses what it is there for, alone, and says what to do;
// more than was recorded, and what one side does not know, is accepted.
func TestJudgeHost(t *testing.T) {
	t.Parallel()
	const uuid, swapped = "4c4c4544-0051-3910-8053-b4c04f4e3934", "44454c4c-5100-1039-8053-b4c04f4e3934"
	inventory := func(more func(*fleet.Inventory)) fleet.Inventory {
		inv := fleet.Inventory{UUID: uuid, Serial: "S1", MemoryMiB: 100_000, CPUs: make([]fleet.CPU, 2),
			Disks: []fleet.Disk{{Serial: "D1"}, {Serial: "D2"}}, NICs: []fleet.NIC{{MAC: "00:1b:21:00:00:01"}, {MAC: "00:1b:21:00:00:02"}},
			GPUs: []fleet.Device{{Model: "H100 SXM5", Vendor: "NVIDIA"}, {Model: "H100 80GB HBM3", Vendor: "NVIDIA"}}}
		if more != nil {
			more(&inv)
		}
		return inv
	}
	off := func(s float64) *float64 { return &s }
	for name, c := range map[string]struct {
		facts func(*fleet.AcceptanceFacts)
		work  func(*Work)
		fails string // the condition, "" for none
		says  string
	}{
		"good":                     {},
		"another machine":          {facts: func(f *fleet.AcceptanceFacts) { f.Inventory.UUID = "4c4c4544-0051-3910-8053-b4c04f4e3935" }, fails: "HardwareAccepted", says: "system UUID"},
		"the other byte order":     {facts: func(f *fleet.AcceptanceFacts) { f.Inventory.UUID = swapped }},
		"UUID that proves nothing": {facts: func(f *fleet.AcceptanceFacts) { f.Inventory.UUID = "00000000-0000-0000-0000-000000000000" }},
		"another serial":           {facts: func(f *fleet.AcceptanceFacts) { f.Inventory.Serial = "S2" }, fails: "HardwareAccepted", says: "serial S2"},
		"CPU gone":                 {facts: func(f *fleet.AcceptanceFacts) { f.Inventory.CPUs = f.Inventory.CPUs[:1] }, fails: "HardwareAccepted", says: "1 CPUs of 2"},
		"memory gone":              {facts: func(f *fleet.AcceptanceFacts) { f.Inventory.MemoryMiB = 50_000 }, fails: "HardwareAccepted", says: "50000 MiB"},
		"a little less memory":     {facts: func(f *fleet.AcceptanceFacts) { f.Inventory.MemoryMiB = 98_000 }},
		"disk gone":                {facts: func(f *fleet.AcceptanceFacts) { f.Inventory.Disks = f.Inventory.Disks[:1] }, fails: "HardwareAccepted", says: "D2"},
		"disk added": {facts: func(f *fleet.AcceptanceFacts) {
			f.Inventory.Disks = append(f.Inventory.Disks, fleet.Disk{Serial: "D3"})
		}},
		"disks not readable":      {facts: func(f *fleet.AcceptanceFacts) { f.Inventory.Disks = nil }},
		"NIC gone":                {facts: func(f *fleet.AcceptanceFacts) { f.Inventory.NICs = f.Inventory.NICs[1:] }, fails: "HardwareAccepted", says: "00:1b:21:00:00:01"},
		"GPU gone, no pool":       {facts: func(f *fleet.AcceptanceFacts) { f.Inventory.GPUs = f.Inventory.GPUs[:1] }, fails: "HardwareAccepted", says: "1 GPUs of 2"},
		"nothing recorded":        {work: func(w *Work) { w.Inventory = nil }},
		"the pool's GPUs":         {work: func(w *Work) { w.Pool = &PoolWant{GPUModel: "NVIDIA H100 80GB HBM3", GPUsPerNode: 2} }},
		"another pool's GPUs":     {work: func(w *Work) { w.Pool = &PoolWant{GPUModel: "NVIDIA A100 SXM4 80GB"} }, fails: "GpusAccepted", says: "A100"},
		"too few for the pool":    {work: func(w *Work) { w.Pool = &PoolWant{GPUModel: "H100 SXM5", GPUsPerNode: 8} }, fails: "GpusAccepted", says: "8"},
		"no driver":               {facts: func(f *fleet.AcceptanceFacts) { f.Drivers = nil }, fails: "DriverPresent", says: "NVIDIA"},
		"another vendor's driver": {facts: func(f *fleet.AcceptanceFacts) { f.Drivers = map[string]string{"AMD": "amdgpu"} }, fails: "DriverPresent", says: "NVIDIA"},
		"full disk":               {facts: func(f *fleet.AcceptanceFacts) { f.DiskFreeBytes = 1 }, fails: "DiskSpace", says: "0.0 GiB"},
		"disk not readable":       {facts: func(f *fleet.AcceptanceFacts) { f.DiskFreeBytes = -1 }, fails: "DiskSpace", says: "could not be read"},
		"clock ahead":             {facts: func(f *fleet.AcceptanceFacts) { f.ClockOffsetSeconds = off(90) }, fails: "ClockInSync", says: "90 s"},
		"clock behind":            {facts: func(f *fleet.AcceptanceFacts) { f.ClockOffsetSeconds = off(-7200) }, fails: "ClockInSync", says: "-7200 s"},
		"clock not known":         {facts: func(f *fleet.AcceptanceFacts) { f.ClockOffsetSeconds = nil }, fails: "ClockInSync", says: "could not be compared"},
		"old kernel":              {facts: func(f *fleet.AcceptanceFacts) { f.Kernel = "4.9.0-19-amd64" }, fails: "KernelAccepted", says: "4.18"},
		"least kernel":            {facts: func(f *fleet.AcceptanceFacts) { f.Kernel = "4.18.0-553.el8_10.x86_64" }},
		"no kernel":               {facts: func(f *fleet.AcceptanceFacts) { f.Kernel = "" }, fails: "KernelAccepted", says: "cannot be read"},
		"gateway away":            {facts: func(f *fleet.AcceptanceFacts) { f.GatewayError = "connection refused" }, fails: "GatewayReachable", says: "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recorded := inventory(nil)
			f := fleet.AcceptanceFacts{Inventory: inventory(nil), Drivers: map[string]string{"NVIDIA": "nvidia 580.1"}, DiskFreeBytes: 1 << 40,
				ClockOffsetSeconds: off(0.3), Kernel: "6.12.48+deb13-amd64"}
			w := Work{Inventory: &recorded}
			if c.facts != nil {
				c.facts(&f)
			}
			if c.work != nil {
				c.work(&w)
			}
			v := judgeHost(f, w)
			if len(v.Conditions) != 7 {
				t.Errorf("%d conditions, want one for each of 7 checks", len(v.Conditions))
			}
			for _, cond := range v.Conditions {
				bad := cond.Status == fleet.ConditionFalse
				_, todo, _ := strings.Cut(cond.Message, "; ")
				if bad != (cond.Type == c.fails) || bad && !strings.Contains(cond.Message, c.says) || bad && todo == "" {
					t.Errorf("%s is %s: %s; want %q to fail, saying %q and what to do", cond.Type, cond.Status, cond.Message, c.fails, c.says)
				}
			}
			if (v.Fails != nil) != (c.fails != "") {
				t.Errorf("fails: %v", v.Fails)
			}
		})
	}
}
