package cli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bettercompute/compute/cli"
	"github.com/bettercompute/compute/sim"
)

// bmcCheck runs the command against a simulated machine, its password in a file.
func bmcCheck(t *testing.T, m *sim.Machine, password string, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	root := cli.New(nil, &out, &out)
	root.SetArgs(append([]string{"bmc", "check", m.Address(), "--username", m.Username(), "--password-file", file}, args...))
	err := root.ExecuteContext(t.Context())
	if strings.Contains(out.String(), password) {
		t.Errorf("the password is printed:\n%s", out.String())
	}
	return out.String(), err
}

// The exit code says how a BMC stands, and the report is text or JSON.
func TestBMCCheck(t *testing.T) {
	t.Parallel()
	rack, err := sim.NewRack(sim.Options{TimeScale: 200, Seed: 11})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rack.Close() })
	good, err := rack.Add(sim.MachineSpec{Profile: "dell"})
	if err != nil {
		t.Fatal(err)
	}
	odd, err := rack.Add(sim.MachineSpec{ResetTypes: []string{"ForceRestart", "Nmi"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		m        *sim.Machine
		password string
		args     []string
		code     int
		says     string
	}{
		"usable":              {good, good.Password(), []string{"--tls-mode", "pin"}, 0, "computectl metal enroll --name NAME --bmc-address " + good.Address()},
		"not trusted":         {good, good.Password(), nil, cli.ExitRefused, "--tls-fingerprint sha256:"},
		"wrong password":      {good, "quite-wrong", []string{"--tls-mode", "insecure"}, cli.ExitRefused, "check user name and password"},
		"cannot be switched":  {odd, odd.Password(), []string{"--tls-mode", "insecure"}, cli.ExitFailed, "nothing offered serves on"},
		"no such mode":        {good, good.Password(), []string{"--tls-mode", "off"}, cli.ExitUsage, ""},
		"no such fingerprint": {good, good.Password(), []string{"--tls-fingerprint", "12:34"}, cli.ExitUsage, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := bmcCheck(t, c.m, c.password, c.args...)
			if code := cli.ExitCode(err); code != c.code || !strings.Contains(strings.Join(strings.Fields(out), " "), c.says) {
				t.Errorf("exit code %d, want %d; %v\n%s", code, c.code, err, out)
			}
		})
	}
	t.Run("json", func(t *testing.T) {
		t.Parallel()
		out, err := bmcCheck(t, good, good.Password(), "--tls-mode", "pin", "-o", "json")
		var report struct {
			Driver   string
			Usable   bool
			Findings []struct{ Area, Grade, Says string }
			Identity struct{ Manufacturer string }
		}
		if err != nil || json.Unmarshal([]byte(out), &report) != nil || !report.Usable || report.Identity.Manufacturer != "Dell Inc." || len(report.Findings) < 10 {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
