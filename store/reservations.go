package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

type reservationRow struct {
	ID, TenantID, PoolID string
	GPUs, Used           int
	From, To             time.Time
	State                fleet.ReservationState
	CreatedAt            time.Time
}

const reservationColumns = `r.id, r.tenant_id, r.pool_id, r.gpus, r.used, r.starts_at, r.ends_at, r.state, r.created_at`

func (r *reservationRow) view() fleet.Reservation {
	return fleet.Reservation{ID: r.ID, TenantID: r.TenantID, PoolID: r.PoolID, GPUs: r.GPUs, Used: r.Used, From: fleet.At(r.From), To: fleet.At(r.To),
		State: r.State, CreatedAt: fleet.At(r.CreatedAt)}
}

// LoadReservation returns a reservation, or NOT_FOUND.
func LoadReservation(ctx context.Context, q Reader, id string) (fleet.Reservation, error) {
	rows, err := q.Query(ctx, `SELECT `+reservationColumns+` FROM reservations r WHERE r.id = $1`, id)
	if err != nil {
		return fleet.Reservation{}, fmt.Errorf("load reservation %s: %w", id, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[reservationRow])
	if err != nil {
		return fleet.Reservation{}, noRows(err, "reservation", "load reservation "+id)
	}
	return r.view(), nil
}

// ReservationOwner returns the owner of a reservation's pool: NOT_FOUND to all but
// the tenant that made the reservation and that owner.
func ReservationOwner(ctx context.Context, q Reader, tenantID, id string) (owner string, err error) {
	err = q.QueryRow(ctx, `SELECT p.tenant_id FROM reservations r JOIN pools p ON p.id = r.pool_id WHERE r.id = $1 AND $2 IN (r.tenant_id, p.tenant_id)`, id, tenantID).Scan(&owner)
	if err != nil {
		return "", noRows(err, "reservation", "look up reservation "+id)
	}
	return owner, nil
}

// ReservationFilter selects reservations of a list; nil members select all.
type ReservationFilter struct {
	TenantID      string
	State, PoolID *string
	After         string
	Limit         int
}

// ListReservations returns up to f.Limit+1 reservations that the tenant made, or
// that are in pools that it owns, in id order.
func ListReservations(ctx context.Context, q Reader, f ReservationFilter) ([]fleet.Reservation, error) {
	var c clauses
	tenant, limit := c.arg(f.TenantID), c.arg(f.Limit+1)
	c.add("r.id > %s", f.After)
	if f.State != nil {
		c.add("r.state = %s", *f.State)
	}
	if f.PoolID != nil {
		c.add("r.pool_id = %s", *f.PoolID)
	}
	rows, err := q.Query(ctx, `WITH page AS (
		(SELECT r.id FROM reservations r WHERE r.tenant_id = `+tenant+` AND `+c.where()+` ORDER BY r.id LIMIT `+limit+`)
		UNION
		(SELECT x.id FROM pools o CROSS JOIN LATERAL (SELECT r.id FROM reservations r
			WHERE r.pool_id = o.id AND `+c.where()+` ORDER BY r.id LIMIT `+limit+`) x
			WHERE o.tenant_id = `+tenant+` ORDER BY x.id LIMIT `+limit+`)
		ORDER BY id LIMIT `+limit+`)
	SELECT `+reservationColumns+` FROM reservations r JOIN page ON page.id = r.id ORDER BY r.id`, c.args...)
	if err != nil {
		return nil, fmt.Errorf("list reservations of tenant %s: %w", f.TenantID, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[reservationRow])
	if err != nil {
		return nil, fmt.Errorf("list reservations of tenant %s: %w", f.TenantID, err)
	}
	out := make([]fleet.Reservation, len(list))
	for i, r := range list {
		out[i] = r.view()
	}
	return out, nil
}

// NewReservation is a reservation as reservations/create makes it. Owner is the
// pool's, Quota the tenant's in it, nil for the owner itself.
type NewReservation struct {
	ID, TenantID, PoolID, Owner, CreatedBy string
	GPUs                                   int
	From, To                               time.Time
	Quota                                  *int
}

// InsertReservation sets GPUs aside. The caller holds the pool's lock exclusively:
// no allocation is under way, so what is held now is all there is. A quota that it
// would pass is INVALID_STATE, a pool that cannot hold it UNAVAILABLE.
func InsertReservation(ctx context.Context, tx pgx.Tx, n NewReservation) error {
	if n.Quota != nil {
		held, err := LoadPeak(ctx, tx, n.PoolID, n.TenantID, n.From, &n.To)
		if err != nil {
			return err
		}
		if held+n.GPUs > *n.Quota {
			return quotaExceeded(n.GPUs, *n.Quota, held)
		}
	}
	held, err := LoadPeak(ctx, tx, n.PoolID, "", n.From, &n.To)
	if err != nil {
		return err
	}
	var total int
	err = tx.QueryRow(ctx, `SELECT count(*) FROM nodes n JOIN devices d ON d.node_id = n.id AND d.present WHERE n.pool_id = $1 AND n.deleted_at IS NULL`, n.PoolID).Scan(&total)
	if err != nil {
		return fmt.Errorf("count the GPUs of pool %s: %w", n.PoolID, err)
	}
	if held+n.GPUs > total {
		e := fleet.Errorf(fleet.CodeUnavailable, ReasonNoCapacity,
			"the pool has %d GPUs, of which up to %d are held or reserved in that time: %d more do not fit. Ask for fewer or another time; allocations without an end count for all time",
			total, held, n.GPUs).With("short", map[string]int{"asked": n.GPUs, "total": total, "held": held})
		e.RetryAfter = time.Minute
		return e
	}
	_, err = tx.Exec(ctx, `INSERT INTO reservations (id, tenant_id, pool_id, gpus, starts_at, ends_at, created_by) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		n.ID, n.TenantID, n.PoolID, n.GPUs, n.From, n.To, n.CreatedBy)
	if err != nil {
		return fmt.Errorf("insert reservation: %w", err)
	}
	return reservationEvent(ctx, tx, n.ID, "pool.reservation.created", Ending{Actor: n.CreatedBy, By: n.TenantID})
}

// EndReservation closes an open reservation in a state, and cancels what is queued
// under it. The caller holds the pool's lock exclusively and made sure that nothing
// under it is live.
func EndReservation(ctx context.Context, tx pgx.Tx, r fleet.Reservation, to fleet.ReservationState, e Ending) error {
	if _, err := tx.Exec(ctx, `UPDATE reservations SET state = $2 WHERE id = $1`, r.ID, string(to)); err != nil {
		return fmt.Errorf("end reservation %s: %w", r.ID, err)
	}
	queued := e
	queued.Because = "its reservation is over"
	if err := CancelQueued(ctx, tx, QueuedOf{PoolID: r.PoolID, ReservationID: r.ID}, queued); err != nil {
		return err
	}
	return reservationEvent(ctx, tx, r.ID, "pool.reservation."+string(to), e)
}

// LockReservation locks a reservation's row, after its pool's lock.
func LockReservation(ctx context.Context, tx pgx.Tx, id string) error {
	var one int
	if err := tx.QueryRow(ctx, `SELECT 1 FROM reservations WHERE id = $1 FOR UPDATE`, id).Scan(&one); err != nil {
		return noRows(err, "reservation", "lock reservation "+id)
	}
	return nil
}

// ReservationAllocations are the ids of the live allocations under a reservation.
func ReservationAllocations(ctx context.Context, q Reader, id string) ([]string, error) {
	rows, err := q.Query(ctx, `SELECT id FROM allocations WHERE reservation_id = $1 AND state = 'active' ORDER BY id`, id)
	if err != nil {
		return nil, fmt.Errorf("list what is allocated under reservation %s: %w", id, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return ids, wrapDoing(err, "list what is allocated under reservation "+id)
}

// reservationEvent writes an event of a reservation: to its tenant and the pool's
// owner.
func reservationEvent(ctx context.Context, tx pgx.Tx, id, typ string, e Ending) error {
	var owner, tenantID, poolID string
	var gpus int
	var from, to time.Time
	err := tx.QueryRow(ctx, `SELECT p.tenant_id, r.tenant_id, r.pool_id, r.gpus, r.starts_at, r.ends_at FROM reservations r JOIN pools p ON p.id = r.pool_id WHERE r.id = $1`, id).
		Scan(&owner, &tenantID, &poolID, &gpus, &from, &to)
	if err != nil {
		return fmt.Errorf("read reservation %s for an event: %w", id, err)
	}
	data := e.data()
	data["reservationId"], data["tenantId"], data["poolId"], data["gpus"], data["from"], data["to"] = id, tenantID, poolID, gpus, fleet.At(from), fleet.At(to)
	audience := []string{owner}
	if tenantID != owner {
		audience = append(audience, tenantID)
		if e.By == owner {
			data["by"] = fleet.ByOwner
		}
	}
	return AddEvents(ctx, tx, EventIn{Type: typ, TenantID: owner, Audience: audience, Actor: e.Actor, Data: data})
}
