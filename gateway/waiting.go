package gateway

import "sync"

// waiting holds the machines in the boot image that wait for a command, by their
// boot.
type waiting struct {
	mu sync.Mutex
	by map[string]map[chan struct{}]struct{}
}

func newWaiting() *waiting { return &waiting{by: map[string]map[chan struct{}]struct{}{}} }

// add registers a wait; the channel gets a value when there may be something
// for the machine. It is to be registered before looking, so that nothing that
// comes in between is missed.
func (w *waiting) add(owner string) (woken <-chan struct{}, remove func()) {
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by[owner] == nil {
		w.by[owner] = map[chan struct{}]struct{}{}
	}
	w.by[owner][ch] = struct{}{}
	return ch, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.by[owner], ch)
		if len(w.by[owner]) == 0 {
			delete(w.by, owner)
		}
	}
}

// wake wakes the machine of a boot.
func (w *waiting) wake(owner string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ch := range w.by[owner] {
		select {
		case ch <- struct{}{}:
		default: // it is awake already
		}
	}
}

// owners are those that somebody waits as.
func (w *waiting) owners() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make([]string, 0, len(w.by))
	for id := range w.by {
		ids = append(ids, id)
	}
	return ids
}
