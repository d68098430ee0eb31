package api

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

func registerPools(r *Registry) {
	Handle(r, "pools", "create", poolsCreate)
	Handle(r, "pools", "get", poolsGet)
	Handle(r, "pools", "list", poolsList, paged(poolsPage))
	Handle(r, "pools", "addNode", poolsAddNode)
	Handle(r, "pools", "removeNode", poolsRemoveNode)
	Handle(r, "pools", "update", poolsUpdate, poolsUpdateInput)
	Handle(r, "pools", "archive", poolsArchive)
	Handle(r, "pools", "offer", poolsOffer, func(in fleet.PoolsOfferIn) error { return offerInput(in.PoolOfferIn) })
	Handle(r, "pools", "unoffer", poolsUnoffer, offerInput)
}

func poolsCreate(ctx context.Context, c *Call, in fleet.PoolsCreateIn) (fleet.PoolOut, error) {
	if in.SharingMode == "shared" {
		return fleet.PoolOut{}, fleet.Errorf(fleet.CodeUnsupported, "shared-gpus", "shared GPUs are not in this release; use sharingMode exclusive")
	}
	policy := fleet.PoolPolicy{Placement: "spread"}
	set(&policy, in.Policy)
	return Mutate(ctx, c, Mutation[fleet.PoolOut]{
		Find: c.FindTenant,
		Input: func(ctx context.Context, tx pgx.Tx) error {
			_, err := store.LoadSite(ctx, tx, c.TenantID, in.SiteID)
			return err
		},
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.PoolOut, error) {
			id := store.NewID(fleet.KindPool)
			err := store.InsertPool(ctx, tx, store.NewPool{ID: id, TenantID: c.TenantID, SiteID: in.SiteID, Name: in.Name, GPUModel: in.GPUModel,
				GPUsPerNode: in.GPUsPerNode, SharingMode: in.SharingMode, Policy: policy})
			if err != nil {
				return fleet.PoolOut{}, err
			}
			pool, err := store.LoadPool(ctx, tx, c.TenantID, id)
			if err != nil {
				return fleet.PoolOut{}, err
			}
			return fleet.PoolOut{Pool: pool}, store.AddEvents(ctx, tx, c.event("pool.created", pool.Version, map[string]any{"poolId": id, "name": in.Name}))
		},
		Made: func(o fleet.PoolOut) string { return o.Pool.ID },
	})
}

func poolTarget(p fleet.Pool) Target {
	return Target{Kind: fleet.OnPool, ID: p.ID, OwnerTenant: p.TenantID, PoolID: p.ID}
}

func poolsGet(ctx context.Context, c *Call, in fleet.PoolIn) (fleet.PoolOut, error) {
	var pool fleet.Pool
	return Read(ctx, c, "", func(ctx context.Context, q store.Reader) (Target, error) {
		var err error
		pool, err = store.LoadPool(ctx, q, c.TenantID, in.PoolID)
		return poolTarget(pool), err
	}, func(context.Context, store.Reader, Target) (fleet.PoolOut, error) {
		return fleet.PoolOut{Pool: pool}, nil
	})
}

func poolsPage(in fleet.PoolsListIn) (pager, error) {
	filters := in
	filters.PageIn = fleet.PageIn{}
	return newPager("pools/list", in.PageIn, filters, idCursor("poolRef"))
}

func poolsList(ctx context.Context, c *Call, in fleet.PoolsListIn) (fleet.PoolsPage, error) {
	pg, err := poolsPage(in)
	if err != nil {
		return fleet.PoolsPage{}, err
	}
	return ReadTenant(ctx, c, func(ctx context.Context, q store.Reader, _ Target) (fleet.PoolsPage, error) {
		list, err := store.ListPools(ctx, q, store.PoolFilter{TenantID: c.TenantID, SiteID: in.SiteID, State: in.State, After: pg.after, Limit: pg.limit})
		if err != nil {
			return fleet.PoolsPage{}, err
		}
		items, next := cut(pg, list, func(p fleet.Pool) string { return p.ID })
		return fleet.PoolsPage{Items: items, NextCursor: next}, nil
	})
}

// ownPool finds a pool that the calling tenant owns; to every other tenant it
// is not there, even to one that it is offered to.
func (c *Call) ownPool(id string, pool *fleet.Pool) func(ctx context.Context, tx pgx.Tx) (Target, error) {
	return func(ctx context.Context, tx pgx.Tx) (Target, error) {
		p, err := store.LoadPool(ctx, tx, c.TenantID, id)
		if err == nil && p.TenantID != c.TenantID {
			err = fleet.NotFound("pool")
		}
		*pool = p
		return poolTarget(p), err
	}
}

