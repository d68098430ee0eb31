package fleet_test

import (
	"testing"

	"github.com/bettercompute/compute/fleet"
)

func TestProvingUUID(t *testing.T) {
	t.Parallel()
	for uuid, want := range map[string]bool{
		"4C4C4544-0051-3910-8053-B4C04F4E3933": true,
		"":                                     false,
		"00000000-0000-0000-0000-000000000000": false,
		"FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF": false,
		"03000200-0400-0500-0006-000700080009": false,
		"Not Specified":                        false,
	} {
		if _, got := fleet.ProvingUUID(uuid); got != want {
			t.Errorf("ProvingUUID(%q) = %v, want %v", uuid, got, want)
		}
	}
}

// A UUID read in the other byte order names the same machine.
func TestSameUUID(t *testing.T) {
	t.Parallel()
	a, b := "4c4c4544-0051-3910-8053-b4c04f4e3933", "44454C4C-5100-1039-8053-B4C04F4E3933"
	if !fleet.SameUUID(a, b) || !fleet.SameUUID(b, a) || !fleet.SameUUID(a, a) {
		t.Errorf("%s and %s are the same machine", a, b)
	}
	if fleet.SameUUID(a, "4c4c4544-0051-3910-8053-b4c04f4e3934") {
		t.Error("machines that differ in the last digit are not the same")
	}
	zero := "00000000-0000-0000-0000-000000000000"
	if fleet.SameUUID(zero, zero) {
		t.Error("a UUID of zeros proves nothing")
	}
}

func TestContradicts(t *testing.T) {
	t.Parallel()
	rec := fleet.Hardware{UUID: "4c4c4544-0051-3910-8053-b4c04f4e3933", Serial: "S1", MACs: []string{"aa:bb:cc:00:00:01"}}
	for name, c := range map[string]struct {
		h    fleet.Hardware
		want bool
	}{
		"nothing said":               {fleet.Hardware{}, false},
		"same UUID":                  {fleet.Hardware{UUID: rec.UUID, Serial: "other"}, false},
		"new board, same serial":     {fleet.Hardware{UUID: "11111111-0051-3910-8053-b4c04f4e3933", Serial: "s1"}, false},
		"only a MAC in common":       {fleet.Hardware{Serial: "S2", MACs: []string{"AA:BB:CC:00:00:01"}}, false},
		"another machine":            {fleet.Hardware{UUID: "11111111-0051-3910-8053-b4c04f4e3933", Serial: "S2", MACs: []string{"aa:bb:cc:00:00:02"}}, true},
		"another serial, no UUID":    {fleet.Hardware{Serial: "S2"}, true},
		"a UUID that proves nothing": {fleet.Hardware{UUID: "00000000-0000-0000-0000-000000000000"}, false},
	} {
		if got := c.h.Contradicts(rec); got != c.want {
			t.Errorf("%s: Contradicts = %v, want %v", name, got, c.want)
		}
	}
}
