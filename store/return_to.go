package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// ReturnTo is the state that an inspect of a node goes back to: the present
// one, enrolling from failed(enrolling), and from failed(inspecting) the one
// that the failed inspect would have gone back to.
func ReturnTo(ctx context.Context, tx pgx.Tx, nodeID string, s fleet.Situation) (fleet.ProvisionState, error) {
	if s.State != fleet.Failed {
		return s.State, nil
	}
	if s.FailedFrom != fleet.Inspecting {
		return fleet.Enrolling, nil
	}
	var to fleet.ProvisionState
	err := tx.QueryRow(ctx, `SELECT return_to FROM operations WHERE node_id = $1 AND verb = 'inspect' AND return_to IS NOT NULL
		ORDER BY created_at DESC, id DESC LIMIT 1`, nodeID).Scan(&to)
	if isNoRows(err) {
		return fleet.Enrolling, nil
	}
	if err != nil {
		return "", fmt.Errorf("read what the last inspect of node %s goes back to: %w", nodeID, err)
	}
	return to, nil
}

// WithErase is a release's or retire's input with the erase decided when it
// was admitted in place of the argument.
func WithErase(input any, method fleet.EraseMethod) (map[string]any, error) {
	b, err := json.Marshal(input)
	if err != nil {
		return nil, fmt.Errorf("store an input: %w", err)
	}
	m := map[string]any{}
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("store an input: %w", err)
	}
	m["erase"] = string(method)
	return m, nil
}
