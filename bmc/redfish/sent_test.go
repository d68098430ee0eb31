package redfish_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/redfish"
	"github.com/bettercompute/compute/bmc/redfish/recorded"
	"github.com/bettercompute/compute/fleet"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestSentToRecorded has every verb of the BMC layer done on every recorded
// service, and compares what is sent: address, action and body, by value. What
// a service does not offer is refused before anything is sent.
func TestSentToRecorded(t *testing.T) {
	t.Parallel()
	const image = "http://10.0.0.1/boot/1/compute.iso"
	power := func(aim bmc.PowerAim) func(context.Context, bmc.Client) error {
		return func(ctx context.Context, c bmc.Client) error {
			_, err := c.SetPower(ctx, bmc.PowerChange{Aim: aim})
			return err
		}
	}
	boot := func(o bmc.BootOverride) func(context.Context, bmc.Client) error {
		return func(ctx context.Context, c bmc.Client) error { return c.SetBoot(ctx, o) }
	}
	steps := []struct {
		name string
		do   func(context.Context, bmc.Client) error
	}{
		{"clear what was left", boot(bmc.BootOverride{Target: bmc.BootNone})},
		{"power off", power(bmc.AimOff)}, {"power off again", power(bmc.AimOff)}, {"power on", power(bmc.AimOn)},
		{"power cycle", power(bmc.AimCycle)}, {"power reset", power(bmc.AimReset)}, {"power softOff", power(bmc.AimSoftOff)},
		{"power off to boot", power(bmc.AimOff)},
		{"boot pxe", boot(bmc.BootOverride{Target: bmc.BootPXE})}, {"boot pxe again", boot(bmc.BootOverride{Target: bmc.BootPXE})},
		{"boot cd", boot(bmc.BootOverride{Target: bmc.BootCD})}, {"boot disk", boot(bmc.BootOverride{Target: bmc.BootDisk})},
		{"boot http", boot(bmc.BootOverride{Target: bmc.BootHTTP, HTTPURL: "http://10.0.0.1/boot/1/compute.efi", UEFI: true})},
		{"boot clear", boot(bmc.BootOverride{Target: bmc.BootNone})},
		{"media insert", func(ctx context.Context, c bmc.Client) error { return c.InsertMedia(ctx, image) }},
		{"media insert again", func(ctx context.Context, c bmc.Client) error { return c.InsertMedia(ctx, image) }},
		{"media eject", func(ctx context.Context, c bmc.Client) error { return c.EjectMedia(ctx, nil) }},
	}
	for _, tree := range expected {
		t.Run(tree.name, func(t *testing.T) {
			t.Parallel()
			p := recorded.Play(t, tree.name)
			a, err := fleet.ParseBMCAddress(p.URL + tree.system)
			if err != nil {
				t.Fatal(err)
			}
			c, err := redfish.Open(t.Context(), bmc.Target{Address: a, Username: "root", Password: "secret", TLS: bmc.TLS{Mode: "insecure"}}, bmc.Options{Waits: waits()})
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for _, s := range steps {
				err := s.do(t.Context(), c)
				fmt.Fprintf(&got, "%s\n", s.name)
				sent := p.Sent()
				for _, line := range sent {
					fmt.Fprintf(&got, "  %s\n", line)
				}
				if kind := bmc.KindOf(err); kind == bmc.KindUnsupported && len(sent) == 0 {
					fmt.Fprintf(&got, "  unsupported\n")
				} else if err != nil {
					t.Errorf("%s: %v", s.name, err)
				}
			}
			golden := filepath.Join("testdata", "sent-"+tree.name+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got.String()); d != "" {
				t.Errorf("what is sent (-want +got):\n%s", d)
			}
		})
	}
}
