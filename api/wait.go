package api

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/bettercompute/compute/store"
)

// waitEvery is how often the states of operations that calls wait for are
// read: one statement for all of them, however many calls wait.
const waitEvery = 200 * time.Millisecond

// waiters are the calls of this process that wait for operations.
type waiters struct {
	read func(ctx context.Context, ids []string) (map[string]store.OperationMark, error)

	mu      sync.Mutex
	of      map[string]map[chan store.OperationMark]bool
	running bool
}

func newWaiters(s *store.Store) *waiters {
	return &waiters{of: map[string]map[chan store.OperationMark]bool{},
		read: func(ctx context.Context, ids []string) (map[string]store.OperationMark, error) {
			return store.LoadMarks(ctx, s.Pool(), ids)
		}}
}

// wait returns when the operation's mark is another than the one given, or the
// context ended. It says whether the mark changed.
func (w *waiters) wait(ctx context.Context, operationID string, seen store.OperationMark) bool {
	marks := make(chan store.OperationMark, 1)
	w.add(operationID, marks)
	defer w.remove(operationID, marks)
	for {
		select {
		case <-ctx.Done():
			return false
		case m := <-marks:
			if m != seen {
				return true
			}
		}
	}
}

func (w *waiters) add(id string, c chan store.OperationMark) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of[id] == nil {
		w.of[id] = map[chan store.OperationMark]bool{}
	}
	w.of[id][c] = true
	if !w.running {
		w.running = true
		go w.run()
	}
}

func (w *waiters) remove(id string, c chan store.OperationMark) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if delete(w.of[id], c); len(w.of[id]) == 0 {
		delete(w.of, id)
	}
}

// run reads for as long as anybody waits.
func (w *waiters) run() {
	tick := time.NewTicker(waitEvery)
	defer tick.Stop()
	for range tick.C {
		w.mu.Lock()
		ids := slices.Collect(maps.Keys(w.of))
		w.running = len(ids) > 0
		w.mu.Unlock()
		if len(ids) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		marks, err := w.read(ctx, ids)
		cancel()
		if err == nil { // else the next look tells; each call has its own deadline
			w.tell(marks)
		}
	}
}

func (w *waiters) tell(marks map[string]store.OperationMark) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, m := range marks {
		for c := range w.of[id] {
			select {
			case c <- m:
			default: // the one before is not taken yet; the next look brings this one
			}
		}
	}
}
