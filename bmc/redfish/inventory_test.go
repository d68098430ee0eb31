package redfish_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// facts are what an inventory says, in lines that read as a list of parts.
type facts struct {
	System                              string
	CPUs, DIMMs, Disks, NICs, GPUs, PCI []string
	MemoryMiB                           int64
	BIOS, TPM, Health                   string
	// Firmware is the number of components and some of them.
	Firmware []string
	// BIOSAttributes says whether any were served.
	BIOSAttributes bool
	Missing        []string
}

func factsOf(inv fleet.Inventory) facts {
	f := facts{System: strings.Join([]string{inv.Vendor, inv.Model, inv.Serial, inv.UUID}, "|"), MemoryMiB: inv.MemoryMiB,
		BIOS: inv.BIOSVersion, Health: inv.Health, BIOSAttributes: len(inv.BIOSAttributes) > 0, Missing: inv.Missing}
	for _, c := range inv.CPUs {
		f.CPUs = append(f.CPUs, fmt.Sprintf("%s: %s %d/%d %s", c.Slot, c.Model, c.Cores, c.Threads, c.Arch))
	}
	for _, d := range inv.DIMMs {
		f.DIMMs = append(f.DIMMs, fmt.Sprintf("%s: %d %s %s %s", d.Slot, d.SizeMiB, d.Type, d.Part, d.Serial))
	}
	for _, d := range inv.Disks {
		f.Disks = append(f.Disks, fmt.Sprintf("%s: %s|%s|%d|%s", d.Slot, d.Model, d.Serial, d.SizeBytes, d.Type))
	}
	for _, n := range inv.NICs {
		link := "?"
		if n.LinkUp != nil {
			link = map[bool]string{true: "up", false: "down"}[*n.LinkUp]
		}
		f.NICs = append(f.NICs, fmt.Sprintf("%s: %s %d %s", n.Name, n.MAC, n.SpeedMbps, link))
	}
	for _, g := range inv.GPUs {
		f.GPUs = append(f.GPUs, fmt.Sprintf("%s: %s %s %s", g.Slot, g.Model, g.Serial, g.UUID))
	}
	for _, d := range inv.PCIDevices {
		f.PCI = append(f.PCI, fmt.Sprintf("%s: %s %s %s", d.Slot, d.Model, d.Serial, d.Kind))
	}
	f.Firmware = []string{fmt.Sprint(len(inv.Firmware))}
	for _, c := range inv.Firmware {
		if n := strings.ToLower(c.Name); n == "bios" || n == "bmc" || strings.Contains(n, "system rom") && !strings.Contains(n, "redundant") || strings.HasPrefix(n, "ilo") || strings.HasPrefix(n, "contoso") || n == "bios firmware" || n == "5d0869c4" {
			f.Firmware = append(f.Firmware, c.Name+" "+c.Version)
		}
	}
	if inv.TPM != nil {
		f.TPM = fmt.Sprintf("%v %s", inv.TPM.Present, inv.TPM.Version)
	}
	return f
}

// TestRecordedInventories reads every recorded tree and compares by value what
// is in it: nothing lost, nothing invented, and what is not there named.
func TestRecordedInventories(t *testing.T) {
	t.Parallel()
	for _, tree := range expected {
		t.Run(tree.name, func(t *testing.T) {
			t.Parallel()
			c, err := openTree(t, tree.name, tree.system)
			if err != nil {
				t.Fatal(err)
			}
			inv, err := c.Inventory(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tree.want, factsOf(inv)); d != "" {
				t.Errorf("inventory (-want +got):\n%s", d)
			}
		})
	}
}

func TestRecordedIdentities(t *testing.T) {
	t.Parallel()
	for _, tree := range expected {
		t.Run(tree.name, func(t *testing.T) {
			t.Parallel()
			c, err := openTree(t, tree.name, tree.system)
			if err != nil {
				t.Fatal(err)
			}
			f, err := c.Identify(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			caps := f.Capabilities
			got := fmt.Sprintf("%s %s key=%s fw=%q types=%d mode=%q override=%v cd=%v http=%v", f.System, f.Power, f.MachineKey, caps.FirmwareVersion,
				len(caps.ResetTypes), caps.BootMode, caps.BootOverride, caps.VirtualMedia, caps.HTTPBoot)
			if d := cmp.Diff(tree.found, got); d != "" {
				t.Errorf("found (-want +got):\n%s", d)
			}
		})
	}
}

// TestSeveralSystems: a service with two machines names them and picks none.
func TestSeveralSystems(t *testing.T) {
	t.Parallel()
	for _, system := range []string{"", "/redfish/v1/Systems/Node2"} {
		c, err := openTree(t, "EX235n", system)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Identify(t.Context())
		wantKind(t, err, bmc.KindWrongMachine)
		for _, name := range []string{"Node0", "Node1"} {
			if !strings.Contains(err.Error(), "/redfish/v1/Systems/"+name) {
				t.Errorf("%v does not name %s", err, name)
			}
		}
	}
	// A part of a machine is no machine, also when it is asked for by name.
	c, err := openTree(t, "SupermicroGB300", "/redfish/v1/Systems/HGX_Baseboard_0")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Identify(t.Context())
	wantKind(t, err, bmc.KindWrongMachine)
}

// TestMachineKeys: two systems that show the same serial and no UUID are two.
func TestMachineKeys(t *testing.T) {
	t.Parallel()
	var got []string
	for _, system := range []string{"/redfish/v1/Systems/Node0", "/redfish/v1/Systems/Node1"} {
		c, err := openTree(t, "EX235n", system)
		if err != nil {
			t.Fatal(err)
		}
		f, err := c.Identify(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, f.MachineKey)
	}
	if slices.Contains(got, "") || got[0] == got[1] {
		t.Errorf("keys are %q", got)
	}
}
