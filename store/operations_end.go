package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// BeginOperation makes a pending operation running, records the run and
// returns the work.
func (s *Store) BeginOperation(ctx context.Context, operationID, runID string) (fleet.Work, error) {
	err := s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		_, err := tx.Exec(ctx, `UPDATE operations SET state = CASE WHEN state = 'pending' THEN 'running' ELSE state END,
			run_id = $2, started_at = coalesce(started_at, now()), delivered_at = coalesce(delivered_at, now()) WHERE id = $1`, o.ID, runID)
		if err != nil {
			return fmt.Errorf("begin operation %s: %w", o.ID, err)
		}
		return nil
	})
	if err != nil {
		return fleet.Work{}, err
	}
	return s.LoadWork(ctx, operationID)
}

// closeOperation writes an operation's end, forgets its secrets and voids what
// it armed.
func closeOperation(ctx context.Context, tx pgx.Tx, o fencedOp, state fleet.OperationState, opErr *fleet.OperationError, leftBehind []string) error {
	if leftBehind == nil {
		leftBehind = []string{}
	}
	_, err := tx.Exec(ctx, `UPDATE operations SET state = $2, parked = false, waiting_for = NULL, place = NULL, place_wanted = NULL, error = $3, left_behind = $4, ended_at = now() WHERE id = $1`,
		o.ID, string(state), opErr, leftBehind)
	if err != nil {
		return fmt.Errorf("end operation %s: %w", o.ID, err)
	}
	batch := &pgx.Batch{}
	batch.Queue(`DELETE FROM operation_secrets WHERE operation_id = $1`, o.ID)
	batch.Queue(`UPDATE boots SET voided_at = now() WHERE operation_id = $1 AND voided_at IS NULL`, o.ID)
	batch.Queue(`UPDATE commands SET state = 'cancelled', secrets = NULL, ended_at = now() WHERE operation_id = $1 AND state IN ('pending', 'delivered')`, o.ID)
	if o.Verb == fleet.VerbManage && state != fleet.OpSucceeded {
		// The BMC was not proved to be the host's.
		batch.Queue(leaveSession, o.NodeID, "")
		for _, table := range []string{"bmc_leases", "bmcs"} {
			batch.Queue(`DELETE FROM `+table+` WHERE node_id = $1`, o.NodeID)
		}
		batch.Queue(`DELETE FROM conditions WHERE node_id = $1 AND type IN ('BmcReachable', 'BmcTrusted', 'BmcAuthenticated')`, o.NodeID)
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("clear up after operation %s: %w", o.ID, err)
	}
	return nil
}

// releaseFence gives the node's fence to the parked operation, if there is one,
// else to nobody. A fence that is another operation's stays.
func releaseFence(ctx context.Context, tx pgx.Tx, o fencedOp) error {
	sql := `UPDATE nodes SET provision_op = (SELECT id FROM operations WHERE node_id = $1 AND parked) WHERE id = $1 AND provision_op = $2`
	if o.Lane == LaneDrain {
		sql = `UPDATE nodes SET drain_op = NULL WHERE id = $1 AND drain_op = $2`
	}
	if _, err := tx.Exec(ctx, sql, o.NodeID, o.ID); err != nil {
		return fmt.Errorf("give back the fence of node %s: %w", o.NodeID, err)
	}
	return nil
}

// giveBack is releaseFence of an operation that did not end well. A node that
// nothing drains any more is not draining either.
func giveBack(ctx context.Context, tx pgx.Tx, o *fencedOp) (err error) {
	if o.Lane != LaneDrain {
		return releaseFence(ctx, tx, *o)
	}
	o.Version, err = endDraining(ctx, tx, *o)
	return err
}

// SucceedOperation ends an operation well: what it leaves on the node, the
// node's state, the event and the next operation of the chain, together.
func (s *Store) SucceedOperation(ctx context.Context, operationID string, r fleet.OperationResult) error {
	err := s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		if err := closeOperation(ctx, tx, o, fleet.OpSucceeded, nil, r.NotDone); err != nil {
			return err
		}
		if err := releaseFence(ctx, tx, o); err != nil {
			return err
		}
		if err := recordResult(ctx, tx, o, r); err != nil {
			return err
		}
		if err := o.event(ctx, tx, "node.operation.succeeded", o.Version, true, outcome(o, r)); err != nil {
			return err
		}
		to, moves := fleet.EndsIn[o.Verb]
		if o.Verb == fleet.VerbInspect {
			to, moves = o.ReturnTo, true
		}
		if !moves {
			return nil
		}
		// Enroll and rescue entered their end when they were accepted: that raised
		// the version and was told then.
		if to != o.NodeState {
			version, err := MoveNode(ctx, tx, o.NodeID, to)
			if err != nil {
				return err
			}
			if err := o.event(ctx, tx, "node.provision."+string(to), version, true, nil); err != nil {
				return err
			}
		}
		if r.EndChain {
			return nil
		}
		return s.chainNext(ctx, tx, o, to)
	})
	s.Notify()
	return err
}

