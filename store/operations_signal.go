package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// RetryParked makes the transaction of metal/retry on a node whose row the
// caller has locked and that the provision table admitted: the state the
// operation failed from comes back, the operation is pending, holds the fence
// and its workflow is told. Call Notify after the commit.
func RetryParked(ctx context.Context, tx pgx.Tx, nodeID, actor string) (operationID string, version int64, err error) {
	if err := tx.QueryRow(ctx, `SELECT id FROM operations WHERE node_id = $1 AND parked`, nodeID).Scan(&operationID); err != nil {
		return "", 0, noRows(err, "parked operation", "look for the parked operation of node "+nodeID)
	}
	version, err = resume(ctx, tx, operationID, actor)
	if err != nil {
		return "", 0, err
	}
	return operationID, version, AddDispatch(ctx, tx, DispatchIn{Kind: DispatchSignal, OperationID: operationID, Signal: fleet.SignalRetry})
}

// resume takes an operation out of its parking place, under the node's lock.
func resume(ctx context.Context, tx pgx.Tx, operationID, actor string) (int64, error) {
	var verb fleet.Verb
	var nodeID, tenantID string
	err := tx.QueryRow(ctx, `UPDATE operations SET state = 'pending', parked = false, error = NULL, ended_at = NULL WHERE id = $1
		RETURNING verb, node_id, tenant_id`, operationID).Scan(&verb, &nodeID, &tenantID)
	if err != nil {
		return 0, fmt.Errorf("resume operation %s: %w", operationID, err)
	}
	version, err := changeNode(ctx, tx, nodeID, "retry", `provision_state = $2, failed = NULL, provision_op = $3`, fleet.MovesTo[verb], operationID)
	if err != nil {
		return 0, err
	}
	audience, err := Audience(ctx, tx, nodeID)
	if err != nil {
		return 0, err
	}
	return version, AddEvents(ctx, tx, EventIn{Type: "node.provision." + string(fleet.MovesTo[verb]), NodeID: nodeID, TenantID: tenantID,
		Audience: audience, Private: true, Actor: actor, Version: version,
		Data: map[string]any{"operationId": operationID, "verb": string(verb), "retry": true}})
}

// RetryOperation makes, or finds made, the judged transaction of metal/retry.
// It is the first step of a workflow that got a retry signal, from wherever the
// signal came.
func (s *Store) RetryOperation(ctx context.Context, operationID, actor string) (refused string, err error) {
	err = s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		refused = ""
		o, held, err := lockOperation(ctx, tx, operationID)
		if err != nil {
			return err
		}
		if o.Parked {
			situation, err := LoadSituation(ctx, tx, o.NodeID)
			if err != nil {
				return err
			}
			if err := fleet.Admit(situation, fleet.Ask{Verb: fleet.VerbRetry}); err != nil {
				refused = err.Error()
				//lint:ignore nilerr a refusal is an answer
				return nil
			}
			if _, err := resume(ctx, tx, operationID, actor); err != nil {
				return err
			}
		} else if !o.State.Live() || !held {
			refused = "the operation has ended " + string(o.State)
			return nil
		}
		return nil
	})
	return refused, err
}

// RequestAbort makes the transaction of metal/abort on a node whose row the
// caller has locked and that the provision table admitted. A live operation's
// workflow is told; one whose start no dispatcher has claimed yet ends at once,
// and so does a parked one. Call Notify after the commit.
func (s *Store) RequestAbort(ctx context.Context, tx pgx.Tx, nodeID, actor string) (operationID string, err error) {
	err = tx.QueryRow(ctx, `SELECT id FROM operations WHERE node_id = $1 AND lane = 'provision'
		AND (state IN ('pending', 'running', 'waiting') OR parked) ORDER BY parked LIMIT 1`, nodeID).Scan(&operationID)
	if err != nil {
		return "", noRows(err, "operation", "look for the operation of node "+nodeID)
	}
	o, _, err := lockOperation(ctx, tx, operationID)
	if err != nil {
		return "", err
	}
	cause := "aborted by " + actor
	if o.Parked {
		if err := s.abort(ctx, tx, o, cause, o.LeftBehind); err != nil {
			return "", err
		}
		return operationID, AddDispatch(ctx, tx, DispatchIn{Kind: DispatchSignal, OperationID: operationID, Signal: fleet.SignalEnd})
	}
	taken, err := takeBack(ctx, tx, operationID)
	if err != nil {
		return "", err
	}
	if taken {
		return operationID, s.abort(ctx, tx, o, cause, nil)
	}
	if _, err := tx.Exec(ctx, `UPDATE operations SET abort_requested = true WHERE id = $1`, operationID); err != nil {
		return "", fmt.Errorf("mark operation %s for its abort: %w", operationID, err)
	}
	return operationID, AddDispatch(ctx, tx, DispatchIn{Kind: DispatchSignal, OperationID: operationID, Signal: fleet.SignalAbort,
		Payload: map[string]string{"actor": actor}})
}
