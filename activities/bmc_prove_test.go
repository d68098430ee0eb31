package activities

import (
	"strings"
	"testing"

	"github.com/bettercompute/compute/fleet"
)

// What proves that a BMC is an adopted host's, and what does not.
func TestProveBMC(t *testing.T) {
	t.Parallel()
	const uuid, swapped, other, zero = "4c4c4544-0051-3910-8053-b4c04f4e3934", "44454c4c-5100-1039-8053-b4c04f4e3934", "4c4c4544-0051-3910-8053-b4c04f4e3935", "00000000-0000-0000-0000-000000000000"
	a, b, local := "00:1b:21:00:00:01", "00:1b:21:00:00:02", "02:1b:21:00:00:01"
	for name, c := range map[string]struct {
		host, bmc         string
		hostMACs, bmcMACs []string
		by, fault         string
	}{
		"same UUID":                            {host: uuid, bmc: strings.ToUpper(uuid), by: "UUID"},
		"other byte order":                     {host: uuid, bmc: swapped, by: "UUID"},
		"another UUID":                         {host: uuid, bmc: other, fault: other},
		"another UUID, same addresses":         {host: uuid, bmc: other, hostMACs: []string{a}, bmcMACs: []string{a}, fault: other},
		"UUIDs that prove nothing":             {host: zero, bmc: zero, fault: "prove nothing"},
		"no UUIDs, same addresses":             {hostMACs: []string{a, b}, bmcMACs: []string{strings.ToUpper(a)}, by: "1 network addresses"},
		"one UUID, same addresses":             {host: uuid, hostMACs: []string{a}, bmcMACs: []string{a}, by: "network"},
		"no UUIDs, other addresses":            {hostMACs: []string{a}, bmcMACs: []string{b}, fault: "not the same machine's"},
		"no UUIDs, addresses that cross":       {hostMACs: []string{a, b}, bmcMACs: []string{b, "00:1b:21:00:00:03"}, fault: "not the same machine's"},
		"no UUIDs, addresses made by software": {hostMACs: []string{local}, bmcMACs: []string{local}, fault: "not the same machine's"},
		"nothing known":                        {fault: "prove nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			by, fault := proveBMC(fleet.Hardware{UUID: c.host, MACs: c.hostMACs}, fleet.BMCIdentity{UUID: c.bmc}, c.bmcMACs)
			if (by == "") != (c.by == "") || !strings.Contains(by, c.by) || (fault == "") != (c.fault == "") || !strings.Contains(fault, c.fault) {
				t.Errorf("by %q, fault %q; want %q, %q", by, fault, c.by, c.fault)
			}
		})
	}
}
