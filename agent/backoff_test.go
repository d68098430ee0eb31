package agent_test

import (
	"testing"
	"time"

	"github.com/bettercompute/compute/agent"
)

// The agents of a gateway that is away come back spread: over five seconds at
// first, over ten and twenty, and then over half a minute for as long as it
// takes; after a session it begins anew.
func TestBackoff(t *testing.T) {
	t.Parallel()
	const agents = 2000
	fleet := make([]agent.Backoff, agents)
	for i := range fleet {
		fleet[i].Pause = time.Second
	}
	for try, spread := range []time.Duration{5, 10, 20, 30, 30, 30, 5, 10} {
		if try == 6 {
			for i := range fleet {
				fleet[i].Reset()
			}
		}
		var parts [5]int
		for i := range fleet {
			d := fleet[i].Next(0) - time.Second/2
			if d < 0 || d >= spread*time.Second {
				t.Fatalf("try %d: pause %v beyond half a second, want less than %v", try, d, spread*time.Second)
			}
			parts[int(d*5/(spread*time.Second))]++
		}
		for part, n := range parts {
			if n < agents/10 || n > agents*3/10 {
				t.Errorf("try %d: %d of %d agents in part %d of 5, want about the same in each", try, n, agents, part)
			}
		}
	}
	b := agent.Backoff{Pause: time.Millisecond}
	if d := b.Next(7 * time.Second); d < 7*time.Second || d >= 8*time.Second {
		t.Errorf("asked to come back in 7 s: pause %v", d)
	}
}
