package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// ErrPlaceAgain ends a transaction that lost what it was about to take, a node
// or the kind of lock it needed: it is rolled back and begun anew, knowing more.
var ErrPlaceAgain = errors.New("placement begins anew")

// placeAttempts bounds how often a placement begins anew. Each time somebody
// else got what it wanted, so the bound is of patience and not of progress.
const placeAttempts = 100

// Placement is one allocation that is to be placed. It lives over the
// transactions that it takes: what one learned, the next avoids.
type Placement struct {
	ID, PoolID, TenantID, Owner, Holder, CreatedBy string
	// GPUs is how many, 0 for a whole node.
	GPUs          int
	ReservationID string
	Selector      map[string]string
	// TTL is how long it holds from when it is placed, nil for no end.
	TTL *time.Duration
	// Pack prefers the fullest node that fits, else the emptiest.
	Pack bool

	// exclusive is how the pool's lock is taken.
	exclusive bool
	now       time.Time
	endsAt    *time.Time // of the reservation
	// tried are nodes that were lost under their lock; patient waits for locks
	// that the first look passes by.
	tried    []string
	patient  bool
	attempts int
	// passed says that a node that might do was locked by somebody.
	passed bool
	// gpus is how many were booked.
	gpus int
}

// until is when the allocation ends if it is placed now, nil for never.
func (p *Placement) until() *time.Time {
	end := p.endsAt
	if p.TTL != nil {
		if t := p.now.Add(*p.TTL); end == nil || t.Before(*end) {
			end = &t
		}
	}
	return end
}

// Again says whether to begin anew, or that it was tried for long enough.
func (p *Placement) Again() error {
	p.attempts++
	if p.attempts < placeAttempts {
		return nil
	}
	e := fleet.Errorf(fleet.CodeUnavailable, "busy", "others were faster at each of %d nodes; try again", placeAttempts)
	e.RetryAfter = time.Second
	return e
}

// LockPool takes the pool's lock as the placement needs it: shared, and
// exclusively when a reservation begins before its time is over. It looks before
// it locks and again after, and begins anew when what it took is too weak: a
// lock is never raised.
func (p *Placement) LockPool(ctx context.Context, tx pgx.Tx) error {
	needed, err := p.needsExclusive(ctx, tx)
	if err != nil {
		return err
	}
	p.exclusive = p.exclusive || needed
	if err := LockPool(ctx, tx, p.PoolID, p.exclusive); err != nil {
		return err
	}
	if p.exclusive {
		return nil
	}
	if needed, err = p.needsExclusive(ctx, tx); err != nil {
		return err
	}
	if needed {
		p.exclusive = true
		return ErrPlaceAgain
	}
	return nil
}

func (p *Placement) needsExclusive(ctx context.Context, q Reader) (bool, error) {
	var needed bool
	err := q.QueryRow(ctx, `SELECT now(), EXISTS (SELECT FROM reservations r WHERE r.pool_id = $1 AND r.state = 'open' AND r.ends_at > now()
		AND ($2::interval IS NULL OR r.starts_at < now() + $2))`, p.PoolID, p.TTL).Scan(&p.now, &needed)
	if err != nil {
		return false, fmt.Errorf("look for reservations of pool %s: %w", p.PoolID, err)
	}
	return needed, nil
}

// Take places the allocation: it books devices of one node and writes the row
// and its event, or says with no-capacity what is short. What it uses of a quota
// is claimed by Claim, last. The caller holds the pool's lock by LockPool.
func (p *Placement) Take(ctx context.Context, tx pgx.Tx) error {
	room := p.room(ctx, tx)
	if room.err != nil {
		return room.err
	}
	candidates, err := p.candidates(ctx, tx, room.gpus)
	if err != nil {
		return err
	}
	for _, node := range candidates {
		got, err := p.lockNode(ctx, tx, node)
		if err != nil {
			return err
		}
		if !got {
			p.passed = true
			continue
		}
		return p.book(ctx, tx, node)
	}
	if len(p.tried) > 0 || p.passed {
		// Nothing is left, but something was passed by: look once more at all, and
		// wait for who holds what might do.
		p.tried, p.passed, p.patient = nil, false, true
		return ErrPlaceAgain
	}
	return p.short(ctx, tx, room)
}

