package sim

import (
	"context"
	"math"
	"sync"
	"time"
)

// clock is the simulated time: it starts at the wall clock's time of the rack's
// first start and runs factor times as fast. A rack that is restarted from its
// journal goes on with the same clock, so time passes for its machines while
// the process is away, as it does for real ones.
type clock struct {
	mu     sync.Mutex
	wall0  time.Time
	sim0   time.Time
	factor float64
}

func newClock(factor float64) *clock {
	now := time.Now()
	return &clock{wall0: now, sim0: now.UTC(), factor: factor}
}

// now is the simulated time, UTC.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sim0.Add(times(time.Since(c.wall0), c.factor))
}

// wall turns a simulated duration into wall time.
func (c *clock) wall(d time.Duration) time.Duration { return times(d, 1/c.factor) }

// simulated turns a wall duration into simulated time.
func (c *clock) simulated(d time.Duration) time.Duration { return times(d, c.factor) }

// times is d times f, within what a Duration holds.
func times(d time.Duration, f float64) time.Duration {
	v := float64(d) * f
	if v >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(v)
}

// skip moves the simulated time forward at once.
func (c *clock) skip(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sim0 = c.sim0.Add(d)
}

// origin is what another clock needs to go on as this one.
func (c *clock) origin() (wall, sim time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall0.Round(0), c.sim0
}

// resumedClock goes on as the clock that had this origin and factor, from now on
// at another factor.
func resumedClock(wall, sim time.Time, was, factor float64) *clock {
	old := clock{wall0: wall, sim0: sim, factor: was}
	return &clock{wall0: time.Now(), sim0: old.now(), factor: factor}
}

// sleep waits for a simulated duration or until ctx ends, and says whether the
// whole duration passed.
func (c *clock) sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(c.wall(d))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
