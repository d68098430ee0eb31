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
	Owner                string
}

const allocationColumns = `a.id, a.tenant_id, a.pool_id, a.node_id, a.gpus, a.holder, a.reservation_id, a.state, a.created_at, a.expires_at, a.ended_at,
	a.queue_until, a.waits_for,
	CASE WHEN a.state = 'queued' THEN (SELECT count(*) FROM allocations b WHERE b.pool_id = a.pool_id AND b.state = 'queued' AND (b.created_at, b.id) <= (a.created_at, a.id)) END,
	coalesce((SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object('id', d.id, 'model', d.model, 'serial', d.serial, 'uuid', d.uuid, 'pciAddress', d.pci_address, 'slot', d.slot)) ORDER BY d.id)
		FROM allocation_devices x JOIN devices d ON d.id = x.device_id WHERE x.allocation_id = a.id), '[]'),
	p.tenant_id`

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

// CancelQueued cancels the queued allocations of a pool, of one tenant when
// tenantID is not empty, under one reservation when that is not empty, and
// writes their events. The caller holds the pool's lock exclusively.
func CancelQueued(ctx context.Context, tx pgx.Tx, poolID, tenantID, reservationID, actor, why string) error {
	rows, err := tx.Query(ctx, `UPDATE allocations SET state = 'cancelled', ended_at = now(), waits_for = NULL
		WHERE pool_id = $1 AND state = 'queued' AND ($2 = '' OR tenant_id = $2) AND ($3 = '' OR reservation_id = $3) RETURNING id`, poolID, tenantID, reservationID)
	if err != nil {
		return fmt.Errorf("cancel what is queued for pool %s: %w", poolID, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("cancel what is queued for pool %s: %w", poolID, err)
	}
	for _, id := range ids {
		if err := allocationEvent(ctx, tx, id, "allocation.cancelled", actor, map[string]any{"because": why}); err != nil {
			return err
		}
	}
	return nil
}

// allocationEvent writes an event of an allocation: to the tenant that holds it
// and to the pool's owner, and to no other that the pool is offered to. It
// belongs to the owner, as all events of its nodes.
func allocationEvent(ctx context.Context, tx pgx.Tx, allocationID, typ, actor string, data map[string]any) error {
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
	}
	return AddEvents(ctx, tx, EventIn{Type: typ, NodeID: orEmpty(nodeID), TenantID: owner, Audience: audience, Actor: actor, Data: data})
}