// chainNext begins the next operation of a chain in the transaction that ended
// the one before. A machine that may be in use ends the chain.
func (s *Store) chainNext(ctx context.Context, tx pgx.Tx, o fencedOp, at fleet.ProvisionState) error {
	if len(o.Chain) == 0 {
		return nil
	}
	var inUse bool
	if err := tx.QueryRow(ctx, `SELECT maybe_in_use FROM nodes WHERE id = $1`, o.NodeID).Scan(&inUse); err != nil {
		return fmt.Errorf("read whether node %s may be in use: %w", o.NodeID, err)
	}
	if inUse {
		if n := len(o.Steps); n > 0 {
			o.Steps[n-1].Detail = "the machine was found powered on and may be in use, so nothing follows by itself; say inUse: false with metal/inspect when it is free"
			return saveSteps(ctx, tx, o.ID, o.Steps)
		}
		return nil
	}
	verb := fleet.Verb(o.Chain[0])
	next := NewOperation{ID: NewID(fleet.KindOperation), NodeID: o.NodeID, TenantID: o.TenantID, Verb: verb, Lane: LaneProvision,
		Input: map[string]any{}, RequestedBy: o.RequestedBy, Reason: o.Reason}
	for _, v := range o.Chain[1:] {
		next.Chain = append(next.Chain, fleet.Verb(v))
	}
	if verb == fleet.VerbInspect {
		next.ReturnTo = at
	}
	if err := s.InsertOperation(ctx, tx, next); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `UPDATE operations SET next_id = $2 WHERE id = $1`, o.ID, next.ID); err != nil {
		return fmt.Errorf("link operation %s to the next: %w", o.ID, err)
	}
	version, err := MoveNode(ctx, tx, o.NodeID, fleet.MovesTo[verb])
	if err != nil {
		return err
	}
	o.ID, o.Verb = next.ID, verb
	return o.event(ctx, tx, "node.provision."+string(fleet.MovesTo[verb]), version, true, nil)
}

// outcome tells in the event what the last step came to, such as that the power
// was already so, and what a forced retire left undone.
func outcome(o fencedOp, r fleet.OperationResult) map[string]any {
	data := map[string]any{}
	if n := len(o.Steps); n > 0 && o.Steps[n-1].Detail != "" {
		data["detail"] = o.Steps[n-1].Detail
	}
	if len(r.NotDone) > 0 {
		data["notDone"] = r.NotDone
	}
	return data
}

func recordResult(ctx context.Context, tx pgx.Tx, o fencedOp, r fleet.OperationResult) error {
	if r.Image != nil || r.Whole != nil {
		_, err := tx.Exec(ctx, `UPDATE nodes SET image = coalesce($2, image), whole_image = coalesce($3, whole_image) WHERE id = $1`, o.NodeID, r.Image, r.Whole)
		if err != nil {
			return fmt.Errorf("record the image of node %s: %w", o.NodeID, err)
		}
	}
	if o.Verb == fleet.VerbRelease || o.Verb == fleet.VerbRetire {
		if _, err := tx.Exec(ctx, `UPDATE nodes SET image = NULL, whole_image = false WHERE id = $1`, o.NodeID); err != nil {
			return fmt.Errorf("forget the image of node %s: %w", o.NodeID, err)
		}
	}
	if o.Verb == fleet.VerbManage {
		if _, err := changeNode(ctx, tx, o.NodeID, "give a BMC to", `guarded = true`); err != nil {
			return err
		}
	}
	if r.ForgetBMCPassword {
		if _, err := tx.Exec(ctx, `UPDATE bmcs SET password = NULL, staged_password = NULL, staged_op = NULL WHERE node_id = $1`, o.NodeID); err != nil {
			return fmt.Errorf("forget the BMC password of node %s: %w", o.NodeID, err)
		}
	}
	return nil
}

// FailOperation ends an operation failed, or parks it. Verbs that move the node
// make it failed; the others leave its state and are never parked.
func (s *Store) FailOperation(ctx context.Context, operationID string, f fleet.OperationFailure) error {
	return s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error { return s.fail(ctx, tx, o, f) })
}

