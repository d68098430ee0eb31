package store_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// Devices are joined by what tells them apart, whatever was seen in between,
// and one that is there twice is one row.
func TestDevicesAreJoined(t *testing.T) {
	t.Parallel()
	gpu := func(serial, pci, slot string) fleet.Device {
		return fleet.Device{Model: "H100", Serial: serial, PCIAddress: pci, Slot: slot}
	}
	for name, c := range map[string]struct {
		first, second []fleet.Device
		present, gone int
	}{
		"the same again":                 {[]fleet.Device{gpu("S1", "", "1"), gpu("S2", "", "2")}, []fleet.Device{gpu("S2", "", "2"), gpu("S1", "", "1")}, 2, 0},
		"by PCI address, serial learned": {[]fleet.Device{gpu("", "0:1", "")}, []fleet.Device{gpu("S1", "0:1", "")}, 1, 0},
		"moved to another slot":          {[]fleet.Device{gpu("S1", "", "1")}, []fleet.Device{gpu("S1", "", "2")}, 1, 0},
		"replaced in its slot":           {[]fleet.Device{gpu("S1", "", "1")}, []fleet.Device{gpu("S2", "", "1")}, 1, 1},
		"vanished":                       {[]fleet.Device{gpu("S1", "", "1"), gpu("S2", "", "2")}, []fleet.Device{gpu("S1", "", "1")}, 1, 1},
		"a serial that two share":        {[]fleet.Device{gpu("M", "", "1"), gpu("M", "", "2")}, []fleet.Device{gpu("M", "", "2"), gpu("M", "", "1")}, 2, 0},
		"nothing tells them apart":       {[]fleet.Device{gpu("", "", ""), gpu("", "", "")}, []fleet.Device{gpu("", "", ""), gpu("", "", "")}, 2, 0},
		"a serial alone, shared":         {[]fleet.Device{gpu("M", "", ""), gpu("M", "", "")}, []fleet.Device{gpu("M", "", ""), gpu("M", "", "")}, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOps(t)
			o.mustBegin("op_1", fleet.VerbInspect)
			for _, seen := range [][]fleet.Device{c.first, c.second} {
				if err := o.RecordInventory(t.Context(), "op_1", fleet.Inventory{GPUs: seen}); err != nil {
					t.Fatal(err)
				}
			}
			rows, err := o.pool.Query(t.Context(), `SELECT present FROM devices`)
			if err != nil {
				t.Fatal(err)
			}
			list, err := pgx.CollectRows(rows, pgx.RowTo[bool])
			if err != nil {
				t.Fatal(err)
			}
			got := map[bool]int{}
			for _, p := range list {
				got[p]++
			}
			want := map[bool]int{true: c.present}
			if c.gone > 0 {
				want[false] = c.gone
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("devices by presence (-want +got):\n%s", diff)
			}
		})
	}
}
