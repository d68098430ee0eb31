package worker

import (
	"context"
	"log/slog"
	"sync"
)

// State is what a worker process waits for before it works, told in its log and
// to whoever asks.
type State struct {
	// Log is told of each wait, and of each attempt that was in vain.
	Log *slog.Logger

	mu  sync.Mutex
	why string
	// check looks whether all is well, once the process works.
	check func(ctx context.Context) (string, error)
}

// Waits notes what is waited for, in words for a person, and why an attempt was
// in vain.
func (s *State) Waits(ctx context.Context, why string, err error) {
	if ctx.Err() != nil {
		return // the process ends
	}
	s.mu.Lock()
	s.why = why
	s.mu.Unlock()
	s.Log.WarnContext(ctx, why+"; trying again", "error", err)
}

// works notes that the process works; check says whether it still can.
func (s *State) works(check func(ctx context.Context) (string, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.why, s.check = "", check
}

// Ready says in words for a person what is waited for or does not answer, "" when
// the process works.
func (s *State) Ready(ctx context.Context) string {
	s.mu.Lock()
	why, check := s.why, s.check
	s.mu.Unlock()
	switch {
	case why != "":
		return why
	case check == nil:
		return "starting"
	}
	why, err := check(ctx)
	if err != nil {
		s.Log.WarnContext(ctx, "not ready: "+why, "error", err)
	}
	return why
}
