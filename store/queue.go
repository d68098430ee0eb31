package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// QueuedPools lists the pools that somebody waits for.
func (s *Store) QueuedPools(ctx context.Context) ([]string, error) {
	return s.nodeIDs(ctx, "list pools with a queue", `SELECT DISTINCT pool_id FROM allocations WHERE state = 'queued' ORDER BY pool_id`)
}

// PlaceQueued places what waits for a pool as far as it has room, in order, each
// in a transaction of its own, and returns how many were placed.
func (s *Store) PlaceQueued(ctx context.Context, poolID string) (placed int, err error) {
	q := &queueRound{poolID: poolID, short: map[string]string{}}
	for {
		var done bool
		err := s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
			done, err = q.placeOne(ctx, tx)
			return err
		})
		switch {
		case errors.Is(err, ErrPlaceAgain):
			if err := q.begunAnew(); err != nil {
				return placed, err
			}
		case err != nil && q.refused(err):
			// Who comes after has its turn.
			if err := s.noteWaits(ctx, q.short); err != nil {
				return placed, err
			}
		case err != nil:
			return placed, err
		case !done:
			return placed, nil
		default:
			placed++
			q.current = nil
		}
	}
}

// queueRound is one going through a pool's queue.
type queueRound struct {
	poolID    string
	exclusive bool
	// current is the placement under way, over its transactions.
	current *Placement
	// short says what is short for an allocation that was looked at.
	short map[string]string
}

// begunAnew counts the attempts of the placement under way.
func (q *queueRound) begunAnew() error {
	if q.current == nil {
		return nil
	}
	q.exclusive = q.exclusive || q.current.exclusive
	return q.current.Again()
}

// refused notes what the placement under way is short of.
func (q *queueRound) refused(err error) bool {
	if q.current == nil {
		return false
	}
	switch {
	case fleet.ReasonOf(err) == ReasonNoCapacity:
		q.short[q.current.ID] = "capacity"
	case fleet.CodeOf(err) == fleet.CodeInvalidState:
		q.short[q.current.ID] = "quota"
	default:
		return false
	}
	q.current = nil
	return true
}

// queued is the first of a tenant's allocations that wait, by reservation.
type queued struct {
	ID, TenantID, Owner, Holder, CreatedBy, ReservationID string
	GPUs                                                  int
	Input                                                 allocationInput
	Pack                                                  bool
	CreatedAt                                             time.Time
	EndsAt                                                *time.Time
}

// queueHeads reads the first of each tenant's, by reservation and tenant: a tenant
// does not overtake itself.
func queueHeads(ctx context.Context, q Reader, poolID string) ([]queued, error) {
	rows, err := q.Query(ctx, `SELECT DISTINCT ON (a.reservation_id, a.tenant_id) a.id, a.tenant_id, p.tenant_id, a.holder, coalesce(a.created_by, ''), coalesce(a.reservation_id, ''),
			a.gpus, a.input, coalesce(p.policy->>'placement', '') = 'pack', a.created_at, r.ends_at
		FROM allocations a JOIN pools p ON p.id = a.pool_id LEFT JOIN reservations r ON r.id = a.reservation_id
		WHERE a.pool_id = $1 AND a.state = 'queued' AND a.queue_until > now() AND (r.id IS NULL OR r.ends_at > now()) ORDER BY a.reservation_id, a.tenant_id, a.created_at, a.id`, poolID)
	if err != nil {
		return nil, fmt.Errorf("read the queue of pool %s: %w", poolID, err)
	}
	heads, err := pgx.CollectRows(rows, pgx.RowToStructByPos[queued])
	if err != nil {
		return nil, fmt.Errorf("read the queue of pool %s: %w", poolID, err)
	}
	slices.SortFunc(heads, func(a, b queued) int { return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID)) })
	return heads, nil
}

// placeOne places the next of the queue that can be placed, and says whether it
// did. Whom the pool has no room for holds up all behind it; whom its own quota
// keeps back holds up its own tenant only.
func (q *queueRound) placeOne(ctx context.Context, tx pgx.Tx) (bool, error) {
	// One process at a time goes through a queue, so that its order is kept.
	var mine bool
	if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended('queue/' || $1, 0))`, q.poolID).Scan(&mine); err != nil {
		return false, fmt.Errorf("take the queue of pool %s: %w", q.poolID, err)
	}
	if !mine {
		return false, nil
	}
	heads, err := queueHeads(ctx, tx, q.poolID)
	if err != nil {
		return false, err
	}
	full := map[string]bool{} // by reservation
	for _, h := range heads {
		if full[h.ReservationID] {
			continue
		}
		if why := q.short[h.ID]; why != "" {
			full[h.ReservationID] = why == "capacity"
			continue
		}
		p := q.placement(h)
		if err := p.LockPool(ctx, tx); err != nil {
			return false, err
		}
		if err := p.Quota(ctx, tx); err != nil {
			return false, err
		}
		if err := p.Take(ctx, tx); err != nil {
			return false, err
		}
		return true, p.Claim(ctx, tx)
	}
	return false, nil
}

// noteWaits stores what queued allocations are short of: apart from placements,
// whose first lock is a node's.
func (s *Store) noteWaits(ctx context.Context, short map[string]string) error {
	for id, why := range short {
		if _, err := s.pool.Exec(ctx, `UPDATE allocations SET waits_for = $2 WHERE id = $1 AND state = 'queued' AND waits_for IS DISTINCT FROM $2`, id, why); err != nil {
			return fmt.Errorf("note what allocation %s waits for: %w", id, err)
		}
	}
	return nil
}

// placement is the placement of a queued allocation, the one under way when it is
// that one's.
func (q *queueRound) placement(h queued) *Placement {
	if q.current != nil && q.current.ID == h.ID {
		return q.current
	}
	q.current = &Placement{ID: h.ID, PoolID: q.poolID, TenantID: h.TenantID, Owner: h.Owner, Holder: h.Holder, CreatedBy: h.CreatedBy, GPUs: h.GPUs,
		ReservationID: h.ReservationID, Selector: h.Input.Selector, Pack: h.Pack, endsAt: h.EndsAt, exclusive: q.exclusive}
	if h.Input.WholeNode {
		q.current.GPUs = 0
	}
	if h.Input.TTLSeconds != nil {
		ttl := time.Duration(*h.Input.TTLSeconds) * time.Second
		q.current.TTL = &ttl
	}
	return q.current
}
