package gate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/store"
)

// session is the one BMC session that a node's holders hand on. Logging in and
// out is done in turn, over all processes, so that there are never two.
type session struct {
	gate   *Gate
	nodeID string
	// lease is the one under which its holder talks to the BMC.
	lease store.Lease
	// brief says that a session of our own making is not left behind, unless
	// somebody else has come to use it: a look at a BMC at rest logs out.
	brief bool
	// ending says that no session is left behind.
	ending bool

	uri string
	// kept says that it is in the store, own that this holder made it.
	kept, own bool
	// turn is the right to log in or out, while it is held.
	turn *store.Lease
}

// turnPoll spaces the looks of who waits for its turn.
const turnPoll = 50 * time.Millisecond

// Load returns the kept session. Without one it is the caller's turn to log in,
// until it saves what came of it.
func (s *session) Load(ctx context.Context) (uri, token string, err error) {
	for until := time.Now().Add(s.gate.Waits.Request); ; {
		if uri, token, err = s.gate.Store.LoadBMCSession(ctx, s.nodeID); err != nil {
			return "", "", err
		}
		if uri != "" {
			s.uri, s.kept, s.own = uri, true, false
			if !s.ending {
				s.done(ctx)
			}
			return uri, token, nil
		}
		if s.turn != nil || s.ending {
			return "", "", nil
		}
		mine, err := s.takeTurn(ctx)
		switch {
		case err != nil:
			return "", "", err
		case mine: // look again: who had it may have left a session
			continue
		case time.Now().After(until):
			return "", "", &bmc.Error{Kind: bmc.KindBusy, Doing: "log in to the BMC of node " + s.nodeID, Unsent: true,
				Cause: "another worker or operation is logging in", Remedy: "nothing: it is tried again by itself", RetryAfter: s.gate.Waits.Busy}
		}
		select {
		case <-ctx.Done():
			return "", "", context.Cause(ctx)
		case <-time.After(turnPoll):
		}
	}
}

// takeTurn takes the right to log in or out, if nobody has it.
func (s *session) takeTurn(ctx context.Context) (bool, error) {
	l, _, err := s.gate.Store.TakeLease(ctx, store.LeaseAsk{NodeID: s.nodeID, Holder: s.gate.Holder, Login: true, Life: s.gate.life()})
	s.turn = l
	return l != nil, err
}

// done gives the turn on.
func (s *session) done(ctx context.Context) {
	if s.turn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	if err := s.gate.Store.ReleaseLease(ctx, *s.turn); err != nil {
		s.gate.Log.WarnContext(ctx, "give the turn to log in on", "node", s.nodeID, "error", err)
	}
	s.turn = nil
}

// Save keeps a session, or forgets the one that is kept.
func (s *session) Save(ctx context.Context, uri, token string) error {
	defer s.done(ctx)
	if uri == "" {
		forget := s.uri
		s.uri, s.kept, s.own = "", false, false
		if forget == "" {
			return nil
		}
		return s.gate.Store.ForgetBMCSession(ctx, s.nodeID, forget)
	}
	s.uri, s.kept, s.own = uri, false, true
	var err error
	if s.kept, err = s.gate.Store.KeepBMCSession(ctx, s.nodeID, uri, token); s.kept {
		s.gate.spoke(s.nodeID)
	}
	return err
}

// Keep says whether the session stays for the next holder.
func (s *session) Keep() bool {
	switch {
	case !s.kept || s.ending:
		return false
	case !s.brief || !s.own:
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseWithin)
	defer cancel()
	last, err := s.last(ctx)
	return err != nil || !last // one that stays is ended when it was idle for a while
}

// last takes the turn to log out when nobody else talks to the BMC.
func (s *session) last(ctx context.Context) (bool, error) {
	if mine, err := s.takeTurn(ctx); err != nil || !mine {
		return false, err
	}
	others, err := s.gate.Store.OthersTalk(ctx, s.lease)
	if err != nil || others {
		s.done(ctx)
		return false, err
	}
	return true, nil
}

// spoke remembers that this process left a session on a node's BMC.
func (g *Gate) spoke(nodeID string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.left == nil {
		g.left = map[string]bool{}
	}
	g.left[nodeID] = true
}

// othersWithin is how long the end of a session waits for others who use it.
const othersWithin = 2 * time.Second

// EndSessions deletes the BMC session kept for the node, on the BMC too where
// it answers. One that somebody else uses is theirs to end, or the idle sweep's.
func (g *Gate) EndSessions(ctx context.Context, nodeID string) error {
	g.mu.Lock()
	delete(g.left, nodeID)
	g.mu.Unlock()
	uri, _, err := g.Store.LoadBMCSession(ctx, nodeID)
	if err != nil || uri == "" {
		return err
	}
	access, err := g.Store.LoadBMCAccess(ctx, nodeID)
	if err != nil {
		return errors.Join(err, g.Store.ForgetBMCSession(ctx, nodeID, uri))
	}
	held, err := g.take(ctx, nodeID, "", false)
	if err != nil {
		return err
	}
	defer held.release(ctx)
	target, err := g.target(ctx, "", access, recorded)
	if err != nil {
		return err
	}
	opts := g.options(access, held, false)
	ends := &session{gate: g, nodeID: nodeID, lease: held.lease, ending: true}
	defer ends.done(ctx)
	for until := time.Now().Add(othersWithin); ; {
		if last, err := ends.last(ctx); err != nil {
			return err
		} else if last {
			break
		}
		if time.Now().After(until) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(turnPoll):
		}
	}
	opts.Session = ends
	client, err := g.OpenBMC(held.ctx, target, opts)
	if err != nil && (bmc.KindOf(err) == bmc.KindBusy || held.ctx.Err() != nil) {
		return err // nothing was asked of the BMC: the idle sweep does
	}
	if err != nil {
		// It ends by itself on the BMC; what we know of it is no use any more.
		return errors.Join(err, g.Store.ForgetBMCSession(ctx, nodeID, uri))
	}
	if err := client.Close(held.ctx); err != nil {
		return fmt.Errorf("end the BMC session of node %s: %w", nodeID, err)
	}
	return g.Store.ForgetBMCSession(ctx, nodeID, uri)
}

// endAtOnce is how many sessions EndAll ends side by side.
const endAtOnce = 16

// EndAll ends the sessions that this process left on BMCs. A worker that stops
// calls it.
func (g *Gate) EndAll(ctx context.Context) error {
	g.mu.Lock()
	var nodes []string
	for id := range g.left {
		nodes = append(nodes, id)
	}
	g.mu.Unlock()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		all   error
		slots = make(chan struct{}, endAtOnce)
	)
	for _, id := range nodes {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := g.EndSessions(ctx, id); err != nil && bmc.KindOf(err) == "" {
				mu.Lock()
				all = errors.Join(all, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return all
}

var _ bmc.SessionStore = (*session)(nil)

// idleAtOnce is how many idle sessions one sweep ends.
const idleAtOnce = 50

// EndIdle ends sessions that nobody used for a while, and says how many.
func (g *Gate) EndIdle(ctx context.Context) (int, error) {
	nodes, err := g.Store.IdleBMCSessions(ctx, g.IdleAfter, idleAtOnce)
	if err != nil {
		return 0, err
	}
	for _, id := range nodes {
		if err := g.EndSessions(ctx, id); err != nil && bmc.KindOf(err) == "" {
			return 0, err
		}
	}
	return len(nodes), nil
}
