package api

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// poolChange is what the owner's mutations of a pool share: the pool's lock,
// which keeps allocations and reservations out meanwhile, then its row's.
func poolChange(c *Call, poolID string, version *int64, pool *fleet.Pool) Mutation[fleet.PoolOut] {
	return Mutation[fleet.PoolOut]{
		Find:    c.ownPool(poolID, pool),
		Before:  func(ctx context.Context, tx pgx.Tx) error { return store.LockPool(ctx, tx, poolID, true) },
		Lock:    func(ctx context.Context, tx pgx.Tx) error { return store.LockPoolRow(ctx, tx, poolID) },
		Version: version,
		Present: func(context.Context, pgx.Tx) (int64, error) { return pool.Version, nil },
	}
}

// poolAnswer reads a pool as it is now and writes the event of its change.
func (c *Call) poolAnswer(ctx context.Context, tx pgx.Tx, poolID, event string, audience []string, data map[string]any) (fleet.PoolOut, error) {
	pool, err := store.LoadPool(ctx, tx, c.TenantID, poolID)
	if err != nil {
		return fleet.PoolOut{}, err
	}
	data["poolId"] = poolID
	e := c.event(event, pool.Version, data)
	e.Audience = audience
	return fleet.PoolOut{Pool: pool}, store.AddEvents(ctx, tx, e)
}

func poolActive(p fleet.Pool) error {
	if p.State == "active" {
		return nil
	}
	return fleet.Errorf(fleet.CodeInvalidState, "pool-archived", "the pool is archived, which is for good: create another")
}

// poolsUpdateInput checks what needs no row of pools/update.
func poolsUpdateInput(in fleet.PoolsUpdateIn) error {
	if in.Name == nil && in.GPUModel == nil && in.GPUsPerNode == nil && (in.Policy == nil || *in.Policy == fleet.PoolPolicyChange{}) {
		return fleet.Invalid("name", "at least one of name, gpuModel, gpusPerNode, policy")
	}
	return nil
}

func poolsUpdate(ctx context.Context, c *Call, in fleet.PoolsUpdateIn) (fleet.PoolOut, error) {
	var pool fleet.Pool
	var next store.PoolChange
	m := poolChange(c, in.PoolID, &in.Version, &pool)
	m.Judge = func(ctx context.Context, tx pgx.Tx) error {
		if err := poolActive(pool); err != nil {
			return err
		}
		next = store.PoolChange{Name: pool.Name, GPUModel: pool.GPUModel, GPUsPerNode: pool.GPUsPerNode, Policy: pool.Policy}
		set(&next.Name, in.Name)
		set(&next.GPUModel, in.GPUModel)
		set(&next.GPUsPerNode, in.GPUsPerNode)
		if p := in.Policy; p != nil {
			set(&next.Policy.EraseOnRelease, p.EraseOnRelease)
			set(&next.Policy.Placement, p.Placement)
			if p.MaxReservationHours != nil {
				next.Policy.MaxReservationHours = p.MaxReservationHours
			}
		}
		if next.GPUModel == pool.GPUModel && next.GPUsPerNode == pool.GPUsPerNode {
			return nil
		}
		return c.nodesFit(ctx, tx, pool, next)
	}
	m.Change = func(ctx context.Context, tx pgx.Tx) (fleet.PoolOut, error) {
		changed := []string{}
		for name, differs := range map[string]bool{"name": next.Name != pool.Name, "gpuModel": next.GPUModel != pool.GPUModel,
			"gpusPerNode": next.GPUsPerNode != pool.GPUsPerNode, "policy": !reflect.DeepEqual(next.Policy, pool.Policy)} {
			if differs {
				changed = append(changed, name)
			}
		}
		if len(changed) == 0 {
			return fleet.PoolOut{Pool: pool}, nil
		}
		slices.Sort(changed)
		if err := store.UpdatePool(ctx, tx, in.PoolID, next); err != nil {
			return fleet.PoolOut{}, err
		}
		audience, err := store.PoolAudience(ctx, tx, in.PoolID)
		if err != nil {
			return fleet.PoolOut{}, err
		}
		return c.poolAnswer(ctx, tx, in.PoolID, "pool.updated", audience, because(in.Reason, map[string]any{"changed": changed}))
	}
	return Mutate(ctx, c, m)
}

// nodesFit refuses GPUs that a node of the pool with an inventory does not have.
func (c *Call) nodesFit(ctx context.Context, tx pgx.Tx, pool fleet.Pool, next store.PoolChange) error {
	site, err := store.LoadSite(ctx, tx, pool.TenantID, pool.SiteID)
	if err != nil {
		return err
	}
	inventories, err := store.PoolInventories(ctx, tx, pool.ID)
	if err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(inventories)) {
		if why := fleet.GPUMismatch(inventories[id], next.GPUModel, next.GPUsPerNode, site.GPUModelNames); why != "" {
			return fleet.Errorf(fleet.CodeInvalidState, "gpus-differ", "node %s does not fit: %s", id, why).With("nodeId", id)
		}
	}
	return nil
}