// Quota makes the refusal of what the tenant's quota, or its reservation, cannot
// hold now. The claim says the same with certainty at the end.
func (p *Placement) Quota(ctx context.Context, q Reader) error {
	return p.quotaAllows(ctx, q, max(1, p.GPUs))
}

// Claim takes what was placed off the tenant's quota or reservation.
func (p *Placement) Claim(ctx context.Context, tx pgx.Tx) error { return p.claim(ctx, tx, p.gpus) }

// room is how many GPUs of the pool a placement may take at most: those free,
// less what is set aside and not yet used of reservations that begin before its
// time is over. Without one it is not bounded here.
type room struct {
	gpus, free, setAside int
	bounded              bool
	err                  error
}

func (p *Placement) room(ctx context.Context, q Reader) room {
	r := room{gpus: 1 << 30}
	if !p.exclusive || p.ReservationID != "" {
		return r
	}
	r.bounded = true
	err := q.QueryRow(ctx, `SELECT
		(SELECT count(*) FROM nodes n JOIN sessions s ON s.node_id = n.id JOIN devices d ON d.node_id = n.id AND d.present AND d.allocation_id IS NULL
			WHERE n.pool_id = $1 AND `+placeable+`),
		(SELECT coalesce(sum(r.gpus - r.used), 0) FROM reservations r WHERE r.pool_id = $1 AND r.state = 'open' AND r.ends_at > now()
			AND ($2::interval IS NULL OR r.starts_at < now() + $2))`, p.PoolID, p.TTL).Scan(&r.free, &r.setAside)
	r.err = wrapDoing(err, "read what is free of pool "+p.PoolID)
	r.gpus = max(0, r.free-r.setAside)
	return r
}

