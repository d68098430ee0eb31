package api

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

func registerAllocations(r *Registry) {
	Handle(r, "allocations", "create", allocationsCreate, allocationInput)
	Handle(r, "allocations", "get", allocationsGet)
	Handle(r, "allocations", "list", allocationsList, paged(allocationsPage))
	Handle(r, "allocations", "release", allocationsRelease)
}

// queueFor is how long an allocation queues when its caller says nothing.
const queueFor = 24 * time.Hour

// allocationInput checks what needs no row of allocations/create.
func allocationInput(in fleet.AllocationsCreateIn) error {
	switch {
	case (in.GPUs != nil) == in.WholeNode:
		return fleet.Invalid("gpus", "exactly one of gpus and wholeNode: true")
	case in.QueueTimeoutSeconds != nil && !in.Wait:
		return fleet.Invalid("queueTimeoutSeconds", "given with wait: true only")
	}
	return nil
}

// inPool finds a pool that the tenant owns or is offered. What it makes there is
// its own, so that its own roles decide.
func (c *Call) inPool(poolID string, pool *store.PoolRef) func(ctx context.Context, tx pgx.Tx) (Target, error) {
	return func(ctx context.Context, tx pgx.Tx) (Target, error) {
		var err error
		*pool, err = store.LoadPoolRef(ctx, tx, c.TenantID, poolID)
		return Target{Kind: fleet.OnPool, ID: poolID, OwnerTenant: c.TenantID, PoolID: poolID}, err
	}
}

func archivedPool(p store.PoolRef) error { return poolActive(fleet.Pool{State: p.State}) }

// allocationsCreate places in as many transactions as it takes: who loses a node
// to somebody else moves to the next within this call.
func allocationsCreate(ctx context.Context, c *Call, in fleet.AllocationsCreateIn) (fleet.AllocationOut, error) {
	p := &store.Placement{ID: store.NewID(fleet.KindAllocation), PoolID: in.PoolID, TenantID: c.TenantID, Holder: in.Holder, CreatedBy: c.Identity,
		ReservationID: text(in.ReservationID), Selector: in.NodeSelector}
	set(&p.GPUs, in.GPUs)
	if in.TTLSeconds != nil {
		ttl := time.Duration(*in.TTLSeconds) * time.Second
		p.TTL = &ttl
	}
	m := placing(c, in, p)
	for {
		out, err := Mutate(ctx, c, m)
		if !errors.Is(err, store.ErrPlaceAgain) {
			return out, err
		}
		if err := p.Again(); err != nil {
			return out, err
		}
	}
}

// placing is one attempt to place.
func placing(c *Call, in fleet.AllocationsCreateIn, p *store.Placement) Mutation[fleet.AllocationOut] {
	var pool store.PoolRef
	placed := false
	return Mutation[fleet.AllocationOut]{
		Find: c.inPool(in.PoolID, &pool),
		Lock: p.LockPool,
		Input: func(ctx context.Context, tx pgx.Tx) error {
			p.Owner, p.Pack = pool.Owner, pool.Policy.Placement == "pack"
			return p.FindReservation(ctx, tx, in.TTLSeconds)
		},
		Judge: func(ctx context.Context, tx pgx.Tx) error {
			if err := archivedPool(pool); err != nil {
				return err
			}
			return p.Quota(ctx, tx)
		},
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.AllocationOut, error) {
			err := p.Overtakes(ctx, tx)
			if err == nil {
				err = p.Take(ctx, tx)
			}
			placed = err == nil
			if in.Wait && fleet.ReasonOf(err) == store.ReasonNoCapacity {
				timeout := queueFor
				if in.QueueTimeoutSeconds != nil {
					timeout = time.Duration(*in.QueueTimeoutSeconds) * time.Second
				}
				err = p.Queue(ctx, tx, timeout)
			}
			if err != nil {
				return fleet.AllocationOut{}, err
			}
			a, err := store.LoadAllocation(ctx, tx, p.ID)
			return fleet.AllocationOut{Allocation: a}, err
		},
		Last: func(ctx context.Context, tx pgx.Tx) error {
			if !placed {
				return nil
			}
			return p.Claim(ctx, tx)
		},
		Made: func(o fleet.AllocationOut) string { return o.Allocation.ID },
	}
}

// findAllocation finds an allocation of the calling tenant, or of a pool that it
// owns.
func (c *Call) findAllocation(ref *store.AllocationRef, id string) func(ctx context.Context, q store.Reader) (Target, error) {
	return func(ctx context.Context, q store.Reader) (Target, error) {
		var err error
		*ref, err = store.LoadAllocationRef(ctx, q, c.TenantID, id)
		return allocationTarget(c.TenantID, id, ref.PoolID, ref.NodeID), err
	}
}

