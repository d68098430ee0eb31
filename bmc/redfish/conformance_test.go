package redfish_test

import (
	"context"
	"strings"
	"testing"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/bmctest"
	"github.com/bettercompute/compute/bmc/redfish"
	"github.com/bettercompute/compute/sim"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, profile := range sim.Profiles() {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			bmctest.Run(t, func(t *testing.T) bmctest.Bench {
				b := newBench(t, sim.MachineSpec{Profile: profile, Seed: 21, Power: "Off"})
				return bmctest.Bench{Open: openRedfish, Target: b.target(), Options: b.opts,
					Power: func() bmc.PowerState { return bmc.PowerState(strings.ToLower(b.m.View(false).Power)) },
					Boot:  b.bootTarget, Changes: b.changes}
			})
		})
	}
}

func openRedfish(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Client, error) {
	return redfish.Open(ctx, target, opts)
}

func (b *bench) bootTarget() bmc.BootTarget {
	s := b.m.View(true).State.Systems[0]
	o := s.Override
	if s.Pending != nil {
		o = *s.Pending
	}
	if o.Enabled == "Disabled" {
		return bmc.BootNone
	}
	return map[string]bmc.BootTarget{"Pxe": bmc.BootPXE, "Hdd": bmc.BootDisk, "Cd": bmc.BootCD}[o.Target]
}

// changes are the changing requests that the machine received, logins apart.
func (b *bench) changes() int {
	n := 0
	for _, r := range b.m.Requests() {
		if r.Method != "GET" && !strings.Contains(r.Path, "/Sessions") {
			n++
		}
	}
	return n
}
