package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
)

// bareHost has nothing set up.
type bareHost struct {
	Member
	removed int
}

func (h *bareHost) RemoveSpec(context.Context) error {
	h.removed++
	return nil
}

// A machine whose identity cannot be read is told how to go on, and can leave:
// what the agent set up is removed all the same.
func TestDamagedIdentity(t *testing.T) {
	t.Parallel()
	s := State{Dir: t.TempDir()}
	if err := os.WriteFile(s.path(fileIdentity), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Identity(); !errors.Is(err, ErrDamaged) {
		t.Errorf("read as %v", err)
	}
	host := &bareHost{}
	for range 2 { // once more, as after an interruption it has left already
		err := Leave(t.Context(), s, host, slog.New(slog.DiscardHandler))
		if err != nil && !errors.Is(err, ErrNotJoined) {
			t.Fatalf("leave: %v", err)
		}
	}
	if _, err := s.Identity(); !errors.Is(err, ErrNotJoined) || host.removed != 1 {
		t.Errorf("after leaving: %v, set-up removed %d times", err, host.removed)
	}
}
