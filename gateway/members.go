package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/bettercompute/compute/store"
)

// The rhythm of what a gateway does for all its sessions at once.
const (
	// endEvery bounds how long a revoked node is still served: well within the 5
	// seconds that are promised.
	endEvery = 2 * time.Second
	// touchEvery spaces the statements that note who was heard of.
	touchEvery = 15 * time.Second
	beatEvery  = 10 * time.Second
)

// member is a node whose session this gateway serves.
type member struct {
	store.HeldSession
	// over is closed when the session must end.
	over chan struct{}
	// touched is what was noted last.
	touched time.Time
}

// members are the nodes whose sessions this gateway serves.
type members struct {
	mu sync.Mutex
	by map[string]*member
}

func newMembers() *members { return &members{by: map[string]*member{}} }

// open registers a session; the node's former one here is over.
func (m *members) open(h store.HeldSession) *member {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.by[h.NodeID]; old != nil {
		if old.Epoch > h.Epoch {
			// A later session of the node was opened while this one waited.
			late := &member{HeldSession: h, over: make(chan struct{})}
			close(late.over)
			return late
		}
		close(old.over)
	}
	h.Seen = time.Now()
	mb := &member{HeldSession: h, over: make(chan struct{}), touched: h.Seen}
	m.by[h.NodeID] = mb
	return mb
}

// heard returns a node's session of an epoch and notes that it was heard of; nil
// when this gateway serves none.
func (m *members) heard(nodeID, serial string, epoch int64) *member {
	m.mu.Lock()
	defer m.mu.Unlock()
	mb := m.by[nodeID]
	if mb == nil || mb.Epoch != epoch || mb.Serial != serial {
		return nil
	}
	mb.Seen = time.Now()
	return mb
}

// end ends a node's session of an epoch.
func (m *members) end(nodeID string, epoch int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mb := m.by[nodeID]; mb != nil && mb.Epoch == epoch {
		close(mb.over)
		delete(m.by, nodeID)
	}
}

// held are all sessions; heardOf only those heard of since they were noted.
func (m *members) held() []store.HeldSession {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]store.HeldSession, 0, len(m.by))
	for _, mb := range m.by {
		out = append(out, mb.HeldSession)
	}
	return out
}

func (m *members) heardOf() []store.HeldSession {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []store.HeldSession
	for _, mb := range m.by {
		if mb.Seen.After(mb.touched) {
			mb.touched = mb.Seen
			out = append(out, mb.HeldSession)
		}
	}
	return out
}

// forget drops the sessions of nodes that have long been silent: they are lost,
// and begin anew when they come back.
func (m *members) forget(before time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, mb := range m.by {
		if mb.Seen.Before(before) {
			close(mb.over)
			delete(m.by, id)
		}
	}
}

// keepMembers ends sessions that must end, notes who was heard of, and says that
// this gateway serves, each for all sessions in one statement.
func (g *Gateway) keepMembers(ctx context.Context) {
	var ended, touched, beaten time.Time
	every := min(endEvery, g.cfg.Poll)
	for now := time.Now(); ; now = time.Now() {
		if now.Sub(ended) >= every {
			ended = now
			g.endMembers(ctx)
		}
		if now.Sub(touched) >= min(touchEvery, g.store.SeenEvery()/2) {
			touched = now
			g.touchMembers(ctx)
		}
		if now.Sub(beaten) >= beatEvery {
			beaten = now
			if err := g.store.BeatGateway(ctx, g.id, g.joinFingerprint()); err != nil && ctx.Err() == nil {
				g.log.Warn("saying that the gateway serves", "error", err)
			}
		}
		if !pause(ctx, every) {
			return
		}
	}
}

// joinFingerprint is that of the CA by which joining machines know the gateway,
// "" when none can join.
func (g *Gateway) joinFingerprint() string {
	if g.cfg.Nodes == nil {
		return ""
	}
	return g.cfg.CA.Fingerprint()
}

func (g *Gateway) endMembers(ctx context.Context) {
	g.members.forget(time.Now().Add(-5 * time.Minute))
	held := g.members.held()
	if len(held) == 0 {
		return
	}
	ended, err := g.store.EndedSessions(ctx, held)
	if err != nil {
		if ctx.Err() == nil {
			g.log.Warn("looking for ended sessions", "error", err)
		}
		return
	}
	epochs := map[string]int64{}
	for _, h := range held {
		epochs[h.NodeID] = h.Epoch
	}
	for _, id := range ended {
		g.log.Info("session ended", "node", id)
		g.members.end(id, epochs[id])
	}
}

func (g *Gateway) touchMembers(ctx context.Context) {
	heard := g.members.heardOf()
	if len(heard) == 0 {
		return
	}
	if err := g.store.TouchSessions(ctx, heard); err != nil && ctx.Err() == nil {
		g.log.Warn("noting who was heard of", "error", err)
	}
}
