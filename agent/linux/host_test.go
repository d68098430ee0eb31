package linux_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
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

// What cannot be read is said, and nothing is made up.
func TestInventoryOfNothing(t *testing.T) {
	t.Parallel()
	inv, err := (&linux.Host{Root: t.TempDir()}).Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(inv.Missing) < 7 || inv.MemoryMiB != 0 || inv.CPUs != nil || inv.Disks != nil || inv.Health != "" {
		t.Errorf("inventory = %+v", inv)
	}
	if _, err := (&linux.Host{Root: t.TempDir()}).Hardware(t.Context()); err == nil {
		t.Error("a machine without a UUID does not say so")
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
