package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// The reasons of the errors that a late or lost activity gets.
const (
	ReasonSuperseded       = "superseded"
	ReasonUnknownOperation = "unknown-operation"
)

func isNoRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

// fencedOp is an operation read under the lock of its node's row.
type fencedOp struct {
	ID, NodeID, TenantID string
	Verb                 fleet.Verb
	Lane                 string
	State                fleet.OperationState
	Parked               bool
	ReturnTo             fleet.ProvisionState
	Chain                []string
	Steps                []fleet.Step
	Journal              map[string]json.RawMessage
	RequestedBy, Reason  string
	HardwareModel        string
	WaitingFor           *fleet.WaitingFor
	LeftBehind           []string

	NodeState  fleet.ProvisionState
	Version    int64
	MaybeInUse bool
	Now        time.Time
}

// lockNode locks a node's row, as the first lock of the transaction that takes
// a transaction id. NOT_FOUND when it is not there.
//
// Who waits for a row that is being changed takes a transaction id before it has
// the row: when the change commits, Postgres locks the row's later versions in
// the waiter's name, and there somebody who came later can be first. The order
// of the ids, which is that of a node's events, would not be the order of the
// changes. So an advisory lock, which takes no id, is waited for first, and the
// row is read by a statement that began after it was held.
func lockNode(ctx context.Context, tx pgx.Tx, nodeID string) (provisionOp, drainOp string, err error) {
	var p, d *string
	batch := &pgx.Batch{}
	batch.Queue(`SELECT pg_advisory_xact_lock(hashtextextended('node/' || $1, 0))`, nodeID)
	batch.Queue(`SELECT provision_op, drain_op FROM nodes WHERE id = $1 AND deleted_at IS NULL FOR UPDATE`, nodeID).
		QueryRow(func(row pgx.Row) error { return row.Scan(&p, &d) })
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return "", "", noRows(err, "node", "lock node "+nodeID)
	}
	return orEmpty(p), orEmpty(d), nil
}

// lockOperation locks the node of an operation and reads both. held says
// whether the node's fence is the operation's.
func lockOperation(ctx context.Context, tx pgx.Tx, operationID string) (o fencedOp, held bool, err error) {
	var nodeID string
	err = tx.QueryRow(ctx, `SELECT node_id FROM operations WHERE id = $1`, operationID).Scan(&nodeID)
	if isNoRows(err) {
		return o, false, fleet.Errorf(fleet.CodeNotFound, ReasonUnknownOperation, "operation %s is not in the database", operationID)
	}
	if err != nil {
		return o, false, fmt.Errorf("look up operation %s: %w", operationID, err)
	}
	provision, drain, err := lockNode(ctx, tx, nodeID)
	if fleet.CodeOf(err) == fleet.CodeNotFound {
		return o, false, superseded(operationID, "its node was deleted")
	}
	if err != nil {
		return o, false, err
	}
	var returnTo, reason, model *string
	err = tx.QueryRow(ctx, `SELECT o.id, o.node_id, o.tenant_id, o.verb, o.lane, o.state, o.parked, o.return_to, o.chain, o.steps, o.journal,
		o.requested_by, o.reason, o.hardware_model, o.waiting_for, o.left_behind, n.provision_state, n.version, n.maybe_in_use, clock_timestamp()
		FROM operations o JOIN nodes n ON n.id = o.node_id WHERE o.id = $1`, operationID).
		Scan(&o.ID, &o.NodeID, &o.TenantID, &o.Verb, &o.Lane, &o.State, &o.Parked, &returnTo, &o.Chain, &o.Steps, &o.Journal,
			&o.RequestedBy, &reason, &model, &o.WaitingFor, &o.LeftBehind, &o.NodeState, &o.Version, &o.MaybeInUse, &o.Now)
	if err != nil {
		return o, false, fmt.Errorf("read operation %s: %w", operationID, err)
	}
	o.ReturnTo, o.Reason, o.HardwareModel = fleet.ProvisionState(orEmpty(returnTo)), orEmpty(reason), orEmpty(model)
	fence := provision
	if o.Lane == LaneDrain {
		fence = drain
	}
	return o, fence == operationID, nil
}

func superseded(operationID, why string) error {
	return fleet.Errorf(fleet.CodeConflict, ReasonSuperseded, "operation %s no longer holds its node: %s", operationID, why)
}

// fenced runs fn in a transaction that holds the node's lock, if the node's
// fence is still the operation's and the operation is live or parked; else it
// writes nothing and returns the superseded error.
func (s *Store) fenced(ctx context.Context, operationID string, fn func(ctx context.Context, tx pgx.Tx, o fencedOp) error) error {
	return s.fencedMachine(ctx, operationID, nil, fn)
}

// fencedMachine is fenced for what is learned of a machine: it waits for others
// who take in the machine of these names, as a join does.
func (s *Store) fencedMachine(ctx context.Context, operationID string, names []string, fn func(ctx context.Context, tx pgx.Tx, o fencedOp) error) error {
	return s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if len(names) > 0 {
			if err := lockMachine(ctx, tx, names); err != nil {
				return err
			}
		}
		o, held, err := lockOperation(ctx, tx, operationID)
		if err != nil {
			return err
		}
		if !held {
			return superseded(operationID, "another operation took its place, or it was ended")
		}
		if !o.State.Live() && !o.Parked {
			return superseded(operationID, "it ended "+string(o.State))
		}
		return fn(ctx, tx, o)
	})
}

// event writes an event of the operation's node with the operation's actor.
func (o fencedOp) event(ctx context.Context, tx pgx.Tx, typ string, version int64, private bool, data map[string]any) error {
	audience, err := Audience(ctx, tx, o.NodeID)
	if err != nil {
		return err
	}
	if data == nil {
		data = map[string]any{}
	}
	data["operationId"], data["verb"] = o.ID, string(o.Verb)
	return AddEvents(ctx, tx, EventIn{Type: typ, NodeID: o.NodeID, TenantID: o.TenantID, Audience: audience, Private: private,
		Actor: o.RequestedBy, Version: version, Data: data})
}
