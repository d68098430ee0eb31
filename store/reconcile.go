package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// WantReconcile asks for a node's reconciler: one row a node, however often it
// is asked for.
func WantReconcile(ctx context.Context, tx pgx.Tx, nodeID string) error {
	_, err := tx.Exec(ctx, `INSERT INTO reconcile_wanted (node_id) VALUES ($1) ON CONFLICT (node_id) DO UPDATE SET wanted_at = now()`, nodeID)
	if err != nil {
		return fmt.Errorf("ask for the reconciler of node %s: %w", nodeID, err)
	}
	return nil
}

// BootMAC is the NIC that a node boots from, nil when none is recorded.
func BootMAC(ctx context.Context, q Reader, nodeID string) (*string, error) {
	var mac *string
	if err := q.QueryRow(ctx, `SELECT boot_mac FROM nodes WHERE id = $1`, nodeID).Scan(&mac); err != nil {
		return nil, noRows(err, "node", "read the boot NIC of node "+nodeID)
	}
	return mac, nil
}
