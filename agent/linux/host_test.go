package linux_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/agent/linux"
	"github.com/bettercompute/compute/fleet"
)

// machine writes the kernel's files of a small GPU server.
func machine(t *testing.T, more map[string]string) *linux.Host {
	t.Helper()
	dimm := append([]byte{17, 0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x80 - 1, 0, 0, 1, 0, 0x22, 0, 0, 0, 0, 0, 2, 0, 3, 0, 0x00, 0x00, 1, 0}, make([]byte, 8)...)
	dimm[12], dimm[13] = 0xff, 0x7f // the extended size holds it: 65536 MiB
	dimm = append(dimm, "DIMM_A1\x00SER1\x00PART1\x00\x00"...)
	empty := slices.Clone(dimm)
	empty[12], empty[13] = 0, 0
	files := map[string]string{
		"sys/class/dmi/id/product_uuid":   "4c4c4544-0051-3910-8053-b4c04f4e3933\n",
		"sys/class/dmi/id/product_serial": "S1\n", "sys/class/dmi/id/sys_vendor": "Dell Inc.\n",
		"sys/class/dmi/id/product_name": "PowerEdge XE9680\n", "sys/class/dmi/id/bios_version": "2.1\n",
		"proc/cpuinfo": "processor\t: 0\nmodel name\t: Xeon\nphysical id\t: 0\ncpu cores\t: 2\n\nprocessor\t: 1\nmodel name\t: Xeon\nphysical id\t: 0\ncpu cores\t: 2\n\n" +
			"processor\t: 2\nmodel name\t: Xeon\nphysical id\t: 1\ncpu cores\t: 2\n\n",
		"sys/firmware/dmi/entries/17-0/raw":                string(dimm),
		"sys/firmware/dmi/entries/17-1/raw":                string(empty),
		"sys/block/nvme0n1/size":                           "2000000\n",
		"sys/block/nvme0n1/device/serial":                  "NV1   \n",
		"sys/block/nvme0n1/device/model":                   "PM1733\n",
		"sys/block/nvme0c0n1/size":                         "2000000\n",
		"sys/block/sda/size":                               "1000\n",
		"sys/block/sda/queue/rotational":                   "1\n",
		"sys/block/sda/device/vpd_pg80":                    "\x00\x80\x00\x04HDD1",
		"sys/block/sdb/size":                               "1000\n",
		"sys/block/sdb/removable":                          "1\n",
		"sys/block/loop0/size":                             "8\n",
		"sys/block/dm-0/size":                              "8\n",
		"sys/class/net/eth0/address":                       "AA:BB:CC:00:00:01\n",
		"sys/class/net/eth0/device/vendor":                 "0x15b3\n",
		"sys/class/net/eth0/speed":                         "100000\n",
		"sys/class/net/eth0/carrier":                       "1\n",
		"sys/class/net/eth1/address":                       "aa:bb:cc:00:00:02\n",
		"sys/class/net/eth1/device/vendor":                 "0x15b3\n",
		"sys/class/net/eth1/operstate":                     "down\n",
		"sys/class/net/bond0/address":                      "aa:bb:cc:00:00:01\n",
		"sys/bus/pci/devices/0000:18:00.0/class":           "0x030200\n",
		"sys/bus/pci/devices/0000:18:00.0/vendor":          "0x10de\n",
		"sys/bus/pci/devices/0000:18:00.0/device":          "0x2330\n",
		"sys/bus/pci/devices/0000:02:00.0/class":           "0x030000\n",
		"sys/bus/pci/devices/0000:02:00.0/vendor":          "0x1a03\n",
		"sys/bus/pci/devices/0000:02:00.0/device":          "0x2000\n",
		"sys/bus/pci/devices/0000:00:01.0/class":           "0x060400\n",
		"sys/bus/pci/devices/0000:00:01.0/vendor":          "0x8086\n",
		"sys/class/tpm/tpm0/tpm_version_major":             "2\n",
		"proc/driver/nvidia/gpus/0000:18:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t GPU-1\n",
	}
	for name, content := range more {
		files[name] = content
	}
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &linux.Host{Root: root}
}

