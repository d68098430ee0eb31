package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// upkeepBatch bounds how many nodes one round of upkeep touches, each in a
// transaction of its own.
const upkeepBatch = 200

// EndHolds lifts holds whose time is over and wakes what waited for them.
func (s *Store) EndHolds(ctx context.Context) (int, error) {
	ids, err := s.nodeIDs(ctx, "list holds that are over", `SELECT id FROM nodes WHERE hold IS NOT NULL AND deleted_at IS NULL
		AND (hold->>'until')::timestamptz <= now() ORDER BY id LIMIT $1`, upkeepBatch)
	if err != nil {
		return 0, err
	}
	for _, id := range ids {
		err := s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			if _, _, err := lockNode(ctx, tx, id); err != nil {
				return err
			}
			var hold *fleet.Hold
			if err := tx.QueryRow(ctx, `SELECT hold FROM nodes WHERE id = $1`, id).Scan(&hold); err != nil {
				return fmt.Errorf("read the hold of node %s: %w", id, err)
			}
			if hold == nil || hold.Active(time.Now()) {
				return nil
			}
			if _, err := HoldNode(ctx, tx, id, nil); err != nil {
				return err
			}
			if err := nodeEvent(ctx, tx, id, "system", "node.hold.ended", map[string]any{"reason": hold.Reason}); err != nil {
				return err
			}
			return wakeNode(ctx, tx, id)
		})
		if err != nil && fleet.CodeOf(err) != fleet.CodeNotFound {
			return 0, err
		}
	}
	s.Notify()
	return len(ids), nil
}

// wakeNode tells the operations of a node that wait to look again.
func wakeNode(ctx context.Context, tx pgx.Tx, nodeID string) error {
	waiters, err := NodeWaiters(ctx, tx, nodeID)
	if err != nil {
		return err
	}
	for _, id := range waiters {
		if err := AddDispatch(ctx, tx, DispatchIn{Kind: DispatchSignal, OperationID: id, Signal: fleet.SignalWake}); err != nil {
			return err
		}
	}
	return nil
}

// Reconcile takes the nodes whose reconciler was queued, brings their NodeSpecs up
// to date, wakes what waits on them, and places what waits for their pools.
func (s *Store) Reconcile(ctx context.Context) (int, error) {
	ids, err := s.nodeIDs(ctx, "list nodes to reconcile", `SELECT node_id FROM reconcile_wanted ORDER BY wanted_at LIMIT $1`, upkeepBatch)
	if err != nil {
		return 0, err
	}
	for _, id := range ids {
		err := s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			_, _, err := lockNode(ctx, tx, id)
			if err != nil && fleet.CodeOf(err) != fleet.CodeNotFound {
				return err
			}
			if err == nil {
				if err := syncSpec(ctx, tx, id); err != nil {
					return err
				}
				if err := judgeMissing(ctx, tx, id); err != nil {
					return err
				}
			}
			// Under the node's lock: whoever queues it again does so after.
			if _, err := tx.Exec(ctx, `DELETE FROM reconcile_wanted WHERE node_id = $1`, id); err != nil {
				return fmt.Errorf("take node %s off the reconciler's queue: %w", id, err)
			}
			return wakeNode(ctx, tx, id)
		})
		if err != nil {
			return 0, err
		}
	}
	if len(ids) > 0 {
		s.Notify()
	}
	pools, err := s.nodeIDs(ctx, "list pools to place in", `SELECT DISTINCT n.pool_id FROM nodes n WHERE n.id = ANY ($1)
		AND EXISTS (SELECT FROM allocations a WHERE a.pool_id = n.pool_id AND a.state = 'queued') ORDER BY n.pool_id`, ids)
	if err != nil {
		return len(ids), err
	}
	for _, pool := range pools {
		if _, err := s.PlaceQueued(ctx, pool); err != nil {
			return len(ids), err
		}
	}
	return len(ids), nil
}

func (s *Store) nodeIDs(ctx context.Context, doing, sql string, args ...any) ([]string, error) {
	rows, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return ids, wrapDoing(err, doing)
}
