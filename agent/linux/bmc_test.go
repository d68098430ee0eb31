package linux_test

import (
	"context"
	"strings"
	"testing"
	"time"

	ipmi "github.com/bougou/go-ipmi/pkg/client"

	"github.com/bettercompute/compute/agent/linux"
	"github.com/bettercompute/compute/bmc/ipmi/ipmisim"
	"github.com/bettercompute/compute/fleet"
)

// A host tells where its BMC is found, as the BMC itself has it.
func TestBMCAddress(t *testing.T) {
	t.Parallel()
	inv, err := says("192.0.2.17")(t).Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := (fleet.BMCLAN{Address: "192.0.2.17", MAC: "aa:bb:cc:dd:ee:0f"}); inv.BMC == nil || *inv.BMC != want {
		t.Errorf("BMC = %+v (%v), want %+v", inv.BMC, inv.Missing, want)
	}
}

// What a BMC does not say, or says of no use, is named and never made up.
func TestBMCAddressMissing(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		host func(t *testing.T) *linux.Host
		want string
	}{
		"no address yet": {says("0.0.0.0"), "no network channel with an address"},
		"link-local":     {says("169.254.3.4"), "no network channel with an address"},
		"hung":           {hung, "did not answer"},
		"no device":      {func(t *testing.T) *linux.Host { t.Helper(); return machine(t, nil) }, "there is no IPMI device"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			if what == "hung" {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
				t.Cleanup(cancel)
			}
			inv, err := c.host(t).Inventory(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if inv.BMC != nil {
				t.Errorf("BMC = %+v, want none", inv.BMC)
			}
			if said := strings.Join(inv.Missing, "\n"); !strings.Contains(said, "BMC address: ") || !strings.Contains(said, c.want) {
				t.Errorf("missing says %q, want %q", said, c.want)
			}
			if inv.Serial != "S1" {
				t.Errorf("the rest of the inventory is lost: %+v", inv)
			}
		})
	}
}

// says is a machine whose BMC says it has an address. The kernel's device is not
// to be had in a test: the same questions go to the BMC over its network.
func says(address string) func(t *testing.T) *linux.Host {
	return func(t *testing.T) *linux.Host {
		t.Helper()
		port := ipmisim.StartWith(t, ipmisim.Config{Address: address, MAC: "aa:bb:cc:dd:ee:0f"}).Port
		h := machine(t, nil)
		h.IPMI = func() (*ipmi.Client, error) { return ipmi.NewClient("127.0.0.1", port, ipmisim.User, ipmisim.Password) }
		return h
	}
}

// hung is a machine whose driver waits for its BMC and hears of no deadline.
func hung(t *testing.T) *linux.Host {
	t.Helper()
	h := machine(t, nil)
	h.IPMI = func() (*ipmi.Client, error) { <-t.Context().Done(); return nil, t.Context().Err() }
	return h
}
