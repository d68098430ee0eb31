package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// allocationRow is an allocation with its devices, read in one statement.
type allocationRow struct {
	ID, TenantID, PoolID string
	NodeID               *string
	GPUs                 int
	Holder               string
	ReservationID        *string
	State                fleet.AllocationState
	CreatedAt            time.Time
	ExpiresAt, EndedAt   *time.Time
	QueueUntil           *time.Time
	WaitsFor             *string
	Position             *int
	Devices              []fleet.AllocatedDevice
}

const allocationColumns = `a.id, a.tenant_id, a.pool_id, a.node_id, a.gpus, a.holder, a.reservation_id, a.state, a.created_at, a.expires_at, a.ended_at,
	a.queue_until, a.waits_for,
	CASE WHEN a.state = 'queued' THEN (SELECT count(*) FROM allocations b WHERE b.pool_id = a.pool_id AND b.state = 'queued' AND (b.created_at, b.id) <= (a.created_at, a.id)) END,
	coalesce((SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object('id', d.id, 'model', d.model, 'serial', d.serial, 'uuid', d.uuid, 'pciAddress', d.pci_address, 'slot', d.slot)) ORDER BY d.id)
		FROM allocation_devices x JOIN devices d ON d.id = x.device_id WHERE x.allocation_id = a.id), '[]')`

const allocationFrom = ` FROM allocations a JOIN pools p ON p.id = a.pool_id`

func (r *allocationRow) view() fleet.Allocation {
	a := fleet.Allocation{ID: r.ID, TenantID: r.TenantID, PoolID: r.PoolID, NodeID: orEmpty(r.NodeID), GPUs: r.GPUs, Devices: r.Devices, Holder: r.Holder,
		ReservationID: orEmpty(r.ReservationID), State: r.State, CreatedAt: fleet.At(r.CreatedAt), ExpiresAt: fleet.AtPtr(r.ExpiresAt), EndedAt: fleet.AtPtr(r.EndedAt)}
	if r.Position != nil {
		a.Queue = &fleet.QueuePlace{Position: *r.Position, WaitsFor: orEmpty(r.WaitsFor), Until: fleet.AtPtr(r.QueueUntil)}
	}
	return a
}

func collectAllocations(rows pgx.Rows, err error, doing string) ([]fleet.Allocation, error) {
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[allocationRow])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	out := make([]fleet.Allocation, len(list))
	for i, r := range list {
		out[i] = r.view()
	}
	return out, nil
}

// LiveAllocations returns the allocations that hold devices of a node, oldest
// first. To act on there being none the caller holds the lock of the node's row:
// placement books under a share of it.
func LiveAllocations(ctx context.Context, q Reader, nodeID string) ([]fleet.Allocation, error) {
	rows, err := q.Query(ctx, `SELECT `+allocationColumns+allocationFrom+` WHERE a.node_id = $1 AND a.state = 'active' ORDER BY a.created_at, a.id`, nodeID)
	return collectAllocations(rows, err, "list the live allocations of node "+nodeID)
}

// AllocationRef is what a call on an allocation is decided by.
type AllocationRef struct {
	TenantID, Owner, PoolID, NodeID string
	State                           fleet.AllocationState
}

// LoadAllocationRef reads whose an allocation is: NOT_FOUND to all but the tenant
// that made it and the pool's owner.
func LoadAllocationRef(ctx context.Context, q Reader, tenantID, allocationID string) (AllocationRef, error) {
	var r AllocationRef
	err := q.QueryRow(ctx, `SELECT a.tenant_id, p.tenant_id, a.pool_id, coalesce(a.node_id, ''), a.state`+allocationFrom+`
		WHERE a.id = $1 AND $2 IN (a.tenant_id, p.tenant_id)`, allocationID, tenantID).Scan(&r.TenantID, &r.Owner, &r.PoolID, &r.NodeID, &r.State)
	if err != nil {
		return r, noRows(err, "allocation", "look up allocation "+allocationID)
	}
	return r, nil
}