func (s *Store) fail(ctx context.Context, tx pgx.Tx, o fencedOp, f fleet.OperationFailure) error {
	if f.Park && o.Parked {
		return nil // recorded already: the answer of the attempt before was lost
	}
	opErr := &fleet.OperationError{Code: f.Code, Step: f.Step, Cause: f.Cause, Remedy: f.Remedy}
	if f.Step != "" {
		st := stepOf(&o.Steps, f.Step)
		now := fleet.At(o.Now)
		st.State, st.EndedAt, st.Detail = fleet.StepFailed, &now, f.Cause
		if err := saveSteps(ctx, tx, o.ID, o.Steps); err != nil {
			return err
		}
	}
	from, moves := fleet.FailsFrom[o.Verb]
	if f.Park && moves {
		if _, err := tx.Exec(ctx, `UPDATE operations SET state = 'failed', parked = true, waiting_for = NULL, place = NULL, place_wanted = NULL, error = $2, left_behind = $3 WHERE id = $1`,
			o.ID, opErr, append([]string{}, f.LeftBehind...)); err != nil {
			return fmt.Errorf("park operation %s: %w", o.ID, err)
		}
	} else {
		if err := closeOperation(ctx, tx, o, fleet.OpFailed, opErr, f.LeftBehind); err != nil {
			return err
		}
		if err := giveBack(ctx, tx, &o); err != nil {
			return err
		}
	}
	if err := o.event(ctx, tx, "node.operation.failed", o.Version, true,
		map[string]any{"step": f.Step, "code": f.Code, "cause": f.Cause, "remedy": f.Remedy}); err != nil {
		return err
	}
	if !moves {
		return nil
	}
	return s.failNode(ctx, tx, o, fleet.Failure{From: from, Step: f.Step, Cause: f.Cause, Remedy: f.Remedy, At: fleet.At(o.Now)})
}

func (s *Store) failNode(ctx context.Context, tx pgx.Tx, o fencedOp, f fleet.Failure) error {
	version, err := changeNode(ctx, tx, o.NodeID, "fail", `provision_state = 'failed', failed = $2`, f)
	if err != nil {
		return err
	}
	return o.event(ctx, tx, "node.provision.failed", version, true,
		map[string]any{"from": string(f.From), "step": f.Step, "cause": f.Cause, "remedy": f.Remedy})
}

// AbortOperation ends an operation aborted with what could not be cleaned up.
// A node that was moving becomes failed; a parked one stays so. One that is
// already aborted gets leftBehind and is no error.
func (s *Store) AbortOperation(ctx context.Context, operationID, cause string, leftBehind []string) error {
	tag, err := s.pool.Exec(ctx, `UPDATE operations SET left_behind = $2 WHERE id = $1 AND state = 'aborted'`, operationID, append([]string{}, leftBehind...))
	if err != nil {
		return fmt.Errorf("record what operation %s left behind: %w", operationID, err)
	}
	if tag.RowsAffected() > 0 {
		return nil
	}
	return s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		o, held, err := lockOperation(ctx, tx, operationID)
		if err != nil {
			return err
		}
		// A parked operation can be aborted while a mending verb has the fence.
		if !o.Parked && !(held && o.State.Live()) {
			return superseded(operationID, "another operation took its place, or it was ended")
		}
		return s.abort(ctx, tx, o, cause, leftBehind)
	})
}

// stopRunning marks the step under way as ended by a cause and returns its
// name, "" when none is.
func stopRunning(ctx context.Context, tx pgx.Tx, o *fencedOp, cause string) (string, error) {
	i := slices.IndexFunc(o.Steps, func(st fleet.Step) bool { return st.State == fleet.StepRunning })
	if i < 0 {
		return "", nil
	}
	now := fleet.At(o.Now)
	o.Steps[i].State, o.Steps[i].EndedAt, o.Steps[i].Detail = fleet.StepFailed, &now, cause
	return o.Steps[i].Name, saveSteps(ctx, tx, o.ID, o.Steps)
}

func (s *Store) abort(ctx context.Context, tx pgx.Tx, o fencedOp, cause string, leftBehind []string) error {
	step, err := stopRunning(ctx, tx, &o, cause)
	if err != nil {
		return err
	}
	remedy := "call the verb again when the node is to go on"
	if len(leftBehind) > 0 {
		remedy = "what was left behind is cleaned first by the next operation; call the verb again"
	}
	if err := closeOperation(ctx, tx, o, fleet.OpAborted, &fleet.OperationError{Code: "aborted", Step: step, Cause: cause, Remedy: remedy}, leftBehind); err != nil {
		return err
	}
	if err := giveBack(ctx, tx, &o); err != nil {
		return err
	}
	if err := o.event(ctx, tx, "node.operation.aborted", o.Version, true, map[string]any{"cause": cause}); err != nil {
		return err
	}
	from, moves := fleet.FailsFrom[o.Verb]
	if !moves || o.Parked || o.NodeState == fleet.Failed {
		return nil
	}
	return s.failNode(ctx, tx, o, fleet.Failure{From: from, Step: step, Cause: cause, Remedy: remedy, At: fleet.At(o.Now)})
}
