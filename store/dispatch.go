package store

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

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
	trace := traceOf(ctx)
	for _, d := range rows {
		payload := d.Payload
		if payload == nil {
			payload = struct{}{}
		}
		batch.Queue(`INSERT INTO dispatch (workflow_id, kind, operation_id, workflow_type, signal, payload, trace, epoch)
			SELECT $1, $2, $3, NULLIF($4, ''), NULLIF($5, ''), $6, NULLIF($7, ''), epoch FROM cluster_epoch`,
			fleet.WorkflowID(d.OperationID), d.Kind, d.OperationID, d.WorkflowType, d.Signal, payload, trace)
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
	// trace is the W3C traceparent of what wrote the row, "" when nobody traced it.
	trace string
	// Tags are the operation's search attributes at this moment, by name; those
	// that it has none of are left out.
	Tags map[string]string
}

// Traced is a context in the trace of what wrote the row.
func (d Dispatch) Traced(ctx context.Context) context.Context { return inTrace(ctx, d.trace) }

// A claimed workflow id is an advisory lock of the claiming transaction, and
// not a row lock: that would take a transaction id, and the events' horizon
// would stand still for as long as Temporal takes to answer. The lock goes with
// its connection, so what a killed dispatcher held is free at once.
const claimKey = `hashtextextended(workflow_id, 7346)`

// claimSQL locks the workflow ids whose oldest row is due, up to a number, and
// passes over those that another dispatcher holds. OFFSET 0 keeps the locking
// outside the choosing, so that no more is locked than is taken.
const claimSQL = `
SELECT due.id FROM (
    SELECT d.id, d.workflow_id FROM dispatch d
    WHERE d.not_before <= now()
      AND d.epoch = (SELECT epoch FROM cluster_epoch WHERE NOT recovery_pending)
      AND NOT EXISTS (SELECT FROM dispatch older WHERE older.workflow_id = d.workflow_id AND older.id < d.id)
    ORDER BY d.id OFFSET 0) due
WHERE pg_try_advisory_xact_lock(` + claimKey + `)
LIMIT $1`

// claimedSQL reads claimed rows in a statement of its own, begun after their
// locks were taken: a row that another dispatcher delivered in between is gone.
const claimedSQL = `
SELECT d.id, d.workflow_id, d.kind, d.operation_id, coalesce(d.workflow_type, ''), coalesce(d.signal, ''), d.payload, d.attempts,
       extract(epoch FROM now() - d.created_at)::float8, coalesce(d.trace, ''),
       jsonb_strip_nulls(jsonb_build_object('OperationId', d.operation_id, 'NodeId', n.id, 'TenantId', n.tenant_id, 'SiteId', n.site_id,
           'PoolId', n.pool_id, 'ProvisionState', n.provision_state))
FROM dispatch d
LEFT JOIN operations o ON o.id = d.operation_id
LEFT JOIN nodes n ON n.id = o.node_id
WHERE d.id = ANY($1) AND d.not_before <= now() ORDER BY d.id`

// takeBack deletes the rows of an operation whose start no dispatcher has
// claimed, and says whether it did. It waits for no dispatcher, since the caller
// holds the node's row. The rows are read after the claim is held: what a
// dispatcher delivered in between is gone.
func takeBack(ctx context.Context, tx pgx.Tx, operationID string) (bool, error) {
	doing := "take back the start of operation " + operationID
	var claimed bool
	err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(`+claimKey+`) FROM (SELECT $1::text AS workflow_id) w`,
		fleet.WorkflowID(operationID)).Scan(&claimed)
	if err != nil || !claimed {
		return false, wrapDoing(err, doing)
	}
	tag, err := tx.Exec(ctx, `DELETE FROM dispatch WHERE workflow_id = $1
		AND EXISTS (SELECT FROM dispatch first WHERE first.workflow_id = $1 AND first.kind = 'start')`, fleet.WorkflowID(operationID))
	return tag.RowsAffected() > 0, wrapDoing(err, doing)
}

// Deliver claims up to limit workflow ids, gives the oldest row of each to
// deliver while the claim is held, and deletes those delivered. A row whose
// delivery failed stays and is due again after a growing pause. It returns how
// many were claimed.
func (s *Store) Deliver(ctx context.Context, limit int, deliver func(ctx context.Context, d Dispatch) error) (int, error) {
	claimed := 0
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		list, err := claim(ctx, tx, limit)
		if err != nil || len(list) == 0 {
			return err
		}
		claimed = len(list)
		failed := deliverAll(ctx, list, deliver)
		return s.settle(ctx, tx, list, failed)
	})
	return claimed, wrap(err)
}

func claim(ctx context.Context, tx pgx.Tx, limit int) ([]Dispatch, error) {
	rows, err := tx.Query(ctx, claimSQL, limit)
	if err != nil {
		return nil, fmt.Errorf("claim dispatch rows: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil || len(ids) == 0 {
		return nil, wrapDoing(err, "claim dispatch rows")
	}
	if rows, err = tx.Query(ctx, claimedSQL, ids); err != nil {
		return nil, fmt.Errorf("read claimed dispatch rows: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (Dispatch, error) {
		var d Dispatch
		var age float64
		err := r.Scan(&d.ID, &d.WorkflowID, &d.Kind, &d.OperationID, &d.WorkflowType, &d.Signal, &d.Payload, &d.Attempts, &age, &d.trace, &d.Tags)
		d.Age = time.Duration(age * float64(time.Second))
		return d, err
	})
	return list, wrapDoing(err, "read claimed dispatch rows")
}

// settle deletes what was delivered and puts off what was not.
func (s *Store) settle(ctx context.Context, tx pgx.Tx, list []Dispatch, failed []error) error {
	batch := &pgx.Batch{}
	for i, d := range list {
		if failed[i] == nil {
			batch.Queue(`DELETE FROM dispatch WHERE id = $1`, d.ID)
			if d.Kind == DispatchStart {
				batch.Queue(`UPDATE operations SET delivered_at = coalesce(delivered_at, now()) WHERE id = $1`, d.OperationID)
			}
			continue
		}
		pause := s.scaled(min(time.Second<<min(d.Attempts, 5), 30*time.Second))
		batch.Queue(`UPDATE dispatch SET attempts = attempts + 1, last_error = left($2, 2000), not_before = now() + $3 WHERE id = $1`,
			d.ID, failed[i].Error(), pause)
	}
	return wrapDoing(tx.SendBatch(ctx, batch).Close(), "settle dispatch rows")
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

// wrapDoing says what was being done when there is an error.
func wrapDoing(err error, doing string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
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
