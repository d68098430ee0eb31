package sim_test

import (
	"testing"

	"github.com/bettercompute/compute/sim"
	"github.com/google/go-cmp/cmp"
	"github.com/stmcginnis/gofish"
)

// TestGofish reads the inventory of a machine of every profile with the library
// that controllers in Go use: every answer has the types that it expects.
func TestGofish(t *testing.T) {
	t.Parallel()
	r := newRack(t, sim.Options{})
	for _, profile := range sim.Profiles() {
		for seed := range uint64(4) {
			m, err := r.Add(sim.MachineSpec{Profile: profile, Seed: seed + 1})
			if err != nil {
				t.Fatal(err)
			}
			t.Run(profile+" "+m.ID(), func(t *testing.T) {
				t.Parallel()
				c, err := gofish.Connect(gofish.ClientConfig{Endpoint: m.Address(), Username: m.Username(), Password: m.Password(), HTTPClient: insecure(t)})
				if err != nil {
					t.Fatal(err)
				}
				got := readAll(t, c.Service)
				c.Logout()
				v := m.View(true)
				want := read{serial: v.Serial, nics: len(v.MACs), firmware: got.firmware}
				if profile != "hpe" { // its disks are in HPE's own tree
					want.drives = len(v.Disks)
				}
				if diff := cmp.Diff(want, got, cmp.AllowUnexported(read{})); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if c := m.Counts(); c.SessionsOpen != 0 || c.Logins != 1 || got.firmware == 0 {
					t.Errorf("sessions open %d, log-ins %d, firmware %d", c.SessionsOpen, c.Logins, got.firmware)
				}
			})
		}
	}
}

// read is what a test takes from an inventory.
type read struct {
	serial                 string
	nics, drives, firmware int
}

func readAll(t *testing.T, s *gofish.Service) read {
	t.Helper()
	var out read
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	systems, err := s.Systems()
	must(err)
	for _, sys := range systems {
		if _, err := sys.Processors(); err != nil {
			t.Error(err)
		}
		if _, err := sys.Memory(); err != nil {
			t.Error(err)
		}
		if sys.ID == "HGX_Baseboard_0" {
			continue
		}
		out.serial = sys.SerialNumber
		nics, err := sys.EthernetInterfaces()
		must(err)
		out.nics += len(nics)
		storage, err := sys.Storage()
		must(err)
		for _, u := range storage {
			drives, err := u.Drives()
			must(err)
			out.drives += len(drives)
		}
	}
	managers, err := s.Managers()
	must(err)
	for _, m := range managers {
		if _, err := m.VirtualMedia(); err != nil {
			t.Error(err)
		}
	}
	chassis, err := s.Chassis()
	must(err)
	for _, c := range chassis {
		if _, err := c.NetworkAdapters(); err != nil {
			t.Error(err)
		}
	}
	accounts, err := s.AccountService()
	must(err)
	if _, err := accounts.Accounts(); err != nil {
		t.Error(err)
	}
	update, err := s.UpdateService()
	must(err)
	firmware, err := update.FirmwareInventories()
	must(err)
	out.firmware = len(firmware)
	return out
}
