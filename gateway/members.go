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
	// cutOff is how long a gateway serves sessions without reaching Postgres. Then
	// it ends them: no command would come by it, and another gateway may do better.
	cutOff = 90 * time.Second
	// askedWithin bounds each of these statements: a connection on which nothing
	// comes back is given up.
	askedWithin = 10 * time.Second
)

// A revoked node is served for one round and the look that was under way: both
// fit into the 5 seconds, or this is not compiled.
const _ = uint(5*time.Second - 2*endEvery)

// member is a node whose session this gateway serves.
type member struct {
	store.HeldSession
	// over is closed when the session must end.
	over chan struct{}
	// due holds a value while there may be something for the node: whoever waits
	// takes it, looks, and puts it back unless there was nothing.
	due chan struct{}
	// touched is what was noted last.
	touched time.Time
}

func newMember(h store.HeldSession) *member {
	mb := &member{HeldSession: h, over: make(chan struct{}), due: make(chan struct{}, 1), touched: h.Seen}
	mb.wake() // what came before the session
	return mb
}

// wake says that there may be something for the node.
func (m *member) wake() {
	select {
	case m.due <- struct{}{}:
	default: // it is said already
	}
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
			late := newMember(h)
			close(late.over)
			return late
		}
		close(old.over)
	}
	h.Seen = time.Now()
	mb := newMember(h)
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

// wake says that there may be something for a node, if it has a session here.
func (m *members) wake(nodeID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mb := m.by[nodeID]; mb != nil {
		mb.wake()
	}
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

// none says that no node has a session here.
func (m *members) none() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.by) == 0
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
			out = append(out, mb.HeldSession)
		}
	}
	return out
}

// noted remembers that it was noted when these were heard of.
func (m *members) noted(heard []store.HeldSession) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range heard {
		if mb := m.by[h.NodeID]; mb != nil && mb.Epoch == h.Epoch {
			mb.touched = h.Seen
		}
	}
}

// clear ends all sessions and says how many.
func (m *members) clear() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.by)
	for _, mb := range m.by {
		close(mb.over)
	}
	clear(m.by)
	return n
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

// endSessions ends sessions that must end, until the context ends. It waits for
// nothing else that the gateway asks of Postgres.
func (g *Gateway) endSessions(ctx context.Context) {
	for pause(ctx, min(endEvery, g.cfg.Poll)) {
		g.endMembers(ctx)
	}
}

// keepMembers does for all sessions at once what else has to be done, until the
// context ends.
func (g *Gateway) keepMembers(ctx context.Context) {
	k := &keeper{Gateway: g, every: min(endEvery, g.cfg.Poll), reached: time.Now()}
	for {
		k.round(ctx, time.Now())
		if !pause(ctx, k.every) {
			return
		}
	}
}

// keeper knows when what was done last.
type keeper struct {
	*Gateway
	every                  time.Duration
	noted, beaten, reached time.Time
}

// round notes who was heard of, and says that this gateway serves, each for all
// sessions in one statement.
func (k *keeper) round(ctx context.Context, now time.Time) {
	// Who was heard of is noted first: a gateway that says that it serves has told
	// of everybody.
	beat := now.Sub(k.beaten) >= beatEvery
	if beat || now.Sub(k.noted) >= min(touchEvery, k.store.SeenEvery()/2) {
		k.noted = now
		if k.note(ctx, beat) {
			k.reached = now
			if beat {
				k.beaten = now
			}
		}
	}
	if now.Sub(k.reached) >= cutOff {
		k.reached = now
		k.log.Warn("Postgres was not reached for "+cutOff.String()+": all sessions end", "sessions", k.members.clear())
	}
}

// note notes who was heard of and, if asked to, then that the gateway serves.
func (g *Gateway) note(ctx context.Context, beat bool) bool {
	asked, cancel := context.WithTimeout(ctx, askedWithin)
	defer cancel()
	heard := g.members.heardOf()
	var err error
	if len(heard) > 0 {
		err = g.store.TouchSessions(asked, heard)
	}
	if err == nil {
		g.members.noted(heard)
	}
	if err == nil && beat {
		err = g.store.BeatGateway(asked, g.id, g.joinFingerprint())
	}
	if err != nil && ctx.Err() == nil {
		g.log.Warn("noting who was heard of", "error", err)
	}
	return err == nil
}

// joinFingerprint is that of the CA by which joining machines know the gateway,
// "" when none can join.
func (g *Gateway) joinFingerprint() string {
	if g.cfg.Nodes == nil {
		return ""
	}
	return g.cfg.CA.Fingerprint()
}

// endMembers ends those that must end now, asking for all sessions at once.
func (g *Gateway) endMembers(ctx context.Context) {
	g.members.forget(time.Now().Add(-5 * time.Minute))
	held := g.members.held()
	if len(held) == 0 {
		return
	}
	asked, cancel := context.WithTimeout(ctx, askedWithin)
	defer cancel()
	ended, err := g.store.EndedSessions(asked, held)
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
