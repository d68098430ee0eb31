package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// A tenant's quota in a pool lies in slots: rows of which a claim takes one that
// nobody else is committing on, so that allocations of one tenant do not wait
// for one another. What a slot holds never passes its quota: the row's lock and
// its constraint say so, whoever claims and from wherever.

// quotaSlots is in how many slots a quota is cut. Small ones are not: a claim
// that no single slot can serve has to lock them all.
func quotaSlots(gpus int) int { return min(16, 1+gpus/32) }

// LoadPeak is the most GPUs that a tenant holds or has reserved in a pool at
// any moment from a time on, and before another when that is not nil; of all
// tenants when tenantID is empty. Allocations count until they expire, except
// now: one that expired and was not swept still holds its GPUs. The caller holds
// the pool's lock exclusively when something depends on the answer.
func LoadPeak(ctx context.Context, q Reader, poolID, tenantID string, from time.Time, until *time.Time) (int, error) {
	var peak int
	err := q.QueryRow(ctx, `WITH points AS (
			SELECT greatest($3, now()) AS t
			UNION SELECT r.starts_at FROM reservations r WHERE r.pool_id = $1 AND ($2 = '' OR r.tenant_id = $2) AND r.state = 'open'
				AND r.starts_at > greatest($3, now()) AND ($4::timestamptz IS NULL OR r.starts_at < $4))
		SELECT max(
			(SELECT coalesce(sum(a.gpus), 0) FROM allocations a WHERE a.pool_id = $1 AND ($2 = '' OR a.tenant_id = $2) AND a.state = 'active'
				AND (a.expires_at IS NULL OR a.expires_at > p.t OR p.t <= now())
				AND NOT EXISTS (SELECT FROM reservations r WHERE r.id = a.reservation_id AND r.state = 'open' AND r.ends_at > p.t))
			+ (SELECT coalesce(sum(r.gpus), 0) FROM reservations r WHERE r.pool_id = $1 AND ($2 = '' OR r.tenant_id = $2) AND r.state = 'open'
				AND r.starts_at <= p.t AND r.ends_at > p.t))
		FROM points p`, poolID, tenantID, from, until).Scan(&peak)
	if err != nil {
		return 0, fmt.Errorf("read what is held of pool %s: %w", poolID, err)
	}
	return peak, nil
}

// SetOffer offers a pool to a tenant, or replaces its quota. The caller holds
// the pool's lock exclusively, so that no claim is under way. What the tenant
// holds above the quota stays, and is given back before any is claimed anew.
func SetOffer(ctx context.Context, tx pgx.Tx, poolID, tenantID string, quota int) error {
	// Releases lock their allocation and then its slot: the same order here.
	rows, err := tx.Query(ctx, `SELECT id, gpus FROM allocations WHERE pool_id = $1 AND tenant_id = $2 AND state = 'active' AND quota_slot IS NOT NULL
		ORDER BY id FOR UPDATE`, poolID, tenantID)
	if err != nil {
		return fmt.Errorf("lock what tenant %s holds of pool %s: %w", tenantID, poolID, err)
	}
	var id string
	var gpus, used int
	var held []string
	_, err = pgx.ForEachRow(rows, []any{&id, &gpus}, func() error {
		held = append(held, id)
		used += gpus
		return nil
	})
	if err != nil {
		return fmt.Errorf("lock what tenant %s holds of pool %s: %w", tenantID, poolID, err)
	}
	batch := &pgx.Batch{}
	batch.Queue(`INSERT INTO pool_offers (pool_id, tenant_id, quota_gpus) VALUES ($1, $2, $3)
		ON CONFLICT (pool_id, tenant_id) DO UPDATE SET quota_gpus = EXCLUDED.quota_gpus`, poolID, tenantID, quota)
	batch.Queue(`INSERT INTO pool_visibility (tenant_id, pool_id) VALUES ($1, $2) ON CONFLICT DO NOTHING`, tenantID, poolID)
	batch.Queue(`DELETE FROM quota_slots WHERE pool_id = $1 AND tenant_id = $2`, poolID, tenantID)
	// All that is held goes into the first slot; what is free is spread.
	free := max(0, quota-used)
	n := quotaSlots(quota)
	for slot := range n {
		share := free / n
		if slot == 0 {
			batch.Queue(`INSERT INTO quota_slots (pool_id, tenant_id, slot, quota, used, over) VALUES ($1, $2, 0, $3, $4, $5)`,
				poolID, tenantID, min(quota, used)+share+free%n, used, max(0, used-quota))
			continue
		}
		batch.Queue(`INSERT INTO quota_slots (pool_id, tenant_id, slot, quota) VALUES ($1, $2, $3, $4)`, poolID, tenantID, slot, share)
	}
	batch.Queue(`UPDATE allocations SET quota_slot = 0 WHERE id = ANY ($1)`, held)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("offer pool %s to tenant %s: %w", poolID, tenantID, err)
	}
	return touchPool(ctx, tx, poolID)
}

// DeleteOffer takes an offer back, and says whether there was one. The caller
// holds the pool's lock exclusively and made sure that the tenant holds nothing.
func DeleteOffer(ctx context.Context, tx pgx.Tx, poolID, tenantID string) (bool, error) {
	tag, err := tx.Exec(ctx, `DELETE FROM pool_offers WHERE pool_id = $1 AND tenant_id = $2`, poolID, tenantID)
	if err != nil {
		return false, fmt.Errorf("take pool %s back from tenant %s: %w", poolID, tenantID, err)
	}
	if tag.RowsAffected() == 0 {
		return false, nil
	}
	if _, err := tx.Exec(ctx, `DELETE FROM pool_visibility WHERE pool_id = $1 AND tenant_id = $2`, poolID, tenantID); err != nil {
		return false, fmt.Errorf("take pool %s back from tenant %s: %w", poolID, tenantID, err)
	}
	return true, touchPool(ctx, tx, poolID)
}

// TenantExists makes NOT_FOUND of a tenant that is not there.
func TenantExists(ctx context.Context, q Reader, tenantID string) error {
	var there bool
	if err := q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM tenants WHERE id = $1)`, tenantID).Scan(&there); err != nil {
		return fmt.Errorf("look for tenant %s: %w", tenantID, err)
	}
	if !there {
		return fleet.NotFound("tenant")
	}
	return nil
}
