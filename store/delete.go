package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// Deletion is who deletes a node and why.
type Deletion struct {
	NodeID, Actor string
	// Reason is the caller's; nil without one.
	Reason *string
}

// DeleteNode makes a tombstone of a node whose pool and row the caller has
// locked and whose deletion was admitted: all that it held is free when the
// transaction commits, and its event reaches all who saw it. Call Notify after
// the commit.
func DeleteNode(ctx context.Context, tx pgx.Tx, d Deletion) error {
	seen, err := Audience(ctx, tx, d.NodeID)
	if err != nil {
		return err
	}
	if err := endOperations(ctx, tx, d); err != nil {
		return err
	}
	revoked := "node deleted"
	if d.Reason != nil && *d.Reason != "" {
		revoked += ": " + *d.Reason
	}
	if _, _, err := RevokeNodeIdentity(ctx, tx, d.NodeID, revoked); err != nil {
		return err
	}
	if err := freeNode(ctx, tx, d.NodeID); err != nil {
		return err
	}
	version, err := changeNode(ctx, tx, d.NodeID, "delete", `deleted_at = now(), seen_by = $2, left_pool = pool_id, pool_id = NULL, boot_mac = NULL,
		hold = NULL, provision_op = NULL, drain_op = NULL`, seen)
	if err != nil {
		return err
	}
	var tenantID string
	if err := tx.QueryRow(ctx, `SELECT tenant_id FROM nodes WHERE id = $1`, d.NodeID).Scan(&tenantID); err != nil {
		return fmt.Errorf("read the tenant of node %s: %w", d.NodeID, err)
	}
	data := map[string]any{}
	if d.Reason != nil && *d.Reason != "" {
		data["reason"] = *d.Reason
	}
	return AddEvents(ctx, tx, EventIn{Type: "node.deleted", NodeID: d.NodeID, TenantID: tenantID, Audience: seen, Actor: d.Actor, Version: version, Data: data})
}

// freeNode frees what a node holds, so that its machine can join or be enrolled
// again as another. Past allocations keep their devices, which nothing books any
// more; certificates, operations, erase records, events and audit stay.
func freeNode(ctx context.Context, tx pgx.Tx, nodeID string) error {
	batch := &pgx.Batch{}
	batch.Queue(`DELETE FROM devices d WHERE d.node_id = $1 AND NOT EXISTS (SELECT FROM allocation_devices a WHERE a.device_id = d.id)`, nodeID)
	batch.Queue(`UPDATE devices SET present = false WHERE node_id = $1`, nodeID)
	batch.Queue(`DELETE FROM inventories WHERE node_id = $1`, nodeID)
	batch.Queue(`DELETE FROM node_keys WHERE node_id = $1`, nodeID)
	batch.Queue(`DELETE FROM machine_claims WHERE node_id = $1`, nodeID)
	batch.Queue(`DELETE FROM joined_hardware WHERE node_id = $1`, nodeID)
	batch.Queue(`DELETE FROM deploy_tokens WHERE node_id = $1`, nodeID)
	batch.Queue(`DELETE FROM ambiguous_identities WHERE node_id = $1`, nodeID)
	batch.Queue(`DELETE FROM node_specs WHERE node_id = $1`, nodeID)
	batch.Queue(`DELETE FROM sessions WHERE node_id = $1`, nodeID)
	batch.Queue(`DELETE FROM conditions WHERE node_id = $1`, nodeID)
	batch.Queue(`UPDATE commands SET state = 'cancelled', secrets = NULL, ended_at = now() WHERE node_id = $1 AND state IN ('pending', 'delivered')`, nodeID)
	batch.Queue(leaveSession, nodeID, "")
	batch.Queue(`DELETE FROM bmc_leases WHERE node_id = $1`, nodeID)
	batch.Queue(`DELETE FROM bmcs WHERE node_id = $1`, nodeID)
	batch.Queue(`DELETE FROM reconcile_wanted WHERE node_id = $1`, nodeID)
	batch.Queue(`DELETE FROM node_visibility WHERE node_id = $1`, nodeID)
	return wrapDoing(tx.SendBatch(ctx, batch).Close(), "free what node "+nodeID+" held")
}

// endOperations ends what is live or parked of a node, in both lanes, and what
// its operations would still have been told.
func endOperations(ctx context.Context, tx pgx.Tx, d Deletion) error {
	_, err := tx.Exec(ctx, `DELETE FROM dispatch WHERE kind = 'signal' AND operation_id IN (SELECT id FROM operations WHERE node_id = $1)`, d.NodeID)
	if err != nil {
		return fmt.Errorf("take back what the operations of node %s were to be told: %w", d.NodeID, err)
	}
	rows, err := tx.Query(ctx, `SELECT id FROM operations WHERE node_id = $1 AND (state IN ('pending', 'running', 'waiting') OR parked) ORDER BY id`, d.NodeID)
	if err != nil {
		return fmt.Errorf("list the open operations of node %s: %w", d.NodeID, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("list the open operations of node %s: %w", d.NodeID, err)
	}
	for _, id := range ids {
		o, _, err := lockOperation(ctx, tx, id)
		if err != nil {
			return err
		}
		if err := endQuietly(ctx, tx, o, "the node was deleted by "+d.Actor, "nothing: the machine can join or be enrolled again as a new node"); err != nil {
			return err
		}
	}
	return nil
}

// Tombstone is what is left of a deleted node for deciding a repeated delete.
type Tombstone struct {
	TenantID string
	// PoolID is the pool that it left, "" without one.
	PoolID string
}

// LoadTombstone returns the tombstone of a deleted node that a tenant saw, nil
// when there is none.
func LoadTombstone(ctx context.Context, q Reader, tenantID, nodeID string) (*Tombstone, error) {
	var t Tombstone
	err := q.QueryRow(ctx, `SELECT tenant_id, coalesce(left_pool, '') FROM nodes WHERE id = $2 AND deleted_at IS NOT NULL AND $1 = ANY (seen_by)`, tenantID, nodeID).
		Scan(&t.TenantID, &t.PoolID)
	if isNoRows(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the tombstone of node %s: %w", nodeID, err)
	}
	return &t, nil
}

// ReasonPoolChanged is the reason of the conflict with a move to another pool.
const ReasonPoolChanged = "pool-changed"

// PoolChanged is the conflict of a change that locked the pool which the node
// was in when it began.
func PoolChanged(nodeID string) error {
	return fleet.Errorf(fleet.CodeConflict, ReasonPoolChanged, "node %s changed pools during the call; read it again and repeat the call", nodeID)
}
