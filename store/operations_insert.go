package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// The lanes of operations: one live operation each a node.
const (
	LaneProvision = "provision"
	LaneDrain     = "drain"
)

// NewOperation is an operation to begin.
type NewOperation struct {
	ID, NodeID, TenantID string
	Verb                 fleet.Verb
	Lane                 string
	// Input is the verb's input without secrets; it is stored as JSON.
	Input any
	// Secrets are sealed apart and removed when the operation ends.
	Secrets     map[string]string
	ReturnTo    fleet.ProvisionState
	Chain       []fleet.Verb
	RequestedBy string
	Reason      string
}

// operationSecret is what an operation's secret is sealed for.
func operationSecret(operationID, name string) string { return "operation:" + operationID + ":" + name }

// InsertOperation records an operation, sets the node's fence to it and asks
// Temporal for its workflow, under the lock of the node's row. A live operation
// of the lane makes it a CONFLICT by the unique index. Call Notify after the
// commit.
func (s *Store) InsertOperation(ctx context.Context, tx pgx.Tx, o NewOperation) error {
	chain := make([]string, len(o.Chain))
	for i, v := range o.Chain {
		chain[i] = string(v)
	}
	_, err := tx.Exec(ctx, `INSERT INTO operations (id, node_id, tenant_id, verb, lane, state, input, return_to, chain, requested_by, reason, epoch, hardware_model)
		SELECT $1, $2, $3, $4, $5, 'pending', $6, NULLIF($7, ''), $8, $9, NULLIF($10, ''), e.epoch,
		       (SELECT identity->>'model' FROM bmcs WHERE node_id = $2)
		FROM cluster_epoch e`,
		o.ID, o.NodeID, o.TenantID, string(o.Verb), o.Lane, o.Input, string(o.ReturnTo), chain, o.RequestedBy, o.Reason)
	if err != nil {
		return fmt.Errorf("record the %s operation of node %s: %w", o.Verb, o.NodeID, err)
	}
	for name, secret := range o.Secrets {
		sealed, err := s.Seal.Seal([]byte(secret), operationSecret(o.ID, name))
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO operation_secrets (operation_id, name, sealed) VALUES ($1, $2, $3)`, o.ID, name, sealed); err != nil {
			return fmt.Errorf("keep a secret of operation %s: %w", o.ID, err)
		}
	}
	fence := "provision_op"
	if o.Lane == LaneDrain {
		fence = "drain_op"
	}
	if _, err := tx.Exec(ctx, `UPDATE nodes SET `+fence+` = $2 WHERE id = $1`, o.NodeID, o.ID); err != nil {
		return fmt.Errorf("fence node %s: %w", o.NodeID, err)
	}
	return AddDispatch(ctx, tx, DispatchIn{Kind: DispatchStart, OperationID: o.ID, WorkflowType: fleet.WorkflowTypes[o.Verb]})
}

// OperationSecret opens a secret of an operation. It is NOT_FOUND once the
// operation ended.
func (s *Store) OperationSecret(ctx context.Context, operationID, name string) (string, error) {
	var sealed []byte
	err := s.pool.QueryRow(ctx, `SELECT sealed FROM operation_secrets WHERE operation_id = $1 AND name = $2`, operationID, name).Scan(&sealed)
	if err != nil {
		return "", noRows(err, "secret", "read secret "+name+" of operation "+operationID)
	}
	b, err := s.Seal.Open(sealed, operationSecret(operationID, name))
	return string(b), err
}

// EndParked ends a node's parked operation, if there is one, because another
// operation or a delete takes its place: it ends aborted, and its workflow is
// told to close without touching anything.
func EndParked(ctx context.Context, tx pgx.Tx, nodeID, supersededBy string) error {
	var id string
	err := tx.QueryRow(ctx, `SELECT id FROM operations WHERE node_id = $1 AND parked`, nodeID).Scan(&id)
	if isNoRows(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the parked operation of node %s: %w", nodeID, err)
	}
	o, _, err := lockOperation(ctx, tx, id)
	if err != nil {
		return err
	}
	opErr := &fleet.OperationError{Code: ReasonSuperseded, Step: o.failedStep(), Cause: "superseded by " + supersededBy}
	if err := closeOperation(ctx, tx, o, fleet.OpAborted, opErr, o.LeftBehind); err != nil {
		return err
	}
	return AddDispatch(ctx, tx, DispatchIn{Kind: DispatchSignal, OperationID: id, Signal: fleet.SignalEnd})
}

// SupersedeAdopt ends a node's live Adopt, if there is one, because another takes
// its place; its workflow is told to close.
func SupersedeAdopt(ctx context.Context, tx pgx.Tx, nodeID, supersededBy string) error {
	var id string
	err := tx.QueryRow(ctx, `SELECT id FROM operations WHERE node_id = $1 AND verb = 'adopt' AND state IN ('pending', 'running', 'waiting')`, nodeID).Scan(&id)
	if isNoRows(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the live adopt of node %s: %w", nodeID, err)
	}
	o, _, err := lockOperation(ctx, tx, id)
	if err != nil {
		return err
	}
	opErr := &fleet.OperationError{Code: ReasonSuperseded, Cause: "superseded by " + supersededBy}
	if err := closeOperation(ctx, tx, o, fleet.OpAborted, opErr, nil); err != nil {
		return err
	}
	taken, err := takeBack(ctx, tx, id)
	if err != nil || taken {
		return err
	}
	return AddDispatch(ctx, tx, DispatchIn{Kind: DispatchSignal, OperationID: id, Signal: fleet.SignalEnd,
		Payload: map[string]string{"supersededBy": supersededBy}})
}
