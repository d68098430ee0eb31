package gateway

import (
	"log/slog"
	"testing"
	"time"

	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/storetest"
)

// A gateway that cannot note whom it heard of does not say that it serves, since
// silence would then be the nodes' own; what it could not note it notes later. Cut
// off for longer than a split may last, it ends its sessions, whose nodes may find
// a gateway that is not.
func TestNoteBeforeBeat(t *testing.T) {
	t.Parallel()
	s := store.New(storetest.New(t), store.Options{})
	g := &Gateway{store: s, members: newMembers(), log: slog.New(slog.DiscardHandler), id: "gw-1", cfg: Config{Poll: time.Second}}
	exec := func(sql string) {
		t.Helper()
		if _, err := s.Pool().Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	beats := func() (n int) {
		t.Helper()
		if err := s.Pool().QueryRow(t.Context(), `SELECT count(*) FROM gateways`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	m := g.members.open(store.HeldSession{NodeID: "node_a", Serial: "1", Epoch: 1})
	g.members.heard("node_a", "1", 1)
	start := time.Now()
	k := &keeper{Gateway: g, every: time.Hour, reached: start}
	over := func() bool {
		select {
		case <-m.over:
			return true
		default:
			return false
		}
	}

	exec(`ALTER TABLE sessions RENAME TO hidden`)
	k.round(t.Context(), start)
	k.round(t.Context(), start.Add(cutOff-time.Second))
	if beats() != 0 || len(g.members.heardOf()) != 1 || over() {
		t.Errorf("not noted: %d beats, %v to be noted, session over %v", beats(), g.members.heardOf(), over())
	}
	exec(`ALTER TABLE hidden RENAME TO sessions`)
	k.round(t.Context(), start.Add(cutOff))
	if beats() != 1 || len(g.members.heardOf()) != 0 || over() {
		t.Errorf("noted: %d beats, %v to be noted, session over %v", beats(), g.members.heardOf(), over())
	}
	exec(`ALTER TABLE sessions RENAME TO hidden`)
	g.members.heard("node_a", "1", 1)
	k.round(t.Context(), start.Add(2*cutOff-time.Second))
	if over() {
		t.Error("the session is over before the gateway was cut off for long")
	}
	k.round(t.Context(), start.Add(2*cutOff))
	if !over() || g.members.heard("node_a", "1", 1) != nil {
		t.Error("a gateway that is cut off for long goes on serving its session")
	}
}
