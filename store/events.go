package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// EventIn is an event to write.
type EventIn struct {
	Type, NodeID, TenantID string
	// Audience are the tenants that saw the node before or after; nil is the
	// own tenant alone.
	Audience []string
	// Private events go to the own tenant only, whatever the audience.
	Private bool
	Actor   string
	Version int64
	Data    map[string]any
}

// AddEvents writes events in their change's transaction, after the lock of the
// aggregate's row, which is what keeps a node's events in order.
func AddEvents(ctx context.Context, tx pgx.Tx, events ...EventIn) error {
	batch := &pgx.Batch{}
	for _, e := range events {
		audience := e.Audience
		if len(audience) == 0 {
			audience = []string{e.TenantID}
		}
		data := e.Data
		if data == nil {
			data = map[string]any{}
		}
		batch.Queue(`INSERT INTO events (tx, type, node_id, tenant_id, audience, private, actor, version, data)
			SELECT base + pg_current_xact_id()::text::bigint, $1, NULLIF($2, ''), $3, $4, $5, $6, NULLIF($7, 0), $8 FROM cluster_epoch`,
			e.Type, e.NodeID, e.TenantID, audience, e.Private, e.Actor, e.Version, data)
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	return nil
}

// Audience returns the tenants that see a node now.
func Audience(ctx context.Context, q Reader, nodeID string) ([]string, error) {
	var tenants []string
	err := q.QueryRow(ctx, `SELECT array(
		SELECT tenant_id FROM node_visibility WHERE node_id = $1
		UNION
		SELECT v.tenant_id FROM nodes n JOIN pool_visibility v ON v.pool_id = n.pool_id WHERE n.id = $1)`, nodeID).Scan(&tenants)
	if err != nil {
		return nil, fmt.Errorf("read who sees node %s: %w", nodeID, err)
	}
	return tenants, nil
}