// poolNode is what addNode and removeNode share: the pool's owner, the pool's
// lock before the node's, the node's tenant.
func poolNode(c *Call, in fleet.PoolNodeIn, judge func(ctx context.Context, tx pgx.Tx, pool fleet.Pool, node fleet.MetalNode) error,
	poolID *string, event string) Mutation[fleet.MetalOut] {
	var pool fleet.Pool
	var node fleet.MetalNode
	return Mutation[fleet.MetalOut]{
		NodeID: in.NodeID,
		Find:   c.ownPool(in.PoolID, &pool),
		Before: func(ctx context.Context, tx pgx.Tx) error { return store.LockPool(ctx, tx, in.PoolID, true) },
		Lock: func(ctx context.Context, tx pgx.Tx) error {
			if _, err := c.findNode(ctx, tx, in.NodeID); err != nil {
				return err
			}
			return store.LockNode(ctx, tx, in.NodeID)
		},
		Input: func(ctx context.Context, tx pgx.Tx) (err error) {
			if node, err = store.LoadMetal(ctx, tx, in.NodeID); err != nil {
				return err
			}
			if node.TenantID != c.TenantID {
				return fleet.NotFound("node")
			}
			return nil
		},
		Version: in.Version,
		Present: NodeVersion(in.NodeID),
		Judge:   func(ctx context.Context, tx pgx.Tx) error { return judge(ctx, tx, pool, node) },
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.MetalOut, error) {
			before, err := store.Audience(ctx, tx, in.NodeID)
			if err != nil {
				return fleet.MetalOut{}, err
			}
			if err := store.SetNodePool(ctx, tx, in.NodeID, poolID); err != nil {
				return fleet.MetalOut{}, err
			}
			after, err := store.Audience(ctx, tx, in.NodeID)
			if err != nil {
				return fleet.MetalOut{}, err
			}
			out, err := c.metalOut(ctx, tx, in.NodeID)
			if err != nil {
				return out, err
			}
			return out, store.AddEvents(ctx, tx, store.EventIn{Type: event, NodeID: in.NodeID, TenantID: node.TenantID, Audience: union(before, after),
				Actor: c.Identity, Version: out.Node.Version, Data: because(in.Reason, map[string]any{"poolId": in.PoolID})})
		},
	}
}

func union(a, b []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, s := range append(append([]string{}, a...), b...) {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

func poolsAddNode(ctx context.Context, c *Call, in fleet.PoolNodeIn) (fleet.MetalOut, error) {
	return Mutate(ctx, c, poolNode(c, in, func(ctx context.Context, tx pgx.Tx, pool fleet.Pool, node fleet.MetalNode) error {
		if node.PoolID != "" {
			return fleet.Errorf(fleet.CodeInvalidState, "in-a-pool", "the node is in pool %s; call pools/removeNode there first", node.PoolID).With("poolId", node.PoolID)
		}
		return takes(ctx, tx, pool, node)
	}, &in.PoolID, "node.pool.added"))
}

// takes says whether a pool takes a node: an active pool of the node's site,
// nothing allocated, GPUs that fit.
func takes(ctx context.Context, tx pgx.Tx, pool fleet.Pool, node fleet.MetalNode) error {
	switch {
	case pool.State != "active":
		return fleet.Errorf(fleet.CodeInvalidState, "pool-archived", "the pool is archived")
	case node.ProvisionState == fleet.Retired:
		return fleet.Errorf(fleet.CodeInvalidState, "retired", "the node is retired")
	case node.SiteID != pool.SiteID:
		return fleet.Errorf(fleet.CodeInvalidState, "other-site", "the node is in site %s, the pool in %s", node.SiteID, pool.SiteID)
	}
	if err := noAllocations(ctx, tx, node.ID); err != nil {
		return err
	}
	return gpusFit(ctx, tx, pool.TenantID, pool, node)
}

// gpusFit compares a node's inventory with a pool, by canonical names. Without
// an inventory commission makes the check.
func gpusFit(ctx context.Context, tx pgx.Tx, tenantID string, pool fleet.Pool, node fleet.MetalNode) error {
	if node.Inventory == nil {
		return nil
	}
	site, err := store.LoadSite(ctx, tx, tenantID, pool.SiteID)
	if err != nil {
		return err
	}
	if why := fleet.GPUMismatch(*node.Inventory, pool.GPUModel, pool.GPUsPerNode, site.GPUModelNames); why != "" {
		return fleet.Errorf(fleet.CodeInvalidState, "gpus-differ", "%s", why)
	}
	return nil
}

func noAllocations(ctx context.Context, tx pgx.Tx, nodeID string) error {
	s, err := store.LoadSituation(ctx, tx, nodeID)
	if err != nil || len(s.Allocations) == 0 {
		return err
	}
	return fleet.Errorf(fleet.CodeInvalidState, "allocations-live", "%d live allocation(s) hold this node: release them first", len(s.Allocations)).
		With("allocations", s.Allocations)
}

func poolsRemoveNode(ctx context.Context, c *Call, in fleet.PoolNodeIn) (fleet.MetalOut, error) {
	return Mutate(ctx, c, poolNode(c, in, func(ctx context.Context, tx pgx.Tx, pool fleet.Pool, node fleet.MetalNode) error {
		if node.PoolID != pool.ID {
			return fleet.Errorf(fleet.CodeInvalidState, "not-in-pool", "%s", fmt.Sprintf("the node is not in pool %s", pool.ID))
		}
		return noAllocations(ctx, tx, in.NodeID)
	}, nil, "node.pool.removed"))
}
