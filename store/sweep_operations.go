package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// OpenOperation is an operation that Postgres holds open: live or parked.
type OpenOperation struct {
	ID     string
	NodeID string
	Parked bool
	// Delivered says that Temporal was given its start, Queued that a start is
	// still to be delivered.
	Delivered, Queued bool
	// Present says that it was made in the present epoch.
	Present bool
	// Failing says since when its workflow's tasks fail; nil while they do not.
	Failing *fleet.WaitingFor
}

// ClaimOpenOperations claims open operations that no sweep looked at for a
// while, the longest unseen first.
func (s *Store) ClaimOpenOperations(ctx context.Context, every time.Duration, limit int) ([]OpenOperation, error) {
	rows, err := s.pool.Query(ctx, `
		WITH due AS (
			SELECT id FROM operations o
			WHERE (state IN ('pending', 'running', 'waiting') OR parked)
			  AND coalesce(swept_at, created_at) < now() - $1::interval
			ORDER BY coalesce(swept_at, created_at) LIMIT $2 FOR UPDATE SKIP LOCKED)
		UPDATE operations o SET swept_at = now() FROM due, cluster_epoch e WHERE o.id = due.id
		RETURNING o.id, o.node_id, o.parked, o.delivered_at IS NOT NULL,
			EXISTS (SELECT FROM dispatch d WHERE d.operation_id = o.id AND d.kind = 'start'), o.epoch = e.epoch, o.failing`, every, limit)
	if err != nil {
		return nil, fmt.Errorf("claim open operations: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (o OpenOperation, err error) {
		return o, r.Scan(&o.ID, &o.NodeID, &o.Parked, &o.Delivered, &o.Queued, &o.Present, &o.Failing)
	})
	return list, wrapDoing(err, "claim open operations")
}

