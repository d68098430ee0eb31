package api

import (
	"context"
	"slices"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

func (c *Call) metalOut(ctx context.Context, q store.Reader, nodeID string) (fleet.MetalOut, error) {
	n, err := store.LoadMetal(ctx, q, nodeID)
	return fleet.MetalOut{Node: n}, err
}

func metalGet(ctx context.Context, c *Call, in fleet.NodesGetIn) (fleet.MetalOut, error) {
	return ReadNode(ctx, c, in.NodeID, func(ctx context.Context, q store.Reader, _ Target) (fleet.MetalOut, error) {
		return c.metalOut(ctx, q, in.NodeID)
	})
}

// metalPage reads the page and checks the address that is looked for.
func metalPage(in fleet.MetalListIn) (pager, error) {
	if in.BMCAddress != nil {
		if _, err := fleet.ParseBMCAddress(*in.BMCAddress); err != nil {
			return pager{}, fleet.Invalid("bmcAddress", err.Error())
		}
	}
	filters := in
	filters.PageIn = fleet.PageIn{}
	return newPager("metal/list", in.PageIn, filters, idCursor("nodeId"))
}

func metalList(ctx context.Context, c *Call, in fleet.MetalListIn) (fleet.MetalPage, error) {
	pg, err := metalPage(in)
	if err != nil {
		return fleet.MetalPage{}, err
	}
	f := store.MetalFilter{NodeFilter: store.NodeFilter{TenantID: c.TenantID, PoolID: in.PoolID, SiteID: in.SiteID, Cordoned: in.Cordoned,
		ProvisionState: in.ProvisionState, After: pg.after, Limit: pg.limit},
		Name: in.Name, Serial: in.Serial, MAC: in.MAC, Labels: in.Labels, FailedFrom: in.FailedFrom}
	if in.BMCAddress != nil {
		address, err := fleet.ParseBMCAddress(*in.BMCAddress)
		if err != nil {
			return fleet.MetalPage{}, fleet.Invalid("bmcAddress", err.Error())
		}
		f.Address = &address
	}
	return ReadTenant(ctx, c, func(ctx context.Context, q store.Reader, _ Target) (fleet.MetalPage, error) {
		list, err := store.ListMetal(ctx, q, f)
		if err != nil {
			return fleet.MetalPage{}, err
		}
		items, next := cut(pg, list, func(n fleet.MetalNode) string { return n.ID })
		out := fleet.MetalPage{Items: []fleet.MetalNode{}, NextCursor: next}
		for _, n := range items {
			if c.May(fleet.PermMetalRead, nodeTarget(n.Node)) {
				out.Items = append(out.Items, n)
			}
		}
		return out, nil
	})
}

func metalTable(ctx context.Context, c *Call, _ fleet.TenantIn) (fleet.TableOut, error) {
	return ReadTenant(ctx, c, func(context.Context, store.Reader, Target) (fleet.TableOut, error) {
		items := slices.Clone(fleet.Table)
		for i := range items {
			if items[i].Admits == nil {
				items[i].Admits = []fleet.Verb{} // a list, and not null
			}
		}
		return fleet.TableOut{Items: items}, nil
	})
}