// stillHas says in a refusal what is still there, by kind and id.
func stillHas(reason, what string, h store.PoolHolds) error {
	var parts []string
	e := fleet.Errorf(fleet.CodeInvalidState, reason, "%s", "")
	for _, k := range []struct {
		name, then string
		ids        []string
	}{
		{"nodes", "pools/removeNode", h.Nodes}, {"reservations", "reservations/cancel", h.Reservations}, {"allocations", "allocations/release", h.Allocations},
	} {
		if len(k.ids) > 0 {
			parts = append(parts, fmt.Sprintf("%s (end them with %s): %s", k.name, k.then, strings.Join(k.ids, ", ")))
			_ = e.With(k.name, k.ids)
		}
	}
	if len(parts) == 0 {
		return nil
	}
	e.Detail = what + " " + strings.Join(parts, "; ")
	return e
}

func poolsArchive(ctx context.Context, c *Call, in fleet.PoolVersionIn) (fleet.PoolOut, error) {
	var pool fleet.Pool
	m := poolChange(c, in.PoolID, &in.Version, &pool)
	m.Judge = func(ctx context.Context, tx pgx.Tx) error {
		h, err := store.LoadPoolHolds(ctx, tx, in.PoolID, "")
		if err != nil {
			return err
		}
		return stillHas("pool-in-use", "the pool still has", h)
	}
	m.Change = func(ctx context.Context, tx pgx.Tx) (fleet.PoolOut, error) {
		if pool.State != "active" {
			return fleet.PoolOut{Pool: pool}, nil
		}
		if err := store.ArchivePool(ctx, tx, in.PoolID); err != nil {
			return fleet.PoolOut{}, err
		}
		if err := store.CancelQueued(ctx, tx, store.QueuedOf{PoolID: in.PoolID}, store.Ending{Actor: c.Identity, By: c.TenantID, Because: "the pool was archived"}); err != nil {
			return fleet.PoolOut{}, err
		}
		audience, err := store.PoolAudience(ctx, tx, in.PoolID)
		if err != nil {
			return fleet.PoolOut{}, err
		}
		return c.poolAnswer(ctx, tx, in.PoolID, "pool.archived", audience, because(in.Reason, nil))
	}
	return Mutate(ctx, c, m)
}

// offerInput refuses to offer a pool to its owner: who calls owns it, or does
// not see it.
func offerInput(in fleet.PoolOfferIn) error {
	if in.ToTenantID == in.TenantID {
		return fleet.Invalid("toTenantId", "a tenant other than the pool's owner, which needs no offer")
	}
	return nil
}

func poolsOffer(ctx context.Context, c *Call, in fleet.PoolsOfferIn) (fleet.PoolOut, error) {
	var pool fleet.Pool
	m := poolChange(c, in.PoolID, nil, &pool)
	m.Input = func(ctx context.Context, tx pgx.Tx) error { return store.TenantExists(ctx, tx, in.ToTenantID) }
	m.Judge = func(ctx context.Context, tx pgx.Tx) error {
		if err := poolActive(pool); err != nil || in.Force {
			return err
		}
		peak, err := store.LoadPeak(ctx, tx, in.PoolID, in.ToTenantID, time.Now(), nil)
		if err != nil || peak <= in.Quota.GPUs {
			return err
		}
		return fleet.Errorf(fleet.CodeInvalidState, "quota-below-use", "tenant %s holds or has reserved up to %d GPUs, more than a quota of %d; wait until it is below, or pass force: true, which lets it keep them and admits no more",
			in.ToTenantID, peak, in.Quota.GPUs).With("used", peak)
	}
	m.Change = func(ctx context.Context, tx pgx.Tx) (fleet.PoolOut, error) {
		for _, o := range pool.Offers {
			if o.TenantID == in.ToTenantID && o.Quota == in.Quota {
				return fleet.PoolOut{Pool: pool}, nil
			}
		}
		if err := store.SetOffer(ctx, tx, in.PoolID, in.ToTenantID, in.Quota.GPUs); err != nil {
			return fleet.PoolOut{}, err
		}
		return c.poolAnswer(ctx, tx, in.PoolID, "pool.offered", []string{c.TenantID, in.ToTenantID},
			because(in.Reason, map[string]any{"toTenantId": in.ToTenantID, "quota": in.Quota}))
	}
	return Mutate(ctx, c, m)
}

func poolsUnoffer(ctx context.Context, c *Call, in fleet.PoolOfferIn) (fleet.PoolOut, error) {
	var pool fleet.Pool
	m := poolChange(c, in.PoolID, nil, &pool)
	m.Judge = func(ctx context.Context, tx pgx.Tx) error {
		h, err := store.LoadPoolHolds(ctx, tx, in.PoolID, in.ToTenantID)
		if err != nil {
			return err
		}
		return stillHas("tenant-holds", "tenant "+in.ToTenantID+" still has", h)
	}
	m.Change = func(ctx context.Context, tx pgx.Tx) (fleet.PoolOut, error) {
		if err := store.CancelQueued(ctx, tx, store.QueuedOf{PoolID: in.PoolID, TenantID: in.ToTenantID},
			store.Ending{Actor: c.Identity, By: c.TenantID, Because: "the pool is no longer offered to this tenant"}); err != nil {
			return fleet.PoolOut{}, err
		}
		was, err := store.DeleteOffer(ctx, tx, in.PoolID, in.ToTenantID)
		if err != nil || !was {
			return fleet.PoolOut{Pool: pool}, err
		}
		return c.poolAnswer(ctx, tx, in.PoolID, "pool.unoffered", []string{c.TenantID, in.ToTenantID}, because(in.Reason, map[string]any{"toTenantId": in.ToTenantID}))
	}
	return Mutate(ctx, c, m)
}
