package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// stateUnverified is the condition of a node about which Postgres and Temporal,
// or the machine, disagree after a restore.
const stateUnverified = "StateUnverified"

// UnknownWorkflow is a workflow that Temporal knows and Postgres does not.
type UnknownWorkflow struct {
	WorkflowID, Type, NodeID string
	Open                     bool
}

// OperationsKnown says of each of these operations that is in the database
// whether it is live; others are not in the map.
func (s *Store) OperationsKnown(ctx context.Context, ids []string) (map[string]bool, error) {
	rows, err := s.pool.Query(ctx, `SELECT id, state IN ('pending', 'running', 'waiting') FROM operations WHERE id = ANY($1)`, ids)
	if err != nil {
		return nil, fmt.Errorf("look operations up: %w", err)
	}
	known := map[string]bool{}
	var id string
	var live bool
	_, err = pgx.ForEachRow(rows, []any{&id, &live}, func() error { known[id] = live; return nil })
	return known, wrapDoing(err, "look operations up")
}

// Alarm is what RaiseAlarm found about an unknown workflow.
type Alarm int

// AlarmRaised is a workflow that was not known of before, AlarmKnown one that
// waits for a judgement, AlarmJudged one that had it: what compute recover
// judged is no disagreement any more, for as long as Temporal keeps it.
const (
	AlarmRaised Alarm = iota
	AlarmKnown
	AlarmJudged
)

