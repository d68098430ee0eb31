package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// Certificates are renewed at two thirds of their life, spread over the tenth
// before.
func TestRenewAt(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const life = 30 * time.Hour
	times := map[time.Time]bool{}
	for range 200 {
		at := renewAt(from, from.Add(life))
		if after := at.Sub(from); after > 20*time.Hour || after < 17*time.Hour {
			t.Fatalf("renewed after %s of %s", after, life)
		}
		times[at.Truncate(time.Minute)] = true
	}
	if len(times) < 50 {
		t.Errorf("200 certificates are renewed in %d minutes", len(times))
	}
}

// A host whose clock is days ahead renews once, and one that is days behind
// renews in time: what was just issued is due by its life alone.
func TestRenewalByAnOddClock(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"days ahead": 5 * 24 * time.Hour, "right": 0, "days behind": -5 * 24 * time.Hour} {
		from := time.Now().Add(-ahead)
		cert := &tls.Certificate{Leaf: &x509.Certificate{NotBefore: from, NotAfter: from.Add(24 * time.Hour)}}
		m := &membership{cfg: ServeConfig{}.withDefaults()}
		m.take(cert, true)
		if wait := time.Until(m.renewAt); m.due() || wait < 12*time.Hour || wait > 17*time.Hour {
			t.Errorf("%s, just issued: due in %s", name, wait)
		}
		m.take(cert, false)
		if m.due() != (ahead > 0) {
			t.Errorf("%s, found on the disk: due %v", name, m.due())
		}
	}
}

// On a full disk what was there stays.
func TestStateOnAFullDisk(t *testing.T) {
	t.Parallel()
	s := State{Dir: t.TempDir()}
	if err := s.writeJSON(Identity{NodeID: "node_1"}, fileIdentity); err != nil {
		t.Fatal(err)
	}
	// A write to this device is answered as by a disk that has no room.
	if err := os.Symlink("/dev/full", s.path(fileIdentity)+".new"); err != nil {
		t.Fatal(err)
	}
	if err := s.writeJSON(Identity{NodeID: "node_2"}, fileIdentity); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("written to a full disk: %v", err)
	}
	if id, err := s.Identity(); err != nil || id.NodeID != "node_1" {
		t.Errorf("after that: %+v, %v", id, err)
	}
}

// reading is a host whose disk can be full while it runs a command.
type reading struct {
	Member
	during func()
	runs   int
}

func (h *reading) Inventory(context.Context) (fleet.Inventory, error) {
	h.runs++
	h.during()
	return fleet.Inventory{Vendor: "v"}, nil
}

// A command whose beginning cannot be noted is not run and says why; one whose
// end cannot be noted is told as it ended.
func TestCommandsOnAFullDisk(t *testing.T) {
	t.Parallel()
	const id = "cmd_01"
	for name, c := range map[string]struct {
		before, ok bool
		runs       int
		says       string
	}{
		"before it begins": {before: true, says: "not run, since the agent could not note that it begins: write the agent's state: write"},
		"while it runs":    {ok: true, runs: 1},
	} {
		s := State{Dir: t.TempDir()}
		fill := func() {
			if err := os.MkdirAll(s.path(dirCommands), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/dev/full", s.path(dirCommands, id+".json.new")); err != nil {
				t.Fatal(err)
			}
		}
		h := &reading{during: func() {}}
		if c.before {
			fill()
		} else {
			h.during = fill
		}
		m := &membership{cfg: ServeConfig{State: s, Host: h, Log: slog.New(slog.DiscardHandler)}.withDefaults()}
		out, err := m.outcome(t.Context(), command{ID: id, Type: TypeInventory})
		if err != nil || out.OK != c.ok || h.runs != c.runs || !strings.HasPrefix(out.Error, c.says) {
			t.Errorf("%s: %+v, %v, after %d runs", name, out, err, h.runs)
		}
	}
}

// The newest commands are remembered, whatever the clock says of their files.
func TestForgetCommands(t *testing.T) {
	t.Parallel()
	s := State{Dir: t.TempDir()}
	name := func(n int) string { return fmt.Sprintf("cmd_%04d", n) }
	if err := os.MkdirAll(s.path(dirCommands), 0o700); err != nil {
		t.Fatal(err)
	}
	for n := range commandsKept + 10 {
		file := s.path(dirCommands, name(n)+".json")
		if err := os.WriteFile(file, []byte(`{"began":"1970-01-01T00:00:00Z"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		// As a clock that stood at its beginning left them.
		if err := os.Chtimes(file, time.Unix(0, 0), time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
	}
	s.forgetCommands()
	left, err := filepath.Glob(s.path(dirCommands, "*"))
	if err != nil || len(left) != commandsKept {
		t.Fatalf("%d commands are remembered, %v; want %d", len(left), err, commandsKept)
	}
	if before, err := s.begin(name(commandsKept + 9)); err != nil || before == nil {
		t.Errorf("the newest is not remembered: %+v, %v", before, err)
	}
	if before, err := s.begin(name(0)); err != nil || before != nil {
		t.Errorf("the oldest is remembered: %+v, %v", before, err)
	}
}
