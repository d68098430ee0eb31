package api

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/bettercompute/compute/store"
)

// deniedPerSecond bounds the audit rows of refused calls an identity.
const deniedPerSecond = 20

// limiter bounds calls an identity. Identities not seen for a while are
// forgotten.
type limiter struct {
	perSecond float64

	mu    sync.Mutex
	of    map[string]*bucket
	sweep time.Time
}

type bucket struct {
	limit *rate.Limiter
	seen  time.Time
	// dropped counts what was refused since the last that was let through.
	dropped int
}

func newLimiter(perSecond float64) *limiter {
	return &limiter{perSecond: perSecond, of: map[string]*bucket{}}
}

func (l *limiter) bucket(key string) *bucket {
	now := time.Now()
	if now.Sub(l.sweep) > time.Minute {
		for k, b := range l.of {
			if now.Sub(b.seen) > 10*time.Minute {
				delete(l.of, k)
			}
		}
		l.sweep = now
	}
	b := l.of[key]
	if b == nil {
		b = &bucket{limit: rate.NewLimiter(rate.Limit(l.perSecond), max(1, int(2*l.perSecond)))}
		l.of[key] = b
	}
	b.seen = now
	return b
}

// allow says whether a call may be made now, else how long to wait.
func (l *limiter) allow(key string) (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.bucket(key).limit.Reserve()
	if wait := r.Delay(); wait > 0 {
		r.Cancel()
		return wait, false
	}
	return 0, true
}

// take is allow for what is dropped beyond the bound: it also returns how many
// were dropped since the last that was not.
func (l *limiter) take(key string) (dropped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucket(key)
	if !b.limit.Allow() {
		b.dropped++
		return 0, false
	}
	dropped, b.dropped = b.dropped, 0
	return dropped, true
}

// auditDenied writes the audit row of a refused call, bounded a second an
// identity; what is beyond is counted in the next row.
func (s *Server) auditDenied(ctx context.Context, a store.AuditIn) {
	dropped, ok := s.denied.take(a.Identity)
	if !ok {
		return
	}
	a.Suppressed = dropped
	if err := s.store.AuditDenied(context.WithoutCancel(ctx), a); err != nil {
		s.log.ErrorContext(ctx, "audit a refused call", "method", a.Method, "identity", a.Identity, "error", err)
	}
}