func allocationTarget(tenantID, id, poolID, nodeID string) Target {
	return Target{Kind: fleet.OnAllocation, ID: id, OwnerTenant: tenantID, PoolID: poolID, NodeID: nodeID}
}

func allocationsGet(ctx context.Context, c *Call, in fleet.AllocationIn) (fleet.AllocationOut, error) {
	var ref store.AllocationRef
	return Read(ctx, c, "", c.findAllocation(&ref, in.AllocationID), func(ctx context.Context, q store.Reader, _ Target) (fleet.AllocationOut, error) {
		a, err := store.LoadAllocation(ctx, q, in.AllocationID)
		return fleet.AllocationOut{Allocation: a}, err
	})
}

func allocationsPage(in fleet.AllocationsListIn) (pager, error) {
	filters := in
	filters.PageIn = fleet.PageIn{}
	return newPager("allocations/list", in.PageIn, filters, idCursor("allocationId"))
}

func allocationsList(ctx context.Context, c *Call, in fleet.AllocationsListIn) (fleet.AllocationsPage, error) {
	pg, err := allocationsPage(in)
	if err != nil {
		return fleet.AllocationsPage{}, err
	}
	return ReadTenant(ctx, c, func(ctx context.Context, q store.Reader, _ Target) (fleet.AllocationsPage, error) {
		list, err := store.ListAllocations(ctx, q, store.AllocationFilter{TenantID: c.TenantID, State: in.State, PoolID: in.PoolID, NodeID: in.NodeID, After: pg.after, Limit: pg.limit})
		if err != nil {
			return fleet.AllocationsPage{}, err
		}
		items, next := cut(pg, list, func(a fleet.Allocation) string { return a.ID })
		out := fleet.AllocationsPage{Items: []fleet.Allocation{}, NextCursor: next}
		for _, a := range items {
			if c.May(fleet.PermAllocationsRead, allocationTarget(c.TenantID, a.ID, a.PoolID, a.NodeID)) {
				out.Items = append(out.Items, a)
			}
		}
		return out, nil
	})
}

// allocationsRelease begins anew when the allocation was placed between the look
// at it and the lock of its node.
func allocationsRelease(ctx context.Context, c *Call, in fleet.AllocationsReleaseIn) (fleet.AllocationOut, error) {
	for {
		out, err := Mutate(ctx, c, releasing(c, in))
		if !errors.Is(err, store.ErrPlaceAgain) {
			return out, err
		}
	}
}

func releasing(c *Call, in fleet.AllocationsReleaseIn) Mutation[fleet.AllocationOut] {
	var ref store.AllocationRef
	var held store.HeldAllocation
	find := c.findAllocation(&ref, in.AllocationID)
	return Mutation[fleet.AllocationOut]{
		Find: func(ctx context.Context, tx pgx.Tx) (Target, error) { return find(ctx, tx) },
		Lock: func(ctx context.Context, tx pgx.Tx) (err error) {
			if ref.State == fleet.AllocationActive {
				if err := store.ShareNode(ctx, tx, ref.NodeID); err != nil {
					return err
				}
			}
			locked := ref.State
			if held, err = store.LockAllocation(ctx, tx, in.AllocationID); err != nil {
				return err
			}
			if held.State == fleet.AllocationActive && locked != fleet.AllocationActive {
				return store.ErrPlaceAgain
			}
			return nil
		},
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.AllocationOut, error) {
			e := store.Ending{Actor: c.Identity, By: c.TenantID, Reason: text(in.Reason)}
			var err error
			switch held.State {
			case fleet.AllocationActive:
				err = store.EndAllocation(ctx, tx, held, fleet.AllocationReleased, e)
			case fleet.AllocationQueued:
				err = store.EndAllocation(ctx, tx, held, fleet.AllocationCancelled, e)
			case fleet.AllocationReleased, fleet.AllocationExpired, fleet.AllocationCancelled:
				// It has ended: that is what the caller wants.
			}
			if err != nil {
				return fleet.AllocationOut{}, err
			}
			a, err := store.LoadAllocation(ctx, tx, in.AllocationID)
			return fleet.AllocationOut{Allocation: a}, err
		},
		Last: func(ctx context.Context, tx pgx.Tx) error { return store.GiveBack(ctx, tx, held) },
	}
}
