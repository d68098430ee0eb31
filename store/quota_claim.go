package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// quotaExceeded is what a tenant is told that would pass its quota.
func quotaExceeded(asked, quota, held int) *fleet.Error {
	return fleet.Errorf(fleet.CodeInvalidState, "quota-exceeded",
		"%d GPUs more would pass the tenant's quota of %d in this pool, of which %d are held or reserved; release some, or ask the pool's owner for more (pools/offer)",
		asked, quota, held).With("quota", quota).With("used", held).With("asked", asked)
}

// reservationUsed is what a tenant is told whose reservation has not enough left.
func reservationUsed(asked, gpus, used int) *fleet.Error {
	return fleet.Errorf(fleet.CodeInvalidState, "reservation-used",
		"%d of the reservation's %d GPUs are in use, which leaves too few for %d: release an allocation under it, or ask for fewer", used, gpus, asked).
		With("gpus", gpus).With("used", used).With("asked", asked)
}

// claim takes what a placed allocation uses of its tenant's quota or of its
// reservation, as the transaction's last statement, so that the row's lock is
// held for no longer than the commit. The pool's owner has no quota.
func (p *Placement) claim(ctx context.Context, tx pgx.Tx, gpus int) error {
	switch {
	case p.ReservationID != "":
		tag, err := tx.Exec(ctx, `UPDATE reservations SET used = used + $2 WHERE id = $1 AND state = 'open' AND used + $2 <= gpus`, p.ReservationID, gpus)
		if err != nil {
			return fmt.Errorf("take %d GPUs of reservation %s: %w", gpus, p.ReservationID, err)
		}
		if tag.RowsAffected() == 0 {
			return p.quotaAllows(ctx, tx, gpus)
		}
		return nil
	case p.TenantID == p.Owner:
		return nil
	}
	var slot int
	err := tx.QueryRow(ctx, `WITH s AS (SELECT slot FROM quota_slots WHERE pool_id = $1 AND tenant_id = $2 AND used + $3 <= quota
			ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED),
		u AS (UPDATE quota_slots q SET used = used + $3 FROM s WHERE q.pool_id = $1 AND q.tenant_id = $2 AND q.slot = s.slot RETURNING q.slot)
		UPDATE allocations a SET quota_slot = u.slot FROM u WHERE a.id = $4 RETURNING a.quota_slot`, p.PoolID, p.TenantID, gpus, p.ID).Scan(&slot)
	if errors.Is(err, pgx.ErrNoRows) {
		return p.claimSlowly(ctx, tx, gpus)
	}
	return wrapDoing(err, "claim the quota of tenant "+p.TenantID)
}

// claimSlowly claims when no slot that is not being committed on has enough: it
// waits for all of them, spreads anew what is free, and takes from the first.
func (p *Placement) claimSlowly(ctx context.Context, tx pgx.Tx, gpus int) error {
	rows, err := tx.Query(ctx, `SELECT slot, quota, used FROM quota_slots WHERE pool_id = $1 AND tenant_id = $2 ORDER BY slot FOR UPDATE`, p.PoolID, p.TenantID)
	if err != nil {
		return fmt.Errorf("lock the quota of tenant %s: %w", p.TenantID, err)
	}
	type slotRow struct{ Slot, Quota, Used int }
	slots, err := pgx.CollectRows(rows, pgx.RowToStructByPos[slotRow])
	if err != nil {
		return fmt.Errorf("lock the quota of tenant %s: %w", p.TenantID, err)
	}
	free, quota, used := 0, 0, 0
	for _, s := range slots {
		free += max(0, s.Quota-s.Used)
		quota += s.Quota
		used += s.Used
	}
	if free < gpus {
		return quotaExceeded(gpus, quota, used)
	}
	rest := free - gpus
	batch := &pgx.Batch{}
	for i, s := range slots {
		share := rest / len(slots)
		if i == 0 {
			share += rest % len(slots)
			s.Used += gpus
		}
		// A slot with more in use than its quota, after a forced cut, is the only
		// one that has any: there is nothing free then.
		batch.Queue(`UPDATE quota_slots SET quota = $4, used = $5 WHERE pool_id = $1 AND tenant_id = $2 AND slot = $3`, p.PoolID, p.TenantID, s.Slot, s.Used+share, s.Used)
	}
	batch.Queue(`UPDATE allocations SET quota_slot = $2 WHERE id = $1`, p.ID, slots[0].Slot)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("claim the quota of tenant %s: %w", p.TenantID, err)
	}
	return nil
}

// quotaAllows makes the refusal of gpus more that would pass the tenant's quota
// at some moment before the allocation's time is over, its reservations counted.
// It is exact under the pool's exclusive lock; where no reservation begins before
// then, what the slots say is exact and this only says it sooner.
func (p *Placement) quotaAllows(ctx context.Context, q Reader, gpus int) error {
	var quota, held int
	switch {
	case p.ReservationID != "":
		err := q.QueryRow(ctx, `SELECT gpus, used FROM reservations WHERE id = $1`, p.ReservationID).Scan(&quota, &held)
		if err == nil && held+gpus > quota {
			return reservationUsed(gpus, quota, held)
		}
		return wrapDoing(err, "read what is left of reservation "+p.ReservationID)
	case p.TenantID == p.Owner:
		return nil
	}
	err := q.QueryRow(ctx, `SELECT coalesce(sum(quota), 0), coalesce(sum(used), 0) FROM quota_slots WHERE pool_id = $1 AND tenant_id = $2`, p.PoolID, p.TenantID).Scan(&quota, &held)
	if err != nil {
		return fmt.Errorf("read the quota of tenant %s: %w", p.TenantID, err)
	}
	if p.exclusive {
		if held, err = LoadPeak(ctx, q, p.PoolID, p.TenantID, p.now, p.until()); err != nil {
			return err
		}
	}
	if held+gpus > quota {
		return quotaExceeded(gpus, quota, held)
	}
	return nil
}