// RaiseAlarm records a workflow that Postgres does not know, makes recovery
// pending and takes its node out of placement, unless it was recorded before.
func (s *Store) RaiseAlarm(ctx context.Context, w UnknownWorkflow) (Alarm, error) {
	var judged bool
	err := s.pool.QueryRow(ctx, `SELECT judged_at IS NOT NULL FROM unknown_workflows WHERE workflow_id = $1`, w.WorkflowID).Scan(&judged)
	switch {
	case err == nil && judged:
		return AlarmJudged, nil
	case err == nil:
		return AlarmKnown, nil
	case !isNoRows(err):
		return AlarmKnown, wrapDoing(err, "look workflow "+w.WorkflowID+" up")
	}
	err = s.SetCondition(ctx, w.NodeID, fleet.Condition{Type: stateUnverified, Status: fleet.ConditionTrue, Reason: RecoveryUnknown,
		Message: "Temporal knows workflow " + w.WorkflowID + ", which the database does not"})
	if err != nil && fleet.CodeOf(err) != fleet.CodeNotFound { // a node that is not in the database has no condition
		return AlarmKnown, err
	}
	// Last, since a workflow that is recorded is not looked at again.
	err = s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO unknown_workflows (workflow_id, workflow_type, node_id, open) VALUES ($1, $2, NULLIF($3, ''), $4)
			ON CONFLICT DO NOTHING`, w.WorkflowID, w.Type, w.NodeID, w.Open)
		if err != nil {
			return fmt.Errorf("record workflow %s: %w", w.WorkflowID, err)
		}
		_, err = tx.Exec(ctx, `UPDATE cluster_epoch SET recovery_pending = true, recovery_reason = $1, changed_at = now()
			WHERE NOT recovery_pending OR recovery_reason = $2`, RecoveryUnknown, RecoveryFailover)
		return wrapDoing(err, "record that recovery is pending")
	})
	return AlarmRaised, err
}

// RaiseLost records that a failover lost what an operation's workflow wrote at
// its end, and takes the node out of placement: this failover does not end by
// itself.
func (s *Store) RaiseLost(ctx context.Context, operationID string) error {
	var nodeID string
	if err := s.pool.QueryRow(ctx, `SELECT node_id FROM operations WHERE id = $1`, operationID).Scan(&nodeID); err != nil {
		return wrapDoing(err, "look operation "+operationID+" up")
	}
	err := s.SetCondition(ctx, nodeID, fleet.Condition{Type: stateUnverified, Status: fleet.ConditionTrue, Reason: RecoveryLost,
		Message: "Temporal ended the workflow of operation " + operationID + ", which the database shows as not ended"})
	if err != nil && fleet.CodeOf(err) != fleet.CodeNotFound {
		return err
	}
	_, err = s.pool.Exec(ctx, `UPDATE cluster_epoch SET recovery_reason = $1, changed_at = now() WHERE recovery_pending AND recovery_reason = $2`,
		RecoveryLost, RecoveryFailover)
	return wrapDoing(err, "record that a failover lost writes")
}

// ObservePower records the power that a sweep read of a machine at rest. While
// recovery is pending a state other than the recorded one is a disagreement: the
// node is unverified and leaves placement until compute recover. While it is not
// known yet whether a failover lost anything, nothing is recorded: the next look
// finds the difference again.
func (s *Store) ObservePower(ctx context.Context, nodeID string, state fleet.PowerState, at time.Time) error {
	return s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		fence, _, err := lockNode(ctx, tx, nodeID)
		if err != nil {
			return err
		}
		e, err := LoadEpoch(ctx, tx)
		if err != nil {
			return err
		}
		if e.RecoveryPending && e.Reason == RecoveryFailover {
			return nil
		}
		var before string
		if err := tx.QueryRow(ctx, `SELECT coalesce(power_state, '') FROM bmcs WHERE node_id = $1`, nodeID).Scan(&before); err != nil {
			return noRows(err, "BMC", "read the power of node "+nodeID)
		}
		// A machine under an operation changes its power for a reason.
		if e.RecoveryPending && fence == "" && settled(before) && settled(string(state)) && before != string(state) {
			c := fleet.Condition{Type: stateUnverified, Status: fleet.ConditionTrue, Reason: reasonPowerDiffers,
				Message: "the BMC says that the machine is " + string(state) + ", the database that it was " + before}
			if err := setCondition(ctx, tx, nodeID, c); err != nil {
				return err
			}
		}
		return recordPower(ctx, tx, nodeID, "system", state, at)
	})
}

// reasonPowerDiffers is why a node is unverified whose machine was read to be in
// another state than the database says.
const reasonPowerDiffers = "power-differs"

// settled says whether a power state is one that a machine stays in.
func settled(power string) bool {
	return power == string(fleet.PowerOn) || power == string(fleet.PowerOff)
}

// releaseHeld gives rows and operations of former epochs to the present one, so
// that they are delivered.
const releaseHeld = `
WITH e AS (SELECT epoch FROM cluster_epoch),
     o AS (UPDATE operations SET epoch = e.epoch FROM e WHERE delivered_at IS NULL AND state = 'pending' AND operations.epoch <> e.epoch)
UPDATE dispatch SET epoch = e.epoch FROM e WHERE dispatch.epoch <> e.epoch`

// EndFailover ends the pending recovery of a failover that lost nothing, if no
// later epoch has begun.
func (s *Store) EndFailover(ctx context.Context, epoch int64) error {
	err := s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE cluster_epoch SET recovery_pending = false, recovery_reason = NULL, changed_at = now()
			WHERE epoch = $1 AND recovery_pending AND recovery_reason = $2`, epoch, RecoveryFailover)
		if err != nil || tag.RowsAffected() == 0 {
			return wrapDoing(err, "end the recovery of a failover")
		}
		_, err = tx.Exec(ctx, releaseHeld)
		return wrapDoing(err, "release rows that were held")
	})
	s.Notify()
	return err
}

// UnverifiedNode is a node about which Postgres and Temporal, or its BMC,
// disagree.
type UnverifiedNode struct {
	NodeID string
	// Why says what was found.
	Why string
}

// Disagreements is what is open between Postgres and Temporal.
type Disagreements struct {
	Epoch   Epoch
	Unknown []UnknownWorkflow
	// Unverified are the nodes that have the condition StateUnverified.
	Unverified []UnverifiedNode
	// Held is how many rows wait for the end of recovery.
	Held int
}

