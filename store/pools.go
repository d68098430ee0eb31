package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

type poolRow struct {
	ID, TenantID, SiteID, Name, GPUModel string
	GPUsPerNode                          *int
	SharingMode                          string
	Policy                               fleet.PoolPolicy
	State                                string
	Version                              int64
	CreatedAt, UpdatedAt                 time.Time
	Total, Free                          int
	Offers                               []fleet.Offer
}

// placeable is the condition under which a node n with session s takes new
// allocations: it runs somebody's system, is connected, and nothing keeps work
// off it.
const placeable = `n.deleted_at IS NULL AND n.provision_state IN ('adopted', 'deployed') AND NOT n.cordoned AND n.no_schedule_reasons = '{}'
	AND s.disconnected_at IS NULL`

// inForce is the condition under which a reservation r holds its GPUs now.
const inForce = `r.state = 'open' AND r.starts_at <= now() AND r.ends_at > now()`

// poolColumns are poolRow's. Free are the present devices of placeable nodes
// that nobody holds.
const poolColumns = `p.id, p.tenant_id, p.site_id, p.name, p.gpu_model, p.gpus_per_node, p.sharing_mode, p.policy, p.state, p.version, p.created_at, p.updated_at,
	(SELECT count(*) FROM nodes n JOIN devices d ON d.node_id = n.id WHERE n.pool_id = p.id AND n.deleted_at IS NULL AND d.present),
	(SELECT count(*) FROM nodes n JOIN sessions s ON s.node_id = n.id JOIN devices d ON d.node_id = n.id AND d.present AND d.allocation_id IS NULL
		WHERE n.pool_id = p.id AND ` + placeable + `),
	coalesce((SELECT jsonb_agg(jsonb_build_object('tenantId', f.tenant_id, 'quota', jsonb_build_object('gpus', f.quota_gpus),
			'used', (SELECT coalesce(sum(q.used), 0) FROM quota_slots q WHERE q.pool_id = p.id AND q.tenant_id = f.tenant_id)
				+ (SELECT coalesce(sum(r.gpus), 0) FROM reservations r WHERE r.pool_id = p.id AND r.tenant_id = f.tenant_id AND ` + inForce + `)) ORDER BY f.tenant_id)
		FROM pool_offers f WHERE f.pool_id = p.id), '[]')`

// view is the pool as a tenant sees it: the owner all offers, another only its
// own quota and use.
func (r *poolRow) view(tenantID string) fleet.Pool {
	p := fleet.Pool{ID: r.ID, TenantID: r.TenantID, SiteID: r.SiteID, Name: r.Name, GPUModel: r.GPUModel, SharingMode: r.SharingMode, Policy: r.Policy,
		State: r.State, GPUs: fleet.GPUCount{Total: r.Total, Free: r.Free}, Version: r.Version, CreatedAt: fleet.At(r.CreatedAt), UpdatedAt: fleet.At(r.UpdatedAt)}
	if r.GPUsPerNode != nil {
		p.GPUsPerNode = *r.GPUsPerNode
	}
	if tenantID == r.TenantID {
		p.Offers = r.Offers
		return p
	}
	for _, o := range r.Offers {
		if o.TenantID == tenantID {
			p.Quota, p.Used = &o.Quota, &o.Used
		}
	}
	return p
}

// NewPool is a pool as pools/create makes it.
type NewPool struct {
	ID, TenantID, SiteID, Name, GPUModel string
	GPUsPerNode                          *int
	SharingMode                          string
	Policy                               fleet.PoolPolicy
}

