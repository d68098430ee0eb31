package sim_test

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/bettercompute/compute/sim"
	"github.com/google/go-cmp/cmp"
)

// TestJournal takes a rack up from a copy of its journal while it runs: what a
// kill at that moment leaves.
func TestJournal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := newRack(t, sim.Options{StateDir: dir, Seed: 3})
	b := addBMC(t, r, plain())
	gone := addBMC(t, r, plain())
	r.Remove(gone.m.ID())
	b.faults(`faults: [{name: once, match: {method: PATCH, times: 1}, apply: false, reply: {status: 418}},
	  {name: slow, match: {path: "**/VirtualMedia.InsertMedia"}, reply: {task: {ref: body, for: 50s}}}]`)
	b.override("Once", "Cd")
	b.override("Continuous", "Cd")
	b.insert(iso)
	b.login()
	b.get(sysPath)
	b.reset("On")
	r.Advance(21 * time.Second)
	b.done(http.MethodPatch, "/redfish/v1/AccountService/Accounts/"+b.m.Username(), map[string]any{"Password": "changed-pass"})

	copied := t.TempDir()
	if err := os.CopyFS(filepath.Join(copied, "state"), os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	// The first rack still has the port; the copy gets one of its own.
	again, err := sim.NewRack(sim.Options{StateDir: freePort(t, filepath.Join(copied, "state")), TimeScale: still})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = again.Close() })
	if got := len(again.Machines()); got != 1 {
		t.Fatalf("machines: got %d, want 1", got)
	}
	c := &bmc{t, again, again.Machines()[0], insecure(t)}
	before, after := b.m.View(true), c.m.View(true)
	ignore := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Address" }, cmp.Ignore())
	if diff := cmp.Diff(before, after, ignore); diff != "" {
		t.Errorf("state (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(b.m.Faults(), c.m.Faults()); diff != "" {
		t.Errorf("faults (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(b.m.Counts(), c.m.Counts()); diff != "" {
		t.Errorf("counts (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(b.m.Requests(), c.m.Requests()); diff != "" {
		t.Errorf("requests (-before +after):\n%s", diff)
	}
	again.Advance(10 * time.Minute)
	if got := c.m.BootLog(); len(got) != 1 || got[0].Source != "cd" {
		t.Errorf("the boot under way: %+v", got)
	}
}

// freePort takes the port out of a copied journal.
func freePort(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, portMember.ReplaceAll(b, []byte(`"port":0`)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestJournalAfterSnapshots restarts a rack several times: what was before the
// last snapshot is neither lost nor counted twice.
func TestJournalAfterSnapshots(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := 0
	for round := range 4 {
		r, err := sim.NewRack(sim.Options{StateDir: dir, TimeScale: still})
		if err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			if _, err := r.Add(plain()); err != nil {
				t.Fatal(err)
			}
		}
		b := &bmc{t, r, r.Machines()[0], insecure(t)}
		if got := b.m.Counts().Requests["GET "+sysPath]; got != want || len(b.m.Requests()) != want {
			t.Errorf("round %d: %d counted, %d logged, want %d", round, got, len(b.m.Requests()), want)
		}
		for range 3 {
			b.get(sysPath)
			want++
		}
		b.c.CloseIdleConnections()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBrokenTail has a journal whose last line was cut by a kill.
func TestBrokenTail(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r, err := sim.NewRack(sim.Options{StateDir: dir, TimeScale: still})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Add(plain()); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "journal-1"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"m":"m00001","state":{"sys`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	r, err = sim.NewRack(sim.Options{StateDir: dir, TimeScale: still})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if len(r.Machines()) != 1 {
		t.Errorf("machines: %d, want 1", len(r.Machines()))
	}
}

// TestOwnPorts runs where machines have ports instead of addresses, and keep
// them over a restart.
func TestOwnPorts(t *testing.T) {
	t.Parallel()
	opts := sim.Options{StateDir: t.TempDir(), TimeScale: still, OwnPorts: true}
	var before []string
	for round := range 2 {
		r, err := sim.NewRack(opts)
		if err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			for range 2 {
				if _, err := r.Add(plain()); err != nil {
					t.Fatal(err)
				}
			}
		}
		var got []string
		for _, m := range r.Machines() {
			b := &bmc{t, r, m, insecure(t)}
			b.get(sysPath)
			b.c.CloseIdleConnections()
			got = append(got, m.Address())
		}
		if round == 1 {
			if diff := cmp.Diff(before, got); diff != "" {
				t.Errorf("addresses (-before +after):\n%s", diff)
			}
		}
		before = got
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
