package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/bettercompute/compute/fleet"
)

// The kinds of dispatch rows.
const (
	DispatchStart  = "start"
	DispatchSignal = "signal"
)

// DispatchIn is something that Temporal shall be asked.
type DispatchIn struct {
	Kind, OperationID string
	// WorkflowType is for a start, Signal for a signal.
	WorkflowType, Signal string
	Payload              any
}

// AddDispatch writes dispatch rows in the transaction of their cause. Rows of
// one workflow are delivered in the order they were written. Call Store.Notify
// after the commit.
func AddDispatch(ctx context.Context, tx pgx.Tx, rows ...DispatchIn) error {
	batch := &pgx.Batch{}
	for _, d := range rows {
		payload := d.Payload
		if payload == nil {
			payload = struct{}{}
		}
		batch.Queue(`INSERT INTO dispatch (workflow_id, kind, operation_id, workflow_type, signal, payload, epoch)
			SELECT $1, $2, $3, NULLIF($4, ''), NULLIF($5, ''), $6, epoch FROM cluster_epoch`,
			fleet.WorkflowID(d.OperationID), d.Kind, d.OperationID, d.WorkflowType, d.Signal, payload)
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("write dispatch rows: %w", err)
	}
	return nil
}

// Dispatch is a claimed dispatch row.
type Dispatch struct {
	ID           int64
	WorkflowID   string
	Kind         string
	OperationID  string
	WorkflowType string
	Signal       string
	Payload      json.RawMessage
	Attempts     int
	Age          time.Duration
}

// claimSQL takes the oldest due row of each workflow, skipping workflows whose
// oldest row another dispatcher holds, so that rows of one id stay in order.
const claimSQL = `
SELECT d.id, d.workflow_id, d.kind, d.operation_id, coalesce(d.workflow_type, ''), coalesce(d.signal, ''), d.payload, d.attempts,
       extract(epoch FROM now() - d.created_at)
FROM dispatch d
WHERE d.not_before <= now()
  AND d.epoch = (SELECT epoch FROM cluster_epoch WHERE NOT recovery_pending)
  AND NOT EXISTS (SELECT FROM dispatch older WHERE older.workflow_id = d.workflow_id AND older.id < d.id)
ORDER BY d.id
LIMIT $1
FOR UPDATE OF d SKIP LOCKED`

// Deliver claims up to limit rows, gives each to deliver while it is locked,
// and deletes those delivered. A row whose delivery failed stays and is due
// again after a growing pause. It returns how many were claimed.
func (s *Store) Deliver(ctx context.Context, limit int, deliver func(ctx context.Context, d Dispatch) error) (int, error) {
	claimed := 0
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, claimSQL, limit)
		if err != nil {
			return fmt.Errorf("claim dispatch rows: %w", err)
		}
		list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (Dispatch, error) {
			var d Dispatch
			var age float64
			err := r.Scan(&d.ID, &d.WorkflowID, &d.Kind, &d.OperationID, &d.WorkflowType, &d.Signal, &d.Payload, &d.Attempts, &age)
			d.Age = time.Duration(age * float64(time.Second))
			return d, err
		})
		if err != nil {
			return fmt.Errorf("claim dispatch rows: %w", err)
		}
		claimed = len(list)
		failed := deliverAll(ctx, list, deliver)
		batch := &pgx.Batch{}
		for i, d := range list {
			if failed[i] == nil {
				batch.Queue(`DELETE FROM dispatch WHERE id = $1`, d.ID)
				if d.Kind == DispatchStart {
					batch.Queue(`UPDATE operations SET delivered_at = coalesce(delivered_at, now()) WHERE id = $1`, d.OperationID)
				}
				continue
			}
			pause := min(time.Second<<min(d.Attempts, 5), 30*time.Second)
			batch.Queue(`UPDATE dispatch SET attempts = attempts + 1, last_error = $2, not_before = now() + $3 WHERE id = $1`,
				d.ID, failed[i].Error(), pause)
		}
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return fmt.Errorf("settle dispatch rows: %w", err)
		}
		return nil
	})
	return claimed, wrap(err)
}

// deliverAll delivers side by side: the rows are of different workflows.
func deliverAll(ctx context.Context, list []Dispatch, deliver func(context.Context, Dispatch) error) []error {
	failed := make([]error, len(list))
	var wg sync.WaitGroup
	for i, d := range list {
		wg.Go(func() { failed[i] = deliver(ctx, d) })
	}
	wg.Wait()
	return failed
}

// DispatchLag is the age of the oldest row that is not delivered, 0 without
// one, and how many there are.
func DispatchLag(ctx context.Context, q Reader) (oldest time.Duration, count int64, err error) {
	var seconds float64
	err = q.QueryRow(ctx, `SELECT coalesce(extract(epoch FROM now() - min(created_at)), 0), count(*) FROM dispatch`).Scan(&seconds, &count)
	if err != nil {
		return 0, 0, fmt.Errorf("read the dispatch lag: %w", err)
	}
	return time.Duration(seconds * float64(time.Second)), count, nil
}

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
