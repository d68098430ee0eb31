package gateway

import "sync"

// waiting holds the machines that wait for a command, by their boot.
type waiting struct {
	mu sync.Mutex
	by map[string]map[chan struct{}]struct{}
}

func newWaiting() *waiting { return &waiting{by: map[string]map[chan struct{}]struct{}{}} }

// add registers a wait; the channel gets a value when there may be something
// for the machine. It is to be registered before looking, so that nothing that
// comes in between is missed.
func (w *waiting) add(bootID string) (woken <-chan struct{}, remove func()) {
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by[bootID] == nil {
		w.by[bootID] = map[chan struct{}]struct{}{}
	}
	w.by[bootID][ch] = struct{}{}
	return ch, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.by[bootID], ch)
		if len(w.by[bootID]) == 0 {
			delete(w.by, bootID)
		}
	}
}

// wake wakes the machines of a boot.
func (w *waiting) wake(bootID string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ch := range w.by[bootID] {
		select {
		case ch <- struct{}{}:
		default: // it is awake already
		}
	}
}

// boots are those that somebody waits for.
func (w *waiting) boots() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make([]string, 0, len(w.by))
	for id := range w.by {
		ids = append(ids, id)
	}
	return ids
}
