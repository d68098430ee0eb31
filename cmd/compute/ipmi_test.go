package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bettercompute/compute/bmc/ipmi/ipmisim"
	"github.com/bettercompute/compute/fleet"
)

// A machine behind a real ipmi_sim is enrolled, commissioned (power seen off and
// on, a one-time boot device set, read back and cleared), switched and retired
// by the same workflows as one with Redfish, and judged by what its chassis was
// told. What IPMI cannot do is said with what to use instead.
func TestIPMILifecycle(t *testing.T) {
	t.Parallel()
	sim := ipmisim.Start(t)
	u := startUser(t)
	u.ownSite("ipmi", "--graceful-seconds", "3") // its chassis obeys no graceful shutdown
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte(ipmisim.Password), 0o600); err != nil {
		t.Fatal(err)
	}
	u.run("computectl", "metal", "enroll", "--name", "old-1", "--watch", "--bmc-address", fmt.Sprintf("ipmi://127.0.0.1:%d", sim.Port),
		"--bmc-username", ipmisim.User, "--bmc-password-file", password)
	n := u.node("old-1")
	if n.BMC.Capabilities.Driver != "ipmi" || n.BMC.Identity.Serial == "" {
		t.Errorf("driver %q, serial %q", n.BMC.Capabilities.Driver, n.BMC.Identity.Serial)
	}
	u.run("computectl", "metal", "inspect", "old-1", "--watch", "--in-use=false")
	u.run("computectl", "metal", "commission", "old-1", "--watch")
	u.state("old-1", fleet.Ready)
	calls := sim.Read("calls")
	for _, want := range []string{"power 1", "power 0", "boot "} {
		if !strings.Contains(calls, want) {
			t.Errorf("the chassis was never told %q:\n%s", want, calls)
		}
	}
	u.run("computectl", "metal", "power", "old-1", "--action", "on", "--watch")
	if got := strings.TrimSpace(sim.Read("power")); got != "1" {
		t.Errorf("power = %s after on", got)
	}
	if out, err := u.command("computectl", "metal", "deploy", "old-1", "--image-url", "http://127.0.0.1/x", "--image-format", "raw",
		"--image-checksum", "sha256:"+strings.Repeat("0", 64)).CombinedOutput(); err == nil || !strings.Contains(string(out), "UNSUPPORTED") {
		t.Errorf("a deploy without a way to boot our image: %v\n%s", err, out)
	}
	u.run("computectl", "metal", "retire", "old-1", "--watch")
	u.state("old-1", fleet.Retired)
	if got := strings.TrimSpace(sim.Read("power")); got != "0" {
		t.Errorf("power = %s after retire", got)
	}
	if logs, err := exec.CommandContext(t.Context(), "grep", "-rlF", ipmisim.Password, filepath.Join(u.stack.state, "log")).CombinedOutput(); err == nil {
		t.Errorf("the BMC's password stands in a log: %s", logs)
	}
}
