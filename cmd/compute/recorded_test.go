package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/bmc/redfish/recorded"
	"github.com/bettercompute/compute/fleet"
)

// hardware is what the collection of recorded services says of a machine.
type hardware struct {
	Vendor, Model, Serial     string
	CPUs, Disks, NICs, GPUs   int
	MemoryGiB                 int64
	GPUModel, Missing, System string
}

// Every recorded service is enrolled and inspected by the workflows: one node a
// machine, what is there by value, what is not there said to be missing.
func TestRecordedServices(t *testing.T) {
	t.Parallel()
	u := startUser(t)
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("as recorded"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]hardware{
		"DL325":         {Vendor: "HPE", Model: "ProLiant DL325 Gen10 Plus", Serial: "MXQ019020B", CPUs: 1, NICs: 4, MemoryGiB: 64, Missing: "disks"},
		"XL675d_A40":    {Vendor: "HPE", Model: "ProLiant XL675d Gen10 Plus", Serial: "JS05NP1072", CPUs: 2, GPUs: 8, MemoryGiB: 256, GPUModel: "A40"},
		"EX235n":        {Vendor: "HPE", CPUs: 1, GPUs: 4, MemoryGiB: 256, GPUModel: "A100", System: "/redfish/v1/Systems/Node0", Missing: "MAC"},
		"Gigabyte":      {Model: "H262-Z63-00", CPUs: 2},
		"OpenBMC-stock": {Missing: "serial"},
		// Nine drives are named, all of them absent; a chassis shows one as enabled.
		"SupermicroGB300":   {Vendor: "Supermicro", CPUs: 2, GPUs: 4, Disks: 1, GPUModel: "GB300"},
		"public-rackmount1": {Vendor: "Contoso", Model: "3500", Serial: "437XR1138R2", MemoryGiB: 96},
	} {
		t.Run(name, func(t *testing.T) {
			u := &user{t: t, stack: u.stack, env: u.env}
			srv := recorded.Serve(t, name)
			node := strings.ToLower(strings.ReplaceAll(name, "_", "-"))
			u.run("computectl", "metal", "enroll", "--name", node, "--watch", "--bmc-address", srv.URL+want.System, "--bmc-username", "root",
				"--bmc-password-file", password, "--bmc-tls-mode", "pin")
			u.run("computectl", "metal", "inspect", node, "--watch")
			inv := u.node(node).Inventory
			if inv == nil {
				t.Fatal("no inventory")
			}
			t.Logf("%s %s %s: %d CPUs, %d MiB, %d disks, %d NICs, %d GPUs; missing %q", inv.Vendor, inv.Model, inv.Serial, len(inv.CPUs), inv.MemoryMiB,
				len(inv.Disks), len(inv.NICs), len(inv.GPUs), inv.Missing)
			if diff := cmp.Diff(want, seen(*inv, want)); diff != "" {
				t.Errorf("inventory (-want +got):\n%s", diff)
			}
		})
	}
}

// seen is an inventory in the terms of what is wanted; members that are not
// stated are not compared.
func seen(inv fleet.Inventory, want hardware) hardware {
	got := want
	for _, c := range []struct {
		want *string
		is   string
	}{{&got.Vendor, inv.Vendor}, {&got.Model, inv.Model}, {&got.Serial, inv.Serial}} {
		if *c.want != "" {
			*c.want = c.is
		}
	}
	for _, c := range []struct {
		want *int
		is   int
	}{{&got.CPUs, len(inv.CPUs)}, {&got.Disks, len(inv.Disks)}, {&got.NICs, len(inv.NICs)}} {
		if *c.want != 0 {
			*c.want = c.is
		}
	}
	got.GPUs = len(inv.GPUs)
	if want.MemoryGiB != 0 {
		got.MemoryGiB = inv.MemoryMiB / 1024
	}
	for _, g := range inv.GPUs {
		if !strings.Contains(g.Model, want.GPUModel) {
			got.GPUModel = fmt.Sprintf("%q", g.Model)
		}
	}
	if !strings.Contains(strings.Join(inv.Missing, "\n"), want.Missing) {
		got.Missing = strings.Join(inv.Missing, "\n")
	}
	return got
}
