package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// Ending says who ends an allocation, for whom, and why.
type Ending struct {
	Actor string
	// By is the tenant that acts, "" when none does.
	By string
	// Because is why, in words of ours; Reason what the caller said.
	Because, Reason string
}

func (e Ending) data() map[string]any {
	data := map[string]any{}
	if e.Because != "" {
		data["because"] = e.Because
	}
	if e.Reason != "" {
		data["reason"] = e.Reason
	}
	return data
}

// ShareNode locks a node's row against verbs, together with others that do so,
// as the first lock of the transaction that takes a transaction id. NOT_FOUND
// when it is not there. Verbs are waited for at the node's advisory lock, as they
// wait for one another (lockNode).
func ShareNode(ctx context.Context, tx pgx.Tx, nodeID string) error {
	var one int
	batch := &pgx.Batch{}
	batch.Queue(`SELECT pg_advisory_xact_lock_shared(hashtextextended('node/' || $1, 0))`, nodeID)
	batch.Queue(`SELECT 1 FROM nodes WHERE id = $1 AND deleted_at IS NULL FOR SHARE`, nodeID).
		QueryRow(func(row pgx.Row) error { return row.Scan(&one) })
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return noRows(err, "node", "share the lock of node "+nodeID)
	}
	return nil
}

// HeldAllocation is an allocation whose row is locked.
type HeldAllocation struct {
	ID, PoolID, TenantID, NodeID, ReservationID string
	State                                       fleet.AllocationState
	GPUs                                        int
	Due                                         bool // its time, or that of its wait, is over
	slot                                        *int
}

// LockAllocation locks an allocation's row, after its node's.
func LockAllocation(ctx context.Context, tx pgx.Tx, allocationID string) (HeldAllocation, error) {
	a := HeldAllocation{ID: allocationID}
	err := tx.QueryRow(ctx, `SELECT pool_id, tenant_id, coalesce(node_id, ''), coalesce(reservation_id, ''), state, gpus, quota_slot,
		coalesce(CASE state WHEN 'active' THEN expires_at WHEN 'queued' THEN queue_until END <= now(), false)
		FROM allocations WHERE id = $1 FOR UPDATE`, allocationID).
		Scan(&a.PoolID, &a.TenantID, &a.NodeID, &a.ReservationID, &a.State, &a.GPUs, &a.slot, &a.Due)
	if err != nil {
		return a, noRows(err, "allocation", "lock allocation "+allocationID)
	}
	return a, nil
}

// EndAllocation ends an active allocation in a state, or a queued one: its
// devices are free, its node's reconciler is asked for, and its event written.
// The quota that it used is given back by GiveBack, last.
func EndAllocation(ctx context.Context, tx pgx.Tx, a HeldAllocation, to fleet.AllocationState, e Ending) error {
	batch := &pgx.Batch{}
	batch.Queue(`UPDATE allocations SET state = $2, ended_at = now(), waits_for = NULL WHERE id = $1`, a.ID, string(to))
	if a.State == fleet.AllocationActive {
		batch.Queue(`UPDATE devices SET allocation_id = NULL WHERE allocation_id = $1`, a.ID)
		batch.Queue(`UPDATE allocation_devices SET live = false WHERE allocation_id = $1 AND live`, a.ID)
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("end allocation %s: %w", a.ID, err)
	}
	if a.State == fleet.AllocationActive {
		if err := WantReconcile(ctx, tx, a.NodeID); err != nil {
			return err
		}
	}
	return allocationEvent(ctx, tx, a.ID, "allocation."+string(to), e.Actor, e.By, e.data())
}

// GiveBack gives back what an ended allocation used of its tenant's quota or of
// its reservation, as the transaction's last statement. What a forced cut of the
// quota left above it shrinks first.
func GiveBack(ctx context.Context, tx pgx.Tx, a HeldAllocation) error {
	var err error
	switch {
	case a.State != fleet.AllocationActive:
	case a.ReservationID != "":
		_, err = tx.Exec(ctx, `UPDATE reservations SET used = used - $2 WHERE id = $1`, a.ReservationID, a.GPUs)
	case a.slot != nil:
		_, err = tx.Exec(ctx, `UPDATE quota_slots SET used = used - $4, over = greatest(0, least(over, used - $4 - quota))
			WHERE pool_id = $1 AND tenant_id = $2 AND slot = $3`, a.PoolID, a.TenantID, *a.slot, a.GPUs)
	}
	return wrapDoing(err, "give back what allocation "+a.ID+" used")
}

// QueuedOf selects queued allocations of a pool: of one tenant, or under one
// reservation, when those are not empty.
type QueuedOf struct{ PoolID, TenantID, ReservationID string }

// CancelQueued cancels queued allocations and writes their events. The caller
// holds the pool's lock exclusively, so that none is placed meanwhile.
func CancelQueued(ctx context.Context, tx pgx.Tx, q QueuedOf, e Ending) error {
	rows, err := tx.Query(ctx, `SELECT id FROM allocations WHERE pool_id = $1 AND state = 'queued' AND ($2 = '' OR tenant_id = $2)
		AND ($3 = '' OR reservation_id = $3) ORDER BY id FOR UPDATE`, q.PoolID, q.TenantID, q.ReservationID)
	if err != nil {
		return fmt.Errorf("lock what is queued for pool %s: %w", q.PoolID, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("lock what is queued for pool %s: %w", q.PoolID, err)
	}
	for _, id := range ids {
		if err := EndAllocation(ctx, tx, HeldAllocation{ID: id, State: fleet.AllocationQueued}, fleet.AllocationCancelled, e); err != nil {
			return err
		}
	}
	return nil
}