// LoadAllocation returns an allocation, or NOT_FOUND.
func LoadAllocation(ctx context.Context, q Reader, allocationID string) (fleet.Allocation, error) {
	rows, err := q.Query(ctx, `SELECT `+allocationColumns+allocationFrom+` WHERE a.id = $1`, allocationID)
	list, err := collectAllocations(rows, err, "load allocation "+allocationID)
	if err == nil && len(list) == 0 {
		err = fleet.NotFound("allocation")
	}
	if err != nil {
		return fleet.Allocation{}, err
	}
	return list[0], nil
}

// AllocationFilter selects allocations of a list; nil members select all.
type AllocationFilter struct {
	TenantID              string
	State, PoolID, NodeID *string
	After                 string
	Limit                 int
}

// ListAllocations returns up to f.Limit+1 allocations that the tenant made, or
// that are of pools that it owns, in id order. Either is an ordered and limited
// scan of its own, so that a page costs the same wherever it begins.
func ListAllocations(ctx context.Context, q Reader, f AllocationFilter) ([]fleet.Allocation, error) {
	var c clauses
	tenant, limit := c.arg(f.TenantID), c.arg(f.Limit+1)
	c.add("a.id > %s", f.After)
	if f.State != nil {
		c.add("a.state = %s", *f.State)
	}
	if f.PoolID != nil {
		c.add("a.pool_id = %s", *f.PoolID)
	}
	if f.NodeID != nil {
		c.add("a.node_id = %s", *f.NodeID)
	}
	rows, err := q.Query(ctx, `WITH page AS (
		(SELECT a.id FROM allocations a WHERE a.tenant_id = `+tenant+` AND `+c.where()+` ORDER BY a.id LIMIT `+limit+`)
		UNION
		(SELECT x.id FROM pools o CROSS JOIN LATERAL (SELECT a.id FROM allocations a
			WHERE a.pool_id = o.id AND `+c.where()+` ORDER BY a.id LIMIT `+limit+`) x
			WHERE o.tenant_id = `+tenant+` ORDER BY x.id LIMIT `+limit+`)
		ORDER BY id LIMIT `+limit+`)
	SELECT `+allocationColumns+allocationFrom+` JOIN page ON page.id = a.id ORDER BY a.id`, c.args...)
	return collectAllocations(rows, err, "list allocations of tenant "+f.TenantID)
}

// allocationEvent writes an event of an allocation: to the tenant that holds it
// and to the pool's owner, and to no other that the pool is offered to. It
// belongs to the owner, as all events of its nodes. by is the tenant that acts,
// "" when none does.
func allocationEvent(ctx context.Context, tx pgx.Tx, allocationID, typ, actor, by string, data map[string]any) error {
	var owner, holder, tenantID, poolID string
	var nodeID *string
	var gpus int
	err := tx.QueryRow(ctx, `SELECT p.tenant_id, a.holder, a.tenant_id, a.pool_id, a.node_id, a.gpus`+allocationFrom+` WHERE a.id = $1`, allocationID).
		Scan(&owner, &holder, &tenantID, &poolID, &nodeID, &gpus)
	if err != nil {
		return fmt.Errorf("read allocation %s for an event: %w", allocationID, err)
	}
	if data == nil {
		data = map[string]any{}
	}
	data["allocationId"], data["tenantId"], data["poolId"], data["holder"] = allocationID, tenantID, poolID, holder
	if gpus > 0 {
		data["gpus"] = gpus
	}
	audience := []string{owner}
	if tenantID != owner {
		audience = append(audience, tenantID)
		if by == owner {
			data["by"] = fleet.ByOwner
		}
	}
	return AddEvents(ctx, tx, EventIn{Type: typ, NodeID: orEmpty(nodeID), TenantID: owner, Audience: audience, Actor: actor, Data: data})
}
