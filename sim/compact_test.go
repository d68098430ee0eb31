package sim

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCompact begins new series of the journal while machines change, and takes
// the rack up from the last one.
func TestCompact(t *testing.T) {
	t.Parallel()
	opts := Options{StateDir: t.TempDir(), TimeScale: 1e-6}
	r, err := NewRack(opts)
	if err != nil {
		t.Fatal(err)
	}
	var want []MachineView
	for n := range 3 {
		m, err := r.Add(MachineSpec{Profile: "dell", DiskContent: ContentData, Power: powerOn})
		if err != nil {
			t.Fatal(err)
		}
		m.Restart()
		r.Advance(defaultPost)
		if err := r.compact(); err != nil {
			t.Fatal(err)
		}
		if err := m.Change(map[string]any{"/health": "Critical", "/disks/0/dead": n%2 == 0}); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range r.Machines() {
		want = append(want, m.View(true))
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if files, err := seriesIn(opts.StateDir); err != nil || len(files) != 2 {
		t.Errorf("files of the journal: %v %v, want one snapshot and one journal", files, err)
	}
	if r, err = NewRack(opts); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	for i, m := range r.Machines() {
		if diff := cmp.Diff(want[i], m.View(true)); diff != "" {
			t.Errorf("%s (-before +after):\n%s", m.ID(), diff)
		}
		if got := len(m.BootLog()); got != 1 {
			t.Errorf("%s: boots: got %d, want 1", m.ID(), got)
		}
	}
}
