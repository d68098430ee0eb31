package api

import (
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// Beyond these the API says that it is degraded.
const (
	dispatchLate   = 15 * time.Second
	dispatcherLate = 30 * time.Second
	horizonLate    = 30 * time.Second
)

// ready answers 503 only without Postgres or with a schema it does not know;
// what Temporal's outage delays is shown as degraded with 200, so that it
// takes no API out of a load balancer.
func (s *Server) ready(g *gin.Context) {
	ctx, cancel := context.WithTimeout(g.Request.Context(), 3*time.Second)
	defer cancel()
	known, err := store.SchemaKnown(ctx, s.store.Pool())
	switch {
	case err != nil:
		s.log.WarnContext(ctx, "not ready", "error", err)
		g.JSON(http.StatusServiceUnavailable, gin.H{"ready": false, "why": "Postgres does not answer, or has no schema yet (compute migrate)"})
		return
	case !known:
		g.JSON(http.StatusServiceUnavailable, gin.H{"ready": false, "why": "the database's schema is older than this program: run compute migrate"})
		return
	}
	degraded := s.degraded(ctx)
	horizon, err := store.HorizonAge(ctx, s.store.Pool())
	if err != nil {
		degraded = append(degraded, "the events' horizon cannot be read")
	}
	// Last, since a token can let a call hang.
	if _, err := s.ssh.usable(ctx); fleet.CodeOf(err) == fleet.CodeUnavailable {
		s.log.WarnContext(ctx, "the SSH CA's key cannot be used", "error", err)
		degraded = append(degraded, "no SSH certificates are issued: the CA's key cannot be used, and this process's log says why")
	}
	g.JSON(http.StatusOK, gin.H{"ready": true, "degraded": degraded, "eventsHorizonSeconds": horizon.Seconds(),
		"ssh": gin.H{"configured": s.ssh.ca != nil, "requireMFA": s.ssh.requireMFA}})
}

// degraded names what works late.
func (s *Server) degraded(ctx context.Context) []string {
	out := []string{}
	pool := s.store.Pool()
	if seen, ever, err := store.DispatcherSeen(ctx, pool); err != nil || !ever || seen > dispatcherLate {
		out = append(out, "no worker reaches Temporal: verbs are accepted and run later")
	}
	if age, _, err := store.DispatchLag(ctx, pool); err != nil || age > dispatchLate {
		out = append(out, "operations are started late: the oldest has waited "+age.Round(time.Second).String())
	}
	if age, err := store.HorizonAge(ctx, pool); err != nil || age > horizonLate {
		out = append(out, "events are held back by a transaction "+age.Round(time.Second).String()+" old")
	}
	if e, err := store.LoadEpoch(ctx, pool); err != nil || e.RecoveryPending {
		out = append(out, "recovery is pending: destructive verbs are refused until compute recover")
	}
	return out
}