// candidates are nodes that look as if they would do, best first by the pool's
// policy. Equals are in no order, so that many who place at once do not all go
// for one.
func (p *Placement) candidates(ctx context.Context, q Reader, room int) ([]string, error) {
	if p.GPUs > room {
		return nil, nil
	}
	rows, err := q.Query(ctx, `SELECT n.id FROM nodes n JOIN sessions s ON s.node_id = n.id
		JOIN LATERAL (SELECT count(*) FILTER (WHERE d.allocation_id IS NULL) AS free, count(*) AS total FROM devices d WHERE d.node_id = n.id AND d.present) f
			ON f.free > 0 AND CASE WHEN $3 = 0 THEN f.free = f.total AND f.total <= $4 ELSE f.free >= $3 END
		WHERE n.pool_id = $1 AND `+placeable+` AND n.labels @> $2 AND n.id <> ALL ($5)
		ORDER BY CASE WHEN $6 THEN f.free ELSE -f.free END, random() LIMIT 8`,
		p.PoolID, p.selector(), p.GPUs, room, p.excluded(), p.Pack)
	if err != nil {
		return nil, fmt.Errorf("look for a node of pool %s: %w", p.PoolID, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return ids, wrapDoing(err, "look for a node of pool "+p.PoolID)
}

func (p *Placement) selector() map[string]string {
	if p.Selector == nil {
		return map[string]string{}
	}
	return p.Selector
}

func (p *Placement) excluded() []string {
	if p.tried == nil {
		return []string{}
	}
	return p.tried
}

// lockNode locks a candidate against verbs. A node that a verb holds, or waits
// for, is passed by, unless the placement is patient.
func (p *Placement) lockNode(ctx context.Context, tx pgx.Tx, nodeID string) (bool, error) {
	if p.patient {
		err := ShareNode(ctx, tx, nodeID)
		if fleet.CodeOf(err) == fleet.CodeNotFound {
			return false, nil
		}
		return err == nil, err
	}
	var one int
	err := tx.QueryRow(ctx, `SELECT 1 FROM nodes n WHERE n.id = $1 AND n.deleted_at IS NULL
		AND pg_try_advisory_xact_lock_shared(hashtextextended('node/' || n.id, 0)) FOR SHARE SKIP LOCKED`, nodeID).Scan(&one)
	if isNoRows(err) {
		return false, nil
	}
	return err == nil, wrapDoing(err, "lock node "+nodeID+" for a placement")
}

// pickFrom and pickTo take free devices of a node that is fit, as it is under the node's lock.
const pickFrom = `WITH fit AS (SELECT n.id FROM nodes n JOIN sessions s ON s.node_id = n.id
		WHERE n.id = $1 AND n.pool_id = $2 AND ` + placeable + ` AND n.labels @> $3),
	picked AS (SELECT d.id FROM devices d JOIN fit ON d.node_id = fit.id WHERE d.present AND d.allocation_id IS NULL ORDER BY d.id LIMIT NULLIF($4, 0) FOR UPDATE OF d`

const pickTo = `)
	UPDATE devices d SET allocation_id = $5 FROM picked WHERE d.id = picked.id RETURNING d.id`

// book takes devices of a locked node. Fewer than wanted, or a node that is no
// longer fit: the transaction ends, and the next tries another node, since one
// transaction locks one node.
func (p *Placement) book(ctx context.Context, tx pgx.Tx, nodeID string) error {
	if err := p.write(ctx, tx, nodeID); err != nil {
		return err
	}
	take := pickFrom + ` SKIP LOCKED` + pickTo
	if p.patient {
		take = pickFrom + pickTo
	}
	rows, err := tx.Query(ctx, take, nodeID, p.PoolID, p.selector(), p.GPUs, p.ID)
	if err != nil {
		return fmt.Errorf("book devices of node %s: %w", nodeID, err)
	}
	devices, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("book devices of node %s: %w", nodeID, err)
	}
	wanted := p.GPUs
	if wanted == 0 {
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM devices WHERE node_id = $1 AND present`, nodeID).Scan(&wanted); err != nil {
			return fmt.Errorf("count the devices of node %s: %w", nodeID, err)
		}
	}
	if len(devices) == 0 || len(devices) < wanted {
		p.tried = append(p.tried, nodeID)
		return ErrPlaceAgain
	}
	p.gpus = len(devices)
	if p.GPUs == 0 {
		if err := p.quotaAllows(ctx, tx, p.gpus); err != nil {
			return err
		}
	}
	batch := &pgx.Batch{}
	batch.Queue(`INSERT INTO allocation_devices (allocation_id, device_id) SELECT $1, unnest($2::text[])`, p.ID, devices)
	batch.Queue(`UPDATE allocations SET gpus = $2 WHERE id = $1 AND gpus <> $2`, p.ID, p.gpus)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("book devices of node %s: %w", nodeID, err)
	}
	return allocationEvent(ctx, tx, p.ID, "allocation.started", p.CreatedBy, p.TenantID, nil)
}

// write makes the allocation's row, or makes a queued one's active. A queued one
// that was ended meanwhile is left alone.
func (p *Placement) write(ctx context.Context, tx pgx.Tx, nodeID string) error {
	tag, err := tx.Exec(ctx, `INSERT INTO allocations AS a (id, tenant_id, pool_id, node_id, holder, gpus, reservation_id, state, input, created_by, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, NULLIF($7, ''), 'active', $8, $9, least($10::timestamptz, now() + $11::interval))
		ON CONFLICT (id) DO UPDATE SET state = 'active', node_id = EXCLUDED.node_id, expires_at = EXCLUDED.expires_at, waits_for = NULL WHERE a.state = 'queued'`,
		p.ID, p.TenantID, p.PoolID, nodeID, p.Holder, p.GPUs, p.ReservationID, p.input(), p.CreatedBy, p.endsAt, p.TTL)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrPlaceAgain // it was cancelled or placed meanwhile
	}
	return wrapDoing(err, "write allocation "+p.ID)
}

// allocationInput is what a queued allocation is placed by later.
type allocationInput struct {
	WholeNode  bool              `json:"wholeNode,omitempty"`
	Selector   map[string]string `json:"nodeSelector,omitempty"`
	TTLSeconds *int64            `json:"ttlSeconds,omitempty"`
}

func (p *Placement) input() allocationInput {
	in := allocationInput{WholeNode: p.GPUs == 0, Selector: p.Selector}
	if p.TTL != nil {
		seconds := int64(*p.TTL / time.Second)
		in.TTLSeconds = &seconds
	}
	return in
}

// Queue writes the allocation as queued, for the worker to place when it is its
// turn.
func (p *Placement) Queue(ctx context.Context, tx pgx.Tx, timeout time.Duration) error {
	_, err := tx.Exec(ctx, `INSERT INTO allocations (id, tenant_id, pool_id, holder, gpus, reservation_id, state, input, created_by, queue_until, waits_for)
		VALUES ($1, $2, $3, $4, $5, NULLIF($6, ''), 'queued', $7, $8, now() + $9::interval, 'capacity')`,
		p.ID, p.TenantID, p.PoolID, p.Holder, p.GPUs, p.ReservationID, p.input(), p.CreatedBy, timeout)
	if err != nil {
		return fmt.Errorf("queue allocation %s: %w", p.ID, err)
	}
	return allocationEvent(ctx, tx, p.ID, "allocation.queued", p.CreatedBy, p.TenantID, nil)
}

// FindReservation checks the reservation that the allocation is to be under: the
// tenant's own, of this pool, in force. The allocation ends with it.
func (p *Placement) FindReservation(ctx context.Context, q Reader, asked *int64) error {
	if p.ReservationID == "" {
		return nil
	}
	r, err := LoadReservation(ctx, q, p.ReservationID)
	if err != nil {
		return err
	}
	switch {
	case r.TenantID != p.TenantID || r.PoolID != p.PoolID:
		return fleet.NotFound("reservation")
	case r.State != fleet.ReservationOpen || !r.To.After(p.now):
		return fleet.Errorf(fleet.CodeInvalidState, "reservation-over", "the reservation is over since %s: make another, or allocate without one", r.To.Format(fleet.TimeFormat))
	case r.From.After(p.now):
		return fleet.Errorf(fleet.CodeInvalidState, "reservation-not-begun", "the reservation begins at %s: allocate under it then", r.From.Format(fleet.TimeFormat))
	case asked != nil && p.now.Add(time.Duration(*asked)*time.Second).After(r.To.Time):
		return fleet.Invalid("ttlSeconds", fmt.Sprintf("ends within the reservation, at most %d seconds now; leave it out to end with it", int64(r.To.Sub(p.now).Seconds())))
	case max(1, p.GPUs) > r.GPUs:
		return fleet.Invalid("gpus", fmt.Sprintf("at most the reservation's %d", r.GPUs))
	}
	p.endsAt = &r.To.Time
	return nil
}

// Overtakes makes the no-capacity of an allocation that would pass others that
// wait: the queue is in strict order. What waits for its own tenant's quota lets
// other tenants pass; what is under a reservation waits only behind its like.
func (p *Placement) Overtakes(ctx context.Context, q Reader) error {
	var ahead int
	err := q.QueryRow(ctx, `SELECT count(*) FROM (SELECT DISTINCT ON (tenant_id) tenant_id, waits_for FROM allocations
			WHERE pool_id = $1 AND state = 'queued' AND reservation_id IS NOT DISTINCT FROM NULLIF($2, '') ORDER BY tenant_id, created_at, id) h
		WHERE h.waits_for = 'capacity' OR h.tenant_id = $3`, p.PoolID, p.ReservationID, p.TenantID).Scan(&ahead)
	if err != nil {
		return fmt.Errorf("look at the queue of pool %s: %w", p.PoolID, err)
	}
	if ahead == 0 {
		return nil
	}
	return p.short(ctx, q, room{})
}