// InsertPool makes a pool and its visibility to its owner. A name taken in the
// tenant is CONFLICT.
func InsertPool(ctx context.Context, tx pgx.Tx, p NewPool) error {
	_, err := tx.Exec(ctx, `INSERT INTO pools (id, tenant_id, site_id, name, gpu_model, gpus_per_node, sharing_mode, policy) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		p.ID, p.TenantID, p.SiteID, p.Name, p.GPUModel, p.GPUsPerNode, p.SharingMode, p.Policy)
	if err != nil {
		return fmt.Errorf("insert pool %s: %w", p.Name, err)
	}
	if _, err := tx.Exec(ctx, `INSERT INTO pool_visibility (tenant_id, pool_id) VALUES ($1, $2)`, p.TenantID, p.ID); err != nil {
		return fmt.Errorf("make pool %s visible to its owner: %w", p.ID, err)
	}
	return nil
}

// LoadPool returns a pool that the tenant owns or is offered, or NOT_FOUND.
func LoadPool(ctx context.Context, q Reader, tenantID, poolID string) (fleet.Pool, error) {
	rows, err := q.Query(ctx, `SELECT `+poolColumns+` FROM pools p JOIN pool_visibility v ON v.pool_id = p.id WHERE p.id = $1 AND v.tenant_id = $2`, poolID, tenantID)
	if err != nil {
		return fleet.Pool{}, fmt.Errorf("load pool %s: %w", poolID, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[poolRow])
	if err != nil {
		return fleet.Pool{}, noRows(err, "pool", "load pool "+poolID)
	}
	return r.view(tenantID), nil
}

// PoolFilter selects pools of a list; nil members select all.
type PoolFilter struct {
	TenantID      string
	SiteID, State *string
	After         string
	Limit         int
}

// ListPools returns up to f.Limit+1 pools that the tenant owns or is offered,
// in id order.
func ListPools(ctx context.Context, q Reader, f PoolFilter) ([]fleet.Pool, error) {
	var c clauses
	c.add("v.tenant_id = %s", f.TenantID)
	c.add("p.id > %s", f.After)
	if f.SiteID != nil {
		c.add("p.site_id = %s", *f.SiteID)
	}
	if f.State != nil {
		c.add("p.state = %s", *f.State)
	}
	rows, err := q.Query(ctx, `SELECT `+poolColumns+` FROM pools p JOIN pool_visibility v ON v.pool_id = p.id WHERE `+c.where()+
		` ORDER BY p.id LIMIT `+c.arg(f.Limit+1), c.args...)
	if err != nil {
		return nil, fmt.Errorf("list pools of tenant %s: %w", f.TenantID, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[poolRow])
	if err != nil {
		return nil, fmt.Errorf("list pools of tenant %s: %w", f.TenantID, err)
	}
	out := make([]fleet.Pool, len(list))
	for i, r := range list {
		out[i] = r.view(f.TenantID)
	}
	return out, nil
}

// PoolChange is what pools/update stores; gpusPerNode 0 is any number.
type PoolChange struct {
	Name, GPUModel string
	GPUsPerNode    int
	Policy         fleet.PoolPolicy
}

// UpdatePool stores what changed of a pool and raises its version. A name taken
// in the tenant is CONFLICT.
func UpdatePool(ctx context.Context, tx pgx.Tx, poolID string, c PoolChange) error {
	_, err := tx.Exec(ctx, `UPDATE pools SET name = $2, gpu_model = $3, gpus_per_node = NULLIF($4, 0), policy = $5, version = version + 1, updated_at = now() WHERE id = $1`,
		poolID, c.Name, c.GPUModel, c.GPUsPerNode, c.Policy)
	return wrapDoing(err, "update pool "+poolID)
}

// ArchivePool closes a pool; its name is free again.
func ArchivePool(ctx context.Context, tx pgx.Tx, poolID string) error {
	_, err := tx.Exec(ctx, `UPDATE pools SET state = 'archived', version = version + 1, updated_at = now() WHERE id = $1`, poolID)
	return wrapDoing(err, "archive pool "+poolID)
}

// touchPool raises a pool's version after a change beside its row.
func touchPool(ctx context.Context, tx pgx.Tx, poolID string) error {
	_, err := tx.Exec(ctx, `UPDATE pools SET version = version + 1, updated_at = now() WHERE id = $1`, poolID)
	return wrapDoing(err, "raise the version of pool "+poolID)
}

// PoolAudience returns the tenants that see a pool now.
func PoolAudience(ctx context.Context, q Reader, poolID string) ([]string, error) {
	rows, err := q.Query(ctx, `SELECT tenant_id FROM pool_visibility WHERE pool_id = $1 ORDER BY tenant_id`, poolID)
	if err != nil {
		return nil, fmt.Errorf("read who sees pool %s: %w", poolID, err)
	}
	tenants, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return tenants, wrapDoing(err, "read who sees pool "+poolID)
}

// PoolHolds is what keeps a pool from being archived, or a tenant from being
// sent away: up to ten ids of each kind.
type PoolHolds struct{ Nodes, Reservations, Allocations []string }

// LoadPoolHolds reads what a pool holds, or with a tenant what that tenant holds
// of it (no nodes then).
func LoadPoolHolds(ctx context.Context, q Reader, poolID, tenantID string) (PoolHolds, error) {
	var h PoolHolds
	err := q.QueryRow(ctx, `SELECT
		ARRAY(SELECT id FROM nodes WHERE pool_id = $1 AND $2 = '' AND deleted_at IS NULL ORDER BY id LIMIT 10),
		ARRAY(SELECT id FROM reservations WHERE pool_id = $1 AND state = 'open' AND ends_at > now() AND ($2 = '' OR tenant_id = $2) ORDER BY id LIMIT 10),
		ARRAY(SELECT id FROM allocations WHERE pool_id = $1 AND state = 'active' AND ($2 = '' OR tenant_id = $2) ORDER BY id LIMIT 10)`, poolID, tenantID).
		Scan(&h.Nodes, &h.Reservations, &h.Allocations)
	if err != nil {
		return h, fmt.Errorf("read what pool %s holds: %w", poolID, err)
	}
	return h, nil
}

// PoolInventories returns the recorded inventories of a pool's nodes by node.
func PoolInventories(ctx context.Context, q Reader, poolID string) (map[string]fleet.Inventory, error) {
	rows, err := q.Query(ctx, `SELECT n.id, i.doc FROM nodes n JOIN inventories i ON i.node_id = n.id WHERE n.pool_id = $1 AND n.deleted_at IS NULL`, poolID)
	if err != nil {
		return nil, fmt.Errorf("read the inventories of pool %s: %w", poolID, err)
	}
	out := map[string]fleet.Inventory{}
	var id string
	var inv fleet.Inventory
	_, err = pgx.ForEachRow(rows, []any{&id, &inv}, func() error {
		out[id], inv = inv, fleet.Inventory{}
		return nil
	})
	return out, wrapDoing(err, "read the inventories of pool "+poolID)
}

// LockPool takes the pool's advisory lock until the transaction ends, which
// comes before the lock of any node's row. Shared holders exclude exclusive
// ones only.
func LockPool(ctx context.Context, tx pgx.Tx, poolID string, exclusive bool) error {
	sql := `SELECT pg_advisory_xact_lock_shared(hashtextextended('pool/' || $1, 0))`
	if exclusive {
		sql = `SELECT pg_advisory_xact_lock(hashtextextended('pool/' || $1, 0))`
	}
	if _, err := tx.Exec(ctx, sql, poolID); err != nil {
		return fmt.Errorf("lock pool %s: %w", poolID, err)
	}
	return nil
}

// LockPoolRow locks a pool's row, which is the aggregate that the events of its
// owner's changes are ordered by.
func LockPoolRow(ctx context.Context, tx pgx.Tx, poolID string) error {
	var one int
	err := tx.QueryRow(ctx, `SELECT 1 FROM pools WHERE id = $1 FOR NO KEY UPDATE`, poolID).Scan(&one)
	if err != nil {
		return noRows(err, "pool", "lock the row of pool "+poolID)
	}
	return nil
}

// SetNodePool moves a node into a pool, or out of any with nil. The caller
// holds the pools' locks and the node's row.
func SetNodePool(ctx context.Context, tx pgx.Tx, nodeID string, poolID *string) error {
	if _, err := changeNode(ctx, tx, nodeID, "move to its pool", `pool_id = $2`, poolID); err != nil {
		return err
	}
	return WantReconcile(ctx, tx, nodeID)
}

// PoolRef is what a call in a pool is decided by.
type PoolRef struct {
	ID, Owner, State string
	Policy           fleet.PoolPolicy
	// Quota is the tenant's, nil for the owner.
	Quota *int
}

// LoadPoolRef reads a pool that the tenant owns or is offered, or NOT_FOUND,
// without counting what is in it.
func LoadPoolRef(ctx context.Context, q Reader, tenantID, poolID string) (PoolRef, error) {
	r := PoolRef{ID: poolID}
	err := q.QueryRow(ctx, `SELECT p.tenant_id, p.state, p.policy, o.quota_gpus FROM pools p JOIN pool_visibility v ON v.pool_id = p.id AND v.tenant_id = $2
		LEFT JOIN pool_offers o ON o.pool_id = p.id AND o.tenant_id = $2 WHERE p.id = $1`, poolID, tenantID).Scan(&r.Owner, &r.State, &r.Policy, &r.Quota)
	if err != nil {
		return r, noRows(err, "pool", "look up pool "+poolID)
	}
	return r, nil
}
