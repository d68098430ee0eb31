package check_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/check"
	"github.com/bettercompute/compute/bmc/ipmi/ipmisim"
	"github.com/bettercompute/compute/bmc/open"
	"github.com/bettercompute/compute/bmc/redfish/recorded"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/sim"
)

var update = flag.Bool("update", false, "write the golden reports anew")

var way = check.Way{Open: open.Open, Certificate: open.Certificate}

// changing are what differs between two runs.
var changing = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`sha256:[0-9a-f]{64}`), "sha256:FINGERPRINT"},
	{regexp.MustCompile(`127(\.\d+){3}(:\d+)?`), "ADDRESS"},
	{regexp.MustCompile(`valid \d{4}-\d\d-\d\d to \d{4}-\d\d-\d\d`), "valid FROM to UNTIL"},
}

// golden compares a report with the file of that name. Words are compared, not
// where lines break, since addresses are not of one length.
func golden(t *testing.T, name string, r check.Report) {
	t.Helper()
	var b bytes.Buffer
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	got := b.String()
	for _, c := range changing {
		got = c.pattern.ReplaceAllString(got, c.with)
	}
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Fields(string(want)), strings.Fields(got)); diff != "" {
		t.Errorf("the report differs from %s; go test ./bmc/check -update, and look at it (-want +got):\n%s", file, diff)
	}
}

func machine(t *testing.T, spec sim.MachineSpec) *sim.Machine {
	t.Helper()
	rack, err := sim.NewRack(sim.Options{TimeScale: 200, Seed: 11})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rack.Close() })
	m, err := rack.Add(spec)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func parse(t *testing.T, address string) fleet.BMCAddress {
	t.Helper()
	a, err := fleet.ParseBMCAddress(address)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func targetOf(t *testing.T, m *sim.Machine) bmc.Target {
	t.Helper()
	return bmc.Target{Address: parse(t, m.Address()), Driver: "auto", Username: m.Username(), Password: m.Password(), TLS: bmc.TLS{Mode: "pin"}}
}

func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// onlyReads fails when the machine received anything but reads and the login
// and logout of one session, by its own log.
func onlyReads(t *testing.T, m *sim.Machine) {
	t.Helper()
	logins, logouts := 0, 0
	for _, r := range m.Requests() {
		switch {
		case r.Method == "GET":
		case r.Method == "POST" && strings.HasSuffix(r.Path, "/SessionService/Sessions"):
			logins++
		case r.Method == "DELETE" && strings.Contains(r.Path, "/SessionService/Sessions/"):
			logouts++
		default:
			t.Errorf("a check sent %s %s", r.Method, r.Path)
		}
	}
	if logins != logouts || logins > 1 {
		t.Errorf("%d logins, %d logouts", logins, logouts)
	}
	c := m.Counts()
	if c.SessionsOpen != 0 || len(c.Resets) != 0 || c.InsertMedia != 0 || c.LoginsFailed != 0 {
		t.Errorf("after a check: %+v", c)
	}
}

// Every simulated maker's BMC is reported as the golden files say, and nothing
// is changed.
func TestProfiles(t *testing.T) {
	t.Parallel()
	for _, profile := range sim.Profiles() {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			m := machine(t, sim.MachineSpec{Profile: profile, Seed: 21, Power: "Off"})
			r := check.Run(patient(t), way, targetOf(t, m), bmc.Options{})
			if !r.Usable {
				t.Errorf("%+v", r)
			}
			golden(t, profile, r)
			onlyReads(t, m)
		})
	}
}

// The report of a recorded service; the server refuses all but reads.
func TestRecorded(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"DL325", "SupermicroGB300", "EX235n", "OpenBMC-stock", "Gigabyte"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := bmc.Target{Address: parse(t, recorded.Serve(t, name).URL), Driver: "redfish", Username: "root", Password: "secret", TLS: bmc.TLS{Mode: "pin"}}
			if name == "EX235n" {
				target.Address.System = "/redfish/v1/Systems/Node1"
			}
			golden(t, "recorded-"+name, check.Run(patient(t), way, target, bmc.Options{}))
		})
	}
}

func ipmiTarget(t *testing.T, s *ipmisim.Sim) bmc.Target {
	t.Helper()
	return bmc.Target{Address: parse(t, fmt.Sprintf("ipmi://127.0.0.1:%d", s.Port)), Driver: "auto", Username: ipmisim.User, Password: ipmisim.Password}
}

func TestIPMI(t *testing.T) {
	t.Parallel()
	s := ipmisim.Start(t)
	r := check.Run(patient(t), way, ipmiTarget(t, s), bmc.Options{})
	if !r.Usable || r.Driver != "ipmi" {
		t.Errorf("%+v", r)
	}
	golden(t, "ipmi", r)
	if calls := s.Read("calls"); calls != "" {
		t.Errorf("the machine was told %q", calls)
	}
}

// What stops a check is said, and no more is sent than what led to it.
func TestTroubles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec   sim.MachineSpec
		change func(*bmc.Target)
		area   string
		// says is part of the broken finding; sent whether HTTP requests may come.
		says, try string
		sent      bool
	}{
		"not trusted":         {change: func(b *bmc.Target) { b.TLS = bmc.TLS{Mode: "verify"} }, area: "certificate", says: "is not trusted", try: "--tls-fingerprint sha256:"},
		"another than pinned": {change: func(b *bmc.Target) { b.TLS.Fingerprint = "sha256:" + strings.Repeat("0", 64) }, area: "certificate", says: "is not the pinned", try: "find out why"},
		"wrong password":      {change: func(b *bmc.Target) { b.Password = "not-it" }, area: "login", says: "log in", try: "password", sent: true},
		"several systems":     {spec: sim.MachineSpec{Systems: 3}, area: "system", says: "3 systems", try: "path of the system", sent: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.spec.Profile, c.spec.Seed = "generic", 21
			m := machine(t, c.spec)
			target := targetOf(t, m)
			if c.change != nil {
				c.change(&target)
			}
			r := check.Run(patient(t), way, target, bmc.Options{})
			last := check.Finding{}
			for _, f := range r.Findings {
				if f.Grade == check.Broken {
					last = f
				}
			}
			if r.Usable || last.Area != c.area || !strings.Contains(last.Says, c.says) || !strings.Contains(last.Try, c.try) || last.Then == "" {
				t.Errorf("%+v", last)
			}
			if got := len(m.Requests()) > 0; got != c.sent {
				t.Errorf("requests came: %t, want %t", got, c.sent)
			}
			if n := m.Counts().LoginsFailed; n > 1 {
				t.Errorf("%d failed logins: an account could be locked", n)
			}
		})
	}
}

// Nothing answers: one finding, and no verdict about what was not seen.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	m := machine(t, sim.MachineSpec{Profile: "generic", Seed: 21})
	target := targetOf(t, m)
	target.Driver, target.Address.Port = "redfish", ipmisim.FreePort(t)
	waits := bmc.DefaultWaits
	waits.Poll = 10 * time.Millisecond
	r := check.Run(patient(t), way, target, bmc.Options{Waits: waits})
	if r.Reached || r.Usable || len(r.Findings) != 1 || r.Findings[0].Grade != check.Broken || !strings.Contains(r.Findings[0].Says, "no answer") {
		t.Errorf("%+v", r)
	}
}
