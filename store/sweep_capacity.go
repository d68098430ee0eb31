package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// ExpireAllocations ends allocations whose time is over, and queued ones that
// waited for as long as they were to. It is late at most, never early: the time
// is compared by the database's clock at the begin of the transaction that ends
// it. It returns how many it ended.
func (s *Store) ExpireAllocations(ctx context.Context) (int, error) {
	ids, err := s.nodeIDs(ctx, "list allocations whose time is over", `(SELECT id FROM allocations WHERE state = 'active' AND expires_at <= now() ORDER BY expires_at LIMIT $1)
		UNION ALL (SELECT id FROM allocations WHERE state = 'queued' AND queue_until <= now() ORDER BY queue_until LIMIT $1)`, upkeepBatch)
	if err != nil {
		return 0, err
	}
	ended := 0
	for _, id := range ids {
		done := false
		err := s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
			done, err = expire(ctx, tx, id)
			return err
		})
		if err != nil {
			return ended, err
		}
		if done {
			ended++
		}
	}
	return ended, nil
}

// expire ends an allocation that is due. One that was queued a moment ago and was
// placed meanwhile has another end: the next round looks at it.
func expire(ctx context.Context, tx pgx.Tx, id string) (bool, error) {
	var nodeID string
	if err := tx.QueryRow(ctx, `SELECT coalesce(node_id, '') FROM allocations WHERE id = $1`, id).Scan(&nodeID); err != nil {
		return false, fmt.Errorf("look up allocation %s: %w", id, err)
	}
	if nodeID != "" {
		if err := ShareNode(ctx, tx, nodeID); err != nil {
			return false, err
		}
	}
	a, err := LockAllocation(ctx, tx, id)
	if err != nil || !a.Due || a.NodeID != nodeID {
		return false, err
	}
	e := Ending{Actor: "system", Because: "its time is over"}
	if a.State == fleet.AllocationQueued {
		e.Because = "it waited for as long as it was to"
	}
	if err := EndAllocation(ctx, tx, a, fleet.AllocationExpired, e); err != nil {
		return false, err
	}
	return true, GiveBack(ctx, tx, a)
}

// EndReservations closes reservations whose time is over, once the allocations
// under them have ended.
func (s *Store) EndReservations(ctx context.Context) (int, error) {
	ids, err := s.nodeIDs(ctx, "list reservations whose time is over",
		`SELECT id FROM reservations WHERE state = 'open' AND ends_at <= now() AND used = 0 ORDER BY ends_at LIMIT $1`, upkeepBatch)
	if err != nil {
		return 0, err
	}
	for _, id := range ids {
		err := s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			r, err := LoadReservation(ctx, tx, id)
			if err != nil {
				return err
			}
			if err := LockPool(ctx, tx, r.PoolID, true); err != nil {
				return err
			}
			if err := LockReservation(ctx, tx, id); err != nil {
				return err
			}
			if r, err = LoadReservation(ctx, tx, id); err != nil || r.State != fleet.ReservationOpen || r.Used > 0 {
				return err
			}
			return EndReservation(ctx, tx, r, fleet.ReservationEnded, Ending{Actor: "system"})
		})
		if err != nil {
			return 0, err
		}
	}
	return len(ids), nil
}

// PlaceAllQueued goes through every queue. It is the guarantee behind the wakes of
// the reconciler, which are sooner.
func (s *Store) PlaceAllQueued(ctx context.Context) (int, error) {
	pools, err := s.QueuedPools(ctx)
	if err != nil {
		return 0, err
	}
	placed := 0
	for _, pool := range pools {
		n, err := s.PlaceQueued(ctx, pool)
		placed += n
		if err != nil {
			return placed, err
		}
	}
	return placed, nil
}

// SweepCapacity makes what time makes of allocations and reservations, and places
// what then has room.
func (s *Store) SweepCapacity(ctx context.Context) error {
	if _, err := s.ExpireAllocations(ctx); err != nil {
		return err
	}
	if _, err := s.EndReservations(ctx); err != nil {
		return err
	}
	_, err := s.PlaceAllQueued(ctx)
	return err
}