func TestInventory(t *testing.T) {
	t.Parallel()
	got, err := machine(t, nil).Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	up, down := true, false
	want := fleet.Inventory{
		Vendor: "Dell Inc.", Model: "PowerEdge XE9680", Serial: "S1", UUID: "4c4c4544-0051-3910-8053-b4c04f4e3933", BIOSVersion: "2.1",
		CPUs:      []fleet.CPU{{Model: "Xeon", Slot: "CPU0", Cores: 2, Threads: 2, Arch: got.CPUs[0].Arch}, {Model: "Xeon", Slot: "CPU1", Cores: 2, Threads: 1, Arch: got.CPUs[0].Arch}},
		MemoryMiB: 65536, DIMMs: []fleet.DIMM{{Slot: "DIMM_A1", SizeMiB: 65536, Type: "DDR5", Serial: "SER1", Part: "PART1"}},
		Disks: []fleet.Disk{
			{Serial: "NV1", Model: "PM1733", SizeBytes: 2000000 * 512, Type: "nvme", Path: "/dev/nvme0n1"},
			{Serial: "HDD1", SizeBytes: 512000, Type: "hdd", Path: "/dev/sda"},
			{SizeBytes: 512000, Path: "/dev/sdb", Removable: true},
		},
		NICs:       []fleet.NIC{{MAC: "aa:bb:cc:00:00:01", Name: "eth0", SpeedMbps: 100000, LinkUp: &up}, {MAC: "aa:bb:cc:00:00:02", Name: "eth1", LinkUp: &down}},
		GPUs:       []fleet.Device{{Vendor: "NVIDIA", Model: "NVIDIA H100 80GB HBM3", UUID: "GPU-1", PCIAddress: "0000:18:00.0", Kind: "gpu"}},
		PCIDevices: []fleet.Device{{Model: "1a03:2000", PCIAddress: "0000:02:00.0", Kind: "030000"}},
		Firmware:   []fleet.Component{{Name: "BIOS", Version: "2.1"}},
		TPM:        &fleet.TPM{Present: true, Version: "2.0"},
		Missing: []string{"BMC address: there is no IPMI device (a machine without a BMC, or modprobe ipmi_si ipmi_devintf)",
			"health: the kernel tells none for the machine as a whole"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("inventory (-want +got):\n%s", diff)
	}
}

// What cannot be read is said, source by source, and nothing is made up: in a
// container or a VM there is no DMI, TPM, GPU or disk. In a full machine each
// line has its source; taken away, it is said, and everything else is read as
// before.
func TestInventorySaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	const gpu, disk, nic = "sys/bus/pci/devices/0000:18:00.0", "sys/block/sda", "sys/class/net/eth0"
	for name, c := range map[string]struct {
		gone []string // files or folders
		put  map[string]string
		says []string // the lines that are new, in any order; prefixes
	}{
		"vendor":           {gone: []string{"sys/class/dmi/id/sys_vendor"}, says: []string{"vendor:"}},
		"model":            {gone: []string{"sys/class/dmi/id/product_name"}, says: []string{"model:"}},
		"serial":           {gone: []string{"sys/class/dmi/id/product_serial"}, says: []string{"serial:"}},
		"a word as serial": {put: map[string]string{"sys/class/dmi/id/product_serial": "To Be Filled By O.E.M.\n"}, says: []string{"serial:"}},
		"system UUID":      {gone: []string{"sys/class/dmi/id/product_uuid"}, says: []string{"system UUID:"}},
		"BIOS version":     {gone: []string{"sys/class/dmi/id/bios_version"}, says: []string{"BIOS version:"}},
		"no DMI":           {gone: []string{"sys/class/dmi"}, says: []string{"vendor:", "model:", "serial:", "system UUID:", "BIOS version:"}},
		"processors":       {gone: []string{"proc/cpuinfo"}, says: []string{"processors: proc/cpuinfo cannot"}},
		"no processor":     {put: map[string]string{"proc/cpuinfo": "\n"}, says: []string{"processors: proc/cpuinfo names"}},
		"processor's facts": {put: map[string]string{"proc/cpuinfo": "processor : 0\nBogoMIPS : 50\n\n"},
			says: []string{"processor CPU0: the kernel names no model", "processor CPU0: the kernel tells no number of cores"}},
		"memory modules":  {gone: []string{"sys/firmware/dmi"}, put: map[string]string{"proc/meminfo": "MemTotal:  1024 kB\n"}, says: []string{"memory modules: only"}},
		"memory":          {gone: []string{"sys/firmware/dmi"}, says: []string{"memory: neither"}},
		"disks":           {gone: []string{"sys/block"}, says: []string{"disks: sys/block cannot"}},
		"no disk":         {gone: []string{disk, "sys/block/sdb", "sys/block/nvme0n1"}, says: []string{"disks: the kernel shows none"}},
		"disk's serial":   {gone: []string{disk + "/device/vpd_pg80"}, says: []string{"disk /dev/sda: no serial"}},
		"disk's size":     {gone: []string{disk + "/size"}, says: []string{"disk /dev/sda: no size"}},
		"disk's type":     {gone: []string{disk + "/queue/rotational"}, says: []string{"disk /dev/sda: whether"}},
		"disk's firmware": {put: map[string]string{"sys/class/nvme/nvme0/model": "PM1733\n"}, says: []string{"firmware of nvme0:"}},
		"ports":           {gone: []string{"sys/class/net"}, says: []string{"network ports: sys/class/net cannot"}},
		"no port":         {gone: []string{nic, "sys/class/net/eth1"}, says: []string{"network ports: the kernel shows none"}},
		"port's address":  {gone: []string{nic + "/address"}, says: []string{"network port eth0:"}},
		"PCI":             {gone: []string{"sys/bus"}, says: []string{"GPUs and PCI devices:"}},
		"PCI device":      {gone: []string{"sys/bus/pci/devices/0000:02:00.0/class"}, says: []string{"PCI device 0000:02:00.0:"}},
		"GPU's identity":  {gone: []string{"proc/driver"}, says: []string{"GPU 0000:18:00.0:"}},
		"no GPU":          {gone: []string{gpu}},
		"TPM":             {gone: []string{"sys/class/tpm"}, says: []string{"TPM: sys/class/tpm cannot"}},
		"TPM's version":   {gone: []string{"sys/class/tpm/tpm0/tpm_version_major"}, says: []string{"TPM: its version"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			full, err := machine(t, nil).Inventory(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			h := machine(t, c.put)
			for _, g := range c.gone {
				if err := os.RemoveAll(filepath.Join(h.Root, g)); err != nil {
					t.Fatal(err)
				}
			}
			got, err := h.Inventory(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			added := slices.DeleteFunc(slices.Clone(got.Missing), func(line string) bool { return slices.Contains(full.Missing, line) })
			if len(added) != len(c.says) || len(got.Missing) != len(full.Missing)+len(c.says) {
				t.Errorf("says %q, want %q", added, c.says)
			}
			for _, want := range c.says {
				if !slices.ContainsFunc(added, func(line string) bool { return strings.HasPrefix(line, want) }) {
					t.Errorf("%q does not say %q", added, want)
				}
			}
		})
	}
}

// A host of which nothing can be read has an inventory, which says so of every
// source, and joins: by its key alone.
func TestInventoryOfNothing(t *testing.T) {
	t.Parallel()
	h := &linux.Host{Root: t.TempDir()}
	inv, err := h.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"vendor", "model", "serial", "system UUID", "BIOS version", "processors", "memory", "disks", "network ports", "GPUs and PCI devices", "TPM", "BMC address", "health"} {
		if n := len(slices.DeleteFunc(slices.Clone(inv.Missing), func(line string) bool { return !strings.HasPrefix(line, source+":") })); n != 1 {
			t.Errorf("%s is said to be missing %d times: %q", source, n, inv.Missing)
		}
	}
	if diff := cmp.Diff(fleet.Inventory{Missing: inv.Missing}, inv); diff != "" {
		t.Errorf("made up (-want +got):\n%s", diff)
	}
	hw, err := h.Hardware(t.Context())
	if err == nil {
		t.Error("a machine without a UUID does not say so")
	}
	if diff := cmp.Diff(fleet.Hardware{}, hw); diff != "" {
		t.Errorf("made up (-want +got):\n%s", diff)
	}
	facts, err := h.Acceptance(t.Context())
	if err != nil || facts.Kernel != "" || len(facts.Drivers) > 0 {
		t.Errorf("acceptance = %+v, %v", facts, err)
	}
}

func TestTests(t *testing.T) {
	t.Parallel()
	h := machine(t, nil)
	silent := func(int, string) {}
	if res, err := h.Test(t.Context(), "nic", silent); err != nil || !res.OK || res.Detail != "eth0 up at 100000 Mbit/s, eth1 down" {
		t.Errorf("nic = %+v, %v", res, err)
	}
	if res, err := machine(t, map[string]string{"sys/class/net/eth0/carrier": "0\n"}).Test(t.Context(), "nic", silent); err != nil || res.OK {
		t.Errorf("nic without a link = %+v, %v; want it failed", res, err)
	}
	if _, err := h.Test(t.Context(), "clock", silent); err == nil {
		t.Error("the clock test passes without a clock to compare with")
	}
	for off, want := range map[time.Duration]bool{0: true, 10 * time.Second: true, -time.Minute: false, 48 * time.Hour: false} {
		h.Reference = func(context.Context) (time.Time, error) { return time.Now().Add(off), nil }
		if res, err := h.Test(t.Context(), "clock", silent); err != nil || res.OK != want {
			t.Errorf("clock off by %s = %+v, %v; want %v", off, res, err, want)
		}
	}
	if res, err := h.Test(t.Context(), "cpu", silent); err != nil || !res.OK || res.Values["MiBps"] <= 0 {
		t.Errorf("cpu = %+v, %v", res, err)
	}
}

// What is not built is refused, never answered as done.
func TestNotBuilt(t *testing.T) {
	t.Parallel()
	h, silent := machine(t, nil), func(int, string) {}
	_, writing := h.WriteImage(t.Context(), fleet.Disk{}, agent.WriteImage{}, silent)
	_, memory := h.Test(t.Context(), "memory", silent)
	for what, err := range map[string]error{"write": writing, "memory test": memory, "config drive": h.ConfigDrive(t.Context(), fleet.Disk{}, agent.ConfigDrive{}),
		"erase": h.Erase(t.Context(), "NV1", "full", silent), "rescue": h.Rescue(t.Context(), nil)} {
		if !errors.Is(err, agent.ErrUnsupported) {
			t.Errorf("%s: %v, want %v", what, err, agent.ErrUnsupported)
		}
	}
}
