package gate

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/bettercompute/compute/bmc"
)

// session is the one BMC session that a node's holders hand on. Who logs in
// while another session is kept already logs out again at the end.
type session struct {
	gate   *Gate
	nodeID string
	// brief says that a session of our own making is not kept: a look at a BMC
	// at rest logs out.
	brief bool
	// ending says that no session is left behind.
	ending bool

	uri  string
	kept bool
}

func (s *session) Load(ctx context.Context) (uri, token string, err error) {
	uri, token, err = s.gate.Store.LoadBMCSession(ctx, s.nodeID)
	s.uri, s.kept = uri, uri != ""
	return uri, token, err
}

func (s *session) Save(ctx context.Context, uri, token string) error {
	if uri == "" {
		forget := s.uri
		s.uri, s.kept = "", false
		if forget == "" {
			return nil
		}
		return s.gate.Store.ForgetBMCSession(ctx, s.nodeID, forget)
	}
	s.uri, s.kept = uri, false
	if s.brief {
		return nil
	}
	var err error
	if s.kept, err = s.gate.Store.KeepBMCSession(ctx, s.nodeID, uri, token); s.kept {
		s.gate.spoke(s.nodeID)
	}
	return err
}

func (s *session) Keep() bool { return s.kept && !s.ending }

// spoke remembers that this process left a session on a node's BMC.
func (g *Gate) spoke(nodeID string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.left == nil {
		g.left = map[string]bool{}
	}
	g.left[nodeID] = true
}

// EndSessions deletes the BMC session kept for the node, on the BMC too where
// it answers.
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
	opts.Session = &session{gate: g, nodeID: nodeID, ending: true}
	client, err := g.OpenBMC(held.ctx, target, opts)
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