// EndLost ends an operation whose workflow Temporal closed without ending it,
// or does not know. It ends as its verb fails and nothing stays parked. ended
// is false when the operation had ended by itself in the meantime.
func (s *Store) EndLost(ctx context.Context, operationID, code, cause string) (ended bool, err error) {
	err = s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		ended = false
		o, held, err := lockOperation(ctx, tx, operationID)
		if err != nil {
			return err
		}
		if !o.State.Live() && !o.Parked {
			return nil
		}
		var queued bool
		err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM dispatch WHERE operation_id = $1 AND kind = 'start')`, o.ID).Scan(&queued)
		if err != nil || queued {
			return wrapDoing(err, "look for the start of operation "+o.ID)
		}
		ended = true
		f := fleet.OperationFailure{Step: o.failedStep(), LeftBehind: o.mayBeLeft(), Code: code, Cause: cause, Remedy: "look at the machine, then call the verb again, or another that the node's state admits"}
		if o.Parked || !held {
			return s.endInPlace(ctx, tx, o, f)
		}
		return s.fail(ctx, tx, o, f)
	})
	if fleet.ReasonOf(err) == ReasonSuperseded {
		return false, nil
	}
	return ended, err
}

// endInPlace ends an operation without a change of its node: a parked one, whose
// node is failed already, or one whose node is another's.
func (s *Store) endInPlace(ctx context.Context, tx pgx.Tx, o fencedOp, f fleet.OperationFailure) error {
	if err := closeOperation(ctx, tx, o, fleet.OpFailed, &fleet.OperationError{Code: f.Code, Step: f.Step, Cause: f.Cause, Remedy: f.Remedy}, f.LeftBehind); err != nil {
		return err
	}
	return releaseFence(ctx, tx, o)
}

// mayBeLeft is what a workflow that is gone may have left on the machine. A
// parked one said so itself.
func (o fencedOp) mayBeLeft() []string {
	if o.Parked {
		return o.LeftBehind
	}
	set := false
	for _, st := range o.Steps {
		switch began := st.StartedAt != nil; {
		case began && (st.Name == fleet.StepPrepareBoot || st.Name == fleet.StepProveOverride && st.State != fleet.StepDone):
			set = true
		case st.State == fleet.StepDone && slices.Contains(fleet.CleaningSteps, st.Name):
			set = false
		}
	}
	if !set {
		return nil
	}
	return []string{"virtual media and boot override: the workflow was gone before it cleared them"}
}

// failedStep is the step that is under way or that failed, "" without one.
func (o fencedOp) failedStep() string {
	name := ""
	for _, st := range o.Steps {
		if st.State == fleet.StepRunning || st.State == fleet.StepFailed {
			name = st.Name
		}
	}
	return name
}

// RestartLost asks for an operation's workflow again, whose start row is gone
// although it was never delivered. It does so in the present epoch only.
func (s *Store) RestartLost(ctx context.Context, operationID string) error {
	err := s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		var wanted bool
		err := tx.QueryRow(ctx, `SELECT o.delivered_at IS NULL AND o.epoch = e.epoch AND NOT e.recovery_pending
			AND NOT EXISTS (SELECT FROM dispatch d WHERE d.operation_id = o.id AND d.kind = 'start')
			FROM operations o, cluster_epoch e WHERE o.id = $1`, o.ID).Scan(&wanted)
		if err != nil || !wanted {
			return wrapDoing(err, "look for the start of operation "+o.ID)
		}
		return AddDispatch(ctx, tx, DispatchIn{Kind: DispatchStart, OperationID: o.ID, WorkflowType: fleet.WorkflowTypes[o.Verb]})
	})
	if fleet.ReasonOf(err) == ReasonSuperseded {
		return nil
	}
	s.Notify()
	return err
}

// workerActor is who an operation waits for whose workflow tasks fail.
const workerActor = "worker"

// ShowFailingTask shows on an operation that its workflow cannot go on, or with
// "" that it can again. What the operation itself waits for stays beside it: a
// wait that nobody looks at any more never ends.
func (s *Store) ShowFailingTask(ctx context.Context, o OpenOperation, what string) error {
	if what == "" {
		if o.Failing == nil {
			return nil
		}
		_, err := s.pool.Exec(ctx, `UPDATE operations SET failing = NULL WHERE id = $1`, o.ID)
		return wrapDoing(err, "record that operation "+o.ID+" goes on")
	}
	w := fleet.WaitingFor{Actor: workerActor, What: what, Since: fleet.At(time.Now()), Then: "the operation goes on where it was",
		YouCan: []string{"run a worker version that can replay it", "metal/abort, or for a drain nodes/uncordon"}}
	if o.Failing != nil {
		w.Since = o.Failing.Since
	}
	_, err := s.pool.Exec(ctx, `UPDATE operations SET failing = $2 WHERE id = $1 AND state IN ('pending', 'running', 'waiting')`, o.ID, w)
	return wrapDoing(err, "record that operation "+o.ID+" cannot go on")
}

// ClaimSweep makes this process the one that does a sweep now, if none began it
// within the time given. It returns up to which moment the last one read.
func (s *Store) ClaimSweep(ctx context.Context, name string, every time.Duration) (claimed bool, upto time.Time, err error) {
	if _, err := s.pool.Exec(ctx, `INSERT INTO sweeps (name) VALUES ($1) ON CONFLICT DO NOTHING`, name); err != nil {
		return false, upto, fmt.Errorf("claim the %s sweep: %w", name, err)
	}
	var at *time.Time
	err = s.pool.QueryRow(ctx, `UPDATE sweeps SET begun = now() WHERE name = $1 AND begun < now() - $2::interval RETURNING upto`, name, every).Scan(&at)
	if isNoRows(err) {
		return false, upto, nil
	}
	if at != nil {
		upto = *at
	}
	return err == nil, upto, wrapDoing(err, "claim the "+name+" sweep")
}

// SweptUpTo records up to which moment a sweep read.
func (s *Store) SweptUpTo(ctx context.Context, name string, upto time.Time) error {
	_, err := s.pool.Exec(ctx, `UPDATE sweeps SET upto = $2 WHERE name = $1`, name, upto)
	return wrapDoing(err, "record how far the "+name+" sweep got")
}
