package redfish_test

import (
	"testing"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/sim"
)

// TestGoodPath walks one machine of every profile through what a deploy asks
// of a BMC, judged by the machine's true state.
func TestGoodPath(t *testing.T) {
	t.Parallel()
	for _, profile := range sim.Profiles() {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, sim.MachineSpec{Profile: profile, Seed: 5})
			c := b.open()
			ctx := b.ctx()
			found, err := c.Identify(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if found.Identity.Serial == "" || found.System == "" || found.MachineKey == "" || found.Power != bmc.PowerOff {
				t.Errorf("found %+v", found)
			}
			r, err := c.SetPower(ctx, bmc.PowerChange{Aim: bmc.AimOn})
			if err != nil || r.State != bmc.PowerOn {
				t.Fatalf("on: %+v, %v", r, err)
			}
			r, err = c.SetPower(ctx, bmc.PowerChange{Aim: bmc.AimOff})
			if err != nil || r.State != bmc.PowerOff {
				t.Fatalf("off: %+v, %v", r, err)
			}
			if found.Capabilities.VirtualMedia {
				const iso = "http://127.0.0.1:9/boot/x/compute.iso"
				if err := c.InsertMedia(ctx, iso); err != nil {
					t.Fatal(err)
				}
				if !b.holds(iso) {
					t.Errorf("media are %+v", b.m.View(false).Media)
				}
				if err := c.SetBoot(ctx, bmc.BootOverride{Target: bmc.BootCD}); err != nil {
					t.Fatal(err)
				}
				if o, err := c.Boot(ctx); err != nil || o.Target != bmc.BootCD || o.Persistent {
					t.Errorf("override is %+v, %v", o, err)
				}
				if err := c.SetBoot(ctx, bmc.BootOverride{Target: bmc.BootNone}); err != nil {
					t.Fatal(err)
				}
				if err := c.EjectMedia(ctx, nil); err != nil {
					t.Fatal(err)
				}
				if b.holds(iso) {
					t.Error("the image is still in a slot")
				}
			}
			inv, err := c.Inventory(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if len(inv.CPUs) == 0 || inv.MemoryMiB == 0 || len(inv.Disks) == 0 || len(inv.NICs) == 0 {
				t.Errorf("inventory %+v", inv)
			}
			if err := c.Close(ctx); err != nil {
				t.Fatal(err)
			}
			if n := b.m.Counts().SessionsOpen; n != 0 {
				t.Errorf("%d sessions left open", n)
			}
			if n := b.m.Counts().ChangesInFlightMax; n > 1 {
				t.Errorf("%d changes at once", n)
			}
		})
	}
}

func (b *bench) holds(image string) bool {
	for _, m := range b.m.View(false).Media {
		if m.Inserted && m.Image == image {
			return true
		}
	}
	return false
}
