package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// The changes of a node below are made under the lock of its row. Each raises
// its version and returns the new one.

func changeNode(ctx context.Context, tx pgx.Tx, nodeID, doing, set string, args ...any) (int64, error) {
	var version int64
	err := tx.QueryRow(ctx, `UPDATE nodes SET `+set+`, version = version + 1, updated_at = now() WHERE id = $1 RETURNING version`,
		append([]any{nodeID}, args...)...).Scan(&version)
	if err != nil {
		return 0, fmt.Errorf("%s node %s: %w", doing, nodeID, err)
	}
	return version, nil
}

// CordonNode keeps new work off a node.
func CordonNode(ctx context.Context, tx pgx.Tx, nodeID string, reason *string) (int64, error) {
	return changeNode(ctx, tx, nodeID, "cordon", `cordoned = true, cordon_reason = $2`, reason)
}

// UncordonNode lifts the cordon, its reason and a drain's reason and fence.
func UncordonNode(ctx context.Context, tx pgx.Tx, nodeID string) (int64, error) {
	return changeNode(ctx, tx, nodeID, "uncordon", `cordoned = false, cordon_reason = NULL, drain_op = NULL,
		no_schedule_reasons = array_remove(no_schedule_reasons, $2)`, fleet.ReasonDraining)
}

// LabelNode replaces a node's labels.
func LabelNode(ctx context.Context, tx pgx.Tx, nodeID string, labels map[string]string) (int64, error) {
	return changeNode(ctx, tx, nodeID, "label", `labels = $2`, labels)
}

// TaintNode replaces the reasons that keep work off a node.
func TaintNode(ctx context.Context, tx pgx.Tx, nodeID string, reasons []string) (int64, error) {
	return changeNode(ctx, tx, nodeID, "taint", `no_schedule_reasons = $2`, reasons)
}

// HoldNode stores a hold, or lifts it with nil.
func HoldNode(ctx context.Context, tx pgx.Tx, nodeID string, h *fleet.Hold) (int64, error) {
	return changeNode(ctx, tx, nodeID, "hold", `hold = $2`, h)
}

// DescribeNode sets name, pool and boot NIC, each as given; nil unsets.
func DescribeNode(ctx context.Context, tx pgx.Tx, nodeID string, name, poolID, bootMAC *string) (int64, error) {
	return changeNode(ctx, tx, nodeID, "update", `name = $2, pool_id = $3, boot_mac = lower($4)`, name, poolID, bootMAC)
}

// MoveNode puts a node into a state that is not failed.
func MoveNode(ctx context.Context, tx pgx.Tx, nodeID string, to fleet.ProvisionState) (int64, error) {
	return changeNode(ctx, tx, nodeID, "move", `provision_state = $2, failed = NULL`, to)
}

// SayFree records that somebody said that the machine runs nothing.
func SayFree(ctx context.Context, tx pgx.Tx, nodeID string) error {
	if _, err := tx.Exec(ctx, `UPDATE nodes SET maybe_in_use = false WHERE id = $1`, nodeID); err != nil {
		return fmt.Errorf("record that node %s is free: %w", nodeID, err)
	}
	return nil
}

// NodeWaiters returns the operations of a node that wait, so that they can be
// told to look again.
func NodeWaiters(ctx context.Context, q Reader, nodeID string) ([]string, error) {
	rows, err := q.Query(ctx, `SELECT id FROM operations WHERE node_id = $1 AND state = 'waiting' ORDER BY id`, nodeID)
	if err != nil {
		return nil, fmt.Errorf("list waiting operations of node %s: %w", nodeID, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list waiting operations of node %s: %w", nodeID, err)
	}
	return ids, nil
}
