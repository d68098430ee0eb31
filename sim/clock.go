package sim

import (
	"context"
	"time"
)

// clock is the simulated time: it starts at the wall clock's time of the rack's
// first start and runs factor times as fast. A rack that is restarted from its
// journal goes on with the same clock, so time passes for its machines while
// the process is away, as it does for real ones.
type clock struct {
	wall0  time.Time
	sim0   time.Time
	factor float64
}

func newClock(factor float64) clock {
	now := time.Now()
	return clock{wall0: now, sim0: now.UTC(), factor: factor}
}

// now is the simulated time, UTC.
func (c clock) now() time.Time {
	return c.sim0.Add(time.Duration(float64(time.Since(c.wall0)) * c.factor))
}

// wall turns a simulated duration into wall time.
func (c clock) wall(d time.Duration) time.Duration {
	return time.Duration(float64(d) / c.factor)
}

// simulated turns a wall duration into simulated time.
func (c clock) simulated(d time.Duration) time.Duration {
	return time.Duration(float64(d) * c.factor)
}

// rebased is the same clock at the same simulated time, from now on with
// another factor.
func (c clock) rebased(factor float64) clock {
	wall := time.Now()
	return clock{wall0: wall, sim0: c.now(), factor: factor}
}

// sleep waits for a simulated duration or until ctx ends, and says whether the
// whole duration passed.
func (c clock) sleep(ctx context.Context, d time.Duration) bool {
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
