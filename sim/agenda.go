package sim

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// agenda wakes machines when something about them is due, so that a machine at
// rest costs neither a goroutine nor a timer.
type agenda struct {
	rack *Rack
	mu   sync.Mutex
	q    dueQueue
	wake chan struct{}
}

type dueItem struct {
	at time.Time
	m  *Machine
}

type dueQueue []dueItem

func (q dueQueue) Len() int           { return len(q) }
func (q dueQueue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q dueQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *dueQueue) Push(x any) {
	if it, ok := x.(dueItem); ok {
		*q = append(*q, it)
	}
}
func (q *dueQueue) Pop() any {
	old := *q
	it := old[len(old)-1]
	*q = old[:len(old)-1]
	return it
}

func newAgenda(r *Rack) *agenda {
	return &agenda{rack: r, wake: make(chan struct{}, 1)}
}

// add has the machine advanced at the given time. Entries are never taken back:
// a machine woken for nothing finds nothing due.
func (a *agenda) add(m *Machine, at time.Time) {
	a.mu.Lock()
	heap.Push(&a.q, dueItem{at, m})
	first := a.q[0].m == m && a.q[0].at.Equal(at)
	a.mu.Unlock()
	if first {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
}

func (a *agenda) run(ctx context.Context) {
	flush := time.NewTicker(200 * time.Millisecond)
	defer flush.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(a.next())
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		case <-flush.C:
			a.rack.flush()
		case <-timer.C:
		}
		for _, m := range a.taken(a.rack.clock.now()) {
			m.wake()
		}
	}
}

// next is the wall time until the first entry is due.
func (a *agenda) next() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.q) == 0 {
		return time.Hour
	}
	return max(0, a.rack.clock.wall(a.q[0].at.Sub(a.rack.clock.now())))
}

func (a *agenda) taken(now time.Time) []*Machine {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*Machine
	for len(a.q) > 0 && !a.q[0].at.After(now) {
		it := a.q[0]
		heap.Pop(&a.q)
		out = append(out, it.m)
	}
	return out
}
