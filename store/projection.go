package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// projectionDiff lists what the authorization projection holds too much or too
// little of, against what it is made from: a node's own tenant sees it; a
// pool's owner and the tenants it is offered to see its nodes.
const projectionDiff = `
WITH node_want AS (SELECT tenant_id, id AS node_id FROM nodes WHERE deleted_at IS NULL),
     pool_want AS (SELECT tenant_id, id AS pool_id FROM pools UNION SELECT tenant_id, pool_id FROM pool_offers)
SELECT 'missing node ' || node_id || ' for ' || tenant_id FROM (SELECT tenant_id, node_id FROM node_want EXCEPT SELECT tenant_id, node_id FROM node_visibility) a
UNION ALL
SELECT 'surplus node ' || node_id || ' for ' || tenant_id FROM (SELECT tenant_id, node_id FROM node_visibility EXCEPT SELECT tenant_id, node_id FROM node_want) b
UNION ALL
SELECT 'missing pool ' || pool_id || ' for ' || tenant_id FROM (SELECT tenant_id, pool_id FROM pool_want EXCEPT SELECT tenant_id, pool_id FROM pool_visibility) c
UNION ALL
SELECT 'surplus pool ' || pool_id || ' for ' || tenant_id FROM (SELECT tenant_id, pool_id FROM pool_visibility EXCEPT SELECT tenant_id, pool_id FROM pool_want) d
ORDER BY 1`

// CheckProjection lists the differences of the projection from its causes,
// none when it is right.
func CheckProjection(ctx context.Context, q Reader) ([]string, error) {
	rows, err := q.Query(ctx, projectionDiff)
	if err != nil {
		return nil, fmt.Errorf("compare the projection: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("compare the projection: %w", err)
	}
	return list, nil
}

// RebuildProjection makes the projection anew in one transaction and says what
// was wrong.
func (s *Store) RebuildProjection(ctx context.Context) (wrong []string, err error) {
	err = s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		// Verbs that change the causes write the projection too: they wait.
		if _, err := tx.Exec(ctx, `LOCK TABLE node_visibility, pool_visibility IN SHARE ROW EXCLUSIVE MODE`); err != nil {
			return fmt.Errorf("lock the projection: %w", err)
		}
		if wrong, err = CheckProjection(ctx, tx); err != nil {
			return err
		}
		batch := &pgx.Batch{}
		batch.Queue(`DELETE FROM node_visibility v WHERE NOT EXISTS (SELECT FROM nodes n WHERE n.id = v.node_id AND n.tenant_id = v.tenant_id AND n.deleted_at IS NULL)`)
		batch.Queue(`INSERT INTO node_visibility (tenant_id, node_id) SELECT tenant_id, id FROM nodes WHERE deleted_at IS NULL ON CONFLICT DO NOTHING`)
		batch.Queue(`DELETE FROM pool_visibility v WHERE NOT EXISTS (SELECT FROM pools p WHERE p.id = v.pool_id AND p.tenant_id = v.tenant_id)
			AND NOT EXISTS (SELECT FROM pool_offers o WHERE o.pool_id = v.pool_id AND o.tenant_id = v.tenant_id)`)
		batch.Queue(`INSERT INTO pool_visibility (tenant_id, pool_id) SELECT tenant_id, id FROM pools UNION SELECT tenant_id, pool_id FROM pool_offers ON CONFLICT DO NOTHING`)
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return fmt.Errorf("rebuild the projection: %w", err)
		}
		return nil
	})
	return wrong, err
}
