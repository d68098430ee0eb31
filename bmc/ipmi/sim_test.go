package ipmi_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/ipmi"
	"github.com/bettercompute/compute/bmc/ipmi/ipmisim"
	"github.com/bettercompute/compute/fleet"
)

const (
	user     = ipmisim.User
	password = ipmisim.Password
)

// ipmiSim is a real ipmi_sim as the driver's tests look at it.
type ipmiSim struct {
	*ipmisim.Sim
	t *testing.T
}

func startSim(t *testing.T) *ipmiSim {
	t.Helper()
	return startSimWith(t, ipmisim.Config{})
}

func startSimWith(t *testing.T, c ipmisim.Config) *ipmiSim {
	t.Helper()
	return &ipmiSim{Sim: ipmisim.StartWith(t, c), t: t}
}

// changes are the changes that the machine was told.
func (s *ipmiSim) changes() []string {
	return strings.FieldsFunc(s.Read("calls"), func(r rune) bool { return r == '\n' })
}

func (s *ipmiSim) power() bmc.PowerState {
	if strings.TrimSpace(s.Read("power")) == "1" {
		return bmc.PowerOn
	}
	return bmc.PowerOff
}

func (s *ipmiSim) boot() bmc.BootTarget {
	return map[string]bmc.BootTarget{"none": bmc.BootNone, "pxe": bmc.BootPXE, "default": bmc.BootDisk, "disk": bmc.BootDisk, "cdrom": bmc.BootCD}[strings.TrimSpace(s.Read("boot"))]
}

func (s *ipmiSim) target() bmc.Target { return targetAt(s.t, s.Port) }

func targetAt(t *testing.T, port int) bmc.Target {
	t.Helper()
	a, err := fleet.ParseBMCAddress(fmt.Sprintf("ipmi://127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	return bmc.Target{Address: a, Driver: "ipmi", Username: user, Password: password}
}

// waits are short: ipmi_sim answers and acts at once.
func waits() bmc.Waits {
	return bmc.Waits{Request: 20 * time.Second, Poll: 20 * time.Millisecond, Busy: 40 * time.Millisecond, Change: 15 * time.Second, Post: 2 * time.Second}
}

func openIPMI(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Client, error) {
	return ipmi.Open(ctx, target, opts)
}

func open(t *testing.T, target bmc.Target, opts bmc.Options) bmc.Client {
	t.Helper()
	if opts.Waits == (bmc.Waits{}) {
		opts.Waits = waits()
	}
	c, err := ipmi.Open(t.Context(), target, opts)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func wantKind(t *testing.T, err error, kind bmc.Kind) {
	t.Helper()
	if got := bmc.KindOf(err); got != kind {
		t.Fatalf("error kind %q, want %q: %v", got, kind, err)
	}
}

func freePort(t *testing.T) int { return ipmisim.FreePort(t) }
