package gate

import (
	"context"
	"time"
)

// notBefore is until when a BMC asked to be left alone.
func (g *Gate) notBefore(nodeID string) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.quiet[nodeID]
}

// keepQuiet remembers it for this process, and forgets what is over.
func (g *Gate) keepQuiet(nodeID string, until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.quiet == nil {
		g.quiet = map[string]time.Time{}
	}
	now := time.Now()
	for id, at := range g.quiet {
		if at.Before(now) {
			delete(g.quiet, id)
		}
	}
	if until.After(g.quiet[nodeID]) {
		g.quiet[nodeID] = until
	}
}

// longestQuiet is how long others are kept from a BMC by one hint of it: asked to
// wait for a day, nobody waits, but the next hour's operation asks again.
const longestQuiet = time.Hour

// hinted remembers it for all processes. One that could not be told asks too
// early once, and is told by the BMC.
func (g *Gate) hinted(ctx context.Context, nodeID string, until time.Time) {
	if most := time.Now().Add(longestQuiet); until.After(most) {
		until = most
	}
	g.keepQuiet(nodeID, until)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	if err := g.Store.KeepQuiet(ctx, nodeID, time.Until(until)); err != nil {
		g.Log.WarnContext(ctx, "record that a BMC asked to wait", "node", nodeID, "error", err)
	}
}
