package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// dispatchChannel is the NOTIFY channel of the dispatcher.
const dispatchChannel = "compute_dispatch"

// notifyEvery is how often a process sends a NOTIFY at most.
const notifyEvery = 5 * time.Millisecond

// Notify wakes the dispatchers. It is called after a commit, never in the
// transaction: NOTIFY there would serialize all commits of the cluster.
func (s *Store) Notify() { s.wake.poke() }

// notifier sends coalesced NOTIFYs on a connection of its own.
type notifier struct {
	pokes  chan struct{}
	done   chan struct{}
	once   sync.Once
	ctx    context.Context
	cancel context.CancelFunc
}

func newNotifier(pool *pgxpool.Pool) *notifier {
	n := &notifier{pokes: make(chan struct{}, 1), done: make(chan struct{})}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	go n.run(pool)
	return n
}

func (n *notifier) poke() {
	select {
	case n.pokes <- struct{}{}:
	default: // one is on its way and will be seen after this commit too
	}
}

func (n *notifier) close() {
	n.once.Do(n.cancel)
	<-n.done
}

func (n *notifier) run(pool *pgxpool.Pool) {
	defer close(n.done)
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-n.pokes:
		}
		// A lost NOTIFY costs a polling interval, nothing more.
		_, _ = pool.Exec(n.ctx, `SELECT pg_notify($1, '')`, dispatchChannel)
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(notifyEvery):
		}
	}
}

// Listen calls woken for each NOTIFY until the context ends or the connection
// breaks, which is an error.
func (s *Store) Listen(ctx context.Context, woken func()) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("listen for dispatch rows: %w", err)
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "LISTEN "+dispatchChannel); err != nil {
		return fmt.Errorf("listen for dispatch rows: %w", err)
	}
	for {
		if _, err := conn.Conn().WaitForNotification(ctx); err != nil {
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return fmt.Errorf("listen for dispatch rows: %w", err)
		}
		woken()
	}
}