// LoadDisagreements reads what compute recover has to judge.
func (s *Store) LoadDisagreements(ctx context.Context) (Disagreements, error) {
	var d Disagreements
	var err error
	if d.Epoch, err = LoadEpoch(ctx, s.pool); err != nil {
		return d, err
	}
	rows, err := s.pool.Query(ctx, `SELECT workflow_id, workflow_type, coalesce(node_id, ''), open FROM unknown_workflows WHERE judged_at IS NULL ORDER BY workflow_id`)
	if err != nil {
		return d, fmt.Errorf("list unknown workflows: %w", err)
	}
	if d.Unknown, err = pgx.CollectRows(rows, pgx.RowToStructByPos[UnknownWorkflow]); err != nil {
		return d, fmt.Errorf("list unknown workflows: %w", err)
	}
	if rows, err = s.pool.Query(ctx, `SELECT node_id, message FROM conditions WHERE type = $1 AND status = 'True' ORDER BY node_id`, stateUnverified); err != nil {
		return d, fmt.Errorf("list unverified nodes: %w", err)
	}
	if d.Unverified, err = pgx.CollectRows(rows, pgx.RowToStructByPos[UnverifiedNode]); err != nil {
		return d, fmt.Errorf("list unverified nodes: %w", err)
	}
	err = s.pool.QueryRow(ctx, `SELECT count(*) FROM dispatch d, cluster_epoch e WHERE d.epoch <> e.epoch OR e.recovery_pending`).Scan(&d.Held)
	return d, wrapDoing(err, "count held rows")
}

// FailUnverified makes a node failed whose forgotten workflow did a verb that
// moves nodes: what the machine is now is for a person to find out. A deploy
// also leaves an erase owed.
func (s *Store) FailUnverified(ctx context.Context, nodeID string, verb fleet.Verb, actor string) error {
	from, moves := fleet.FailsFrom[verb]
	if !moves {
		return nil
	}
	return s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, _, err := lockNode(ctx, tx, nodeID); err != nil {
			return err
		}
		situation, err := LoadSituation(ctx, tx, nodeID)
		if err != nil || situation.Live != nil || situation.State == fleet.Failed {
			return err
		}
		f := fleet.Failure{From: from, Cause: "the database was restored and had forgotten a " + string(verb) + " of this machine",
			Remedy: "look at the machine, then call a verb that the state admits", At: fleet.At(situation.Now)}
		set := `provision_state = 'failed', failed = $2`
		if verb == fleet.VerbDeploy {
			set += `, erase_owed_since = coalesce(erase_owed_since, now()), whole_image = false`
		}
		if _, err := changeNode(ctx, tx, nodeID, "fail", set, f); err != nil {
			return err
		}
		return nodeEvent(ctx, tx, nodeID, actor, "node.provision.failed", map[string]any{"from": string(f.From), "cause": f.Cause, "remedy": f.Remedy})
	})
}

// Judged records that the disagreements about a node were judged, or with ""
// all that are left; the last one ends the pending recovery. After a restore only
// a judgement of all ends it: what the machines say comes in one by one.
func (s *Store) Judged(ctx context.Context, nodeID string) (done bool, err error) {
	d, err := s.LoadDisagreements(ctx)
	if err != nil {
		return false, err
	}
	for _, n := range d.Unverified {
		if nodeID == "" || n.NodeID == nodeID {
			c := fleet.Condition{Type: stateUnverified, Status: fleet.ConditionFalse, Reason: "judged"}
			if err := s.SetCondition(ctx, n.NodeID, c); err != nil && fleet.CodeOf(err) != fleet.CodeNotFound {
				return false, err
			}
		}
	}
	err = s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		done = false
		if _, err := tx.Exec(ctx, `UPDATE unknown_workflows SET judged_at = now() WHERE judged_at IS NULL AND ($1 = '' OR node_id = $1)`, nodeID); err != nil {
			return fmt.Errorf("record what was judged: %w", err)
		}
		tag, err := tx.Exec(ctx, `UPDATE cluster_epoch SET recovery_pending = false, recovery_reason = NULL, changed_at = now()
			WHERE recovery_pending AND NOT EXISTS (SELECT FROM unknown_workflows WHERE judged_at IS NULL)
			AND ($1 = '' OR recovery_reason IN ($2, $3) AND NOT EXISTS (SELECT FROM conditions WHERE type = $4 AND status = 'True'))`,
			nodeID, RecoveryUnknown, RecoveryLost, stateUnverified)
		if err != nil || tag.RowsAffected() == 0 {
			return wrapDoing(err, "end the recovery")
		}
		done = true
		_, err = tx.Exec(ctx, releaseHeld)
		return wrapDoing(err, "release rows that were held")
	})
	s.Notify()
	return done, err
}
