package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// DrainNode cordons a node, whose row is locked, and adds the reason draining.
// A node that is cordoned already keeps why it was.
func DrainNode(ctx context.Context, tx pgx.Tx, nodeID string, reason *string) (int64, error) {
	return changeNode(ctx, tx, nodeID, "drain", `cordoned = true, cordon_reason = CASE WHEN cordoned THEN cordon_reason ELSE $2 END,
		no_schedule_reasons = array_append(no_schedule_reasons, $3)`, reason, fleet.ReasonDraining)
}

// endDraining takes the reason draining off an operation's node together with
// the drain's fence. The node stays cordoned.
func endDraining(ctx context.Context, tx pgx.Tx, o fencedOp) (int64, error) {
	return changeNode(ctx, tx, o.NodeID, "end the drain of", `drain_op = NULL, no_schedule_reasons = array_remove(no_schedule_reasons, $2)`, fleet.ReasonDraining)
}

// drainWaits says who holds a node that is drained, and until when. There is a
// deadline only when every allocation has an end.
func drainWaits(held []fleet.Allocation, since fleet.Time) *fleet.WaitingFor {
	w := &fleet.WaitingFor{Actor: "allocation holders", Since: since, Then: "node.drained; the node stays cordoned",
		YouCan: []string{"allocations/release", "nodes/uncordon"}}
	said := make([]string, len(held))
	var last fleet.Time
	endless := false
	for i, a := range held {
		until := "without an end"
		if a.ExpiresAt != nil {
			until = "until " + a.ExpiresAt.UTC().Format(fleet.TimeFormat)
			if a.ExpiresAt.After(last.Time) {
				last = *a.ExpiresAt
			}
		}
		endless = endless || a.ExpiresAt == nil
		said[i] = fmt.Sprintf("%s of %s (tenant %s) %s", a.ID, a.Holder, a.TenantID, until)
	}
	w.What = fmt.Sprintf("%d live allocation(s) to end: %s", len(held), strings.Join(said, ", "))
	if !endless {
		w.Deadline = &last
	}
	return w
}

// FinishDrain ends a drain well when no live allocation holds its node: the
// reason draining goes and node.drained is told, in one transaction. Else it
// records whom the drain waits for and returns that. A drain that ended well
// already is no error: the answer of the attempt before was lost.
func (s *Store) FinishDrain(ctx context.Context, operationID string) (waiting *fleet.WaitingFor, err error) {
	err = s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		waiting = nil
		o, held, err := lockOperation(ctx, tx, operationID)
		switch {
		case err != nil:
			return err
		case o.State == fleet.OpSucceeded:
			return nil
		case !held || !o.State.Live():
			return superseded(operationID, "the node was uncordoned, or the drain was ended")
		}
		list, err := LiveAllocations(ctx, tx, o.NodeID)
		if err != nil {
			return err
		}
		now := fleet.At(o.Now)
		step := stepOf(&o.Steps, fleet.StepAwaitFree)
		if len(list) > 0 {
			since := now
			if step.StartedAt != nil {
				since = *step.StartedAt
			}
			waiting = drainWaits(list, since)
			_, err := tx.Exec(ctx, `UPDATE operations SET state = 'waiting', waiting_for = $2 WHERE id = $1`, o.ID, waiting)
			return wrapDoing(err, "record what operation "+o.ID+" waits for")
		}
		step.State, step.EndedAt, step.Detail = fleet.StepDone, &now, "no live allocation holds the node"
		if err := saveSteps(ctx, tx, o.ID, o.Steps); err != nil {
			return err
		}
		if err := closeOperation(ctx, tx, o, fleet.OpSucceeded, nil, nil); err != nil {
			return err
		}
		version, err := endDraining(ctx, tx, o)
		if err != nil {
			return err
		}
		return o.event(ctx, tx, "node.drained", version, false, nil)
	})
	return waiting, err
}

// EndDrain ends a node's live drain as aborted, if there is one, under the lock
// of the node's row: its fence goes, so that nothing late of it changes the
// node, and its workflow is told to close. No node.drained follows. Call Notify
// after the commit.
func EndDrain(ctx context.Context, tx pgx.Tx, nodeID, cause, remedy string) error {
	var id string
	err := tx.QueryRow(ctx, `SELECT id FROM operations WHERE node_id = $1 AND lane = 'drain' AND state IN ('pending', 'running', 'waiting')`, nodeID).Scan(&id)
	if isNoRows(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the drain of node %s: %w", nodeID, err)
	}
	o, _, err := lockOperation(ctx, tx, id)
	if err != nil {
		return err
	}
	return endQuietly(ctx, tx, o, cause, remedy)
}

// endQuietly ends an operation aborted without an event of its own, since what
// ended it is told, and closes its workflow: the start is taken back while no
// dispatcher has it, else the workflow is signalled. The node itself is the
// caller's.
func endQuietly(ctx context.Context, tx pgx.Tx, o fencedOp, cause, remedy string) error {
	step, err := stopRunning(ctx, tx, &o, cause)
	if err != nil {
		return err
	}
	if err := closeOperation(ctx, tx, o, fleet.OpAborted, &fleet.OperationError{Code: "aborted", Step: step, Cause: cause, Remedy: remedy}, nil); err != nil {
		return err
	}
	if err := releaseFence(ctx, tx, o); err != nil {
		return err
	}
	taken, err := takeBack(ctx, tx, o.ID)
	if err != nil || taken {
		return err
	}
	return AddDispatch(ctx, tx, DispatchIn{Kind: DispatchSignal, OperationID: o.ID, Signal: fleet.SignalEnd})
}
