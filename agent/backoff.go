package agent

import (
	"math/rand/v2"
	"time"
)

// Backoff spaces the tries of an agent that has lost its gateway. The pauses are
// spread from the first on, since a gateway that comes back is missed by all its
// agents at once, and grow, so that one which cannot serve them all is asked less
// and less. A pause is never longer than half a minute: a node counts as lost
// soon after.
type Backoff struct {
	// Pause is the unit; 1 s in production.
	Pause time.Duration
	tries int
}

// The first pause is spread over firstSpread units, later ones over twice as
// many each, up to mostSpread.
const (
	firstSpread = 5
	mostSpread  = 30
)

// Next is the pause before the next try, at least as long as the gateway asked
// for; 0 is that it did not.
func (b *Backoff) Next(asked time.Duration) time.Duration {
	spread := b.Pause * time.Duration(min(firstSpread<<min(b.tries, 8), mostSpread))
	b.tries++
	pause := b.Pause/2 + rand.N(spread)
	if asked > 0 {
		// In whole seconds, so what was spread there falls on few moments.
		pause = max(pause, asked+rand.N(time.Second))
	}
	return pause
}

// Reset says that the gateway serves.
func (b *Backoff) Reset() { b.tries = 0 }
