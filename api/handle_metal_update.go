package api

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// metalUpdate changes what a person says of a machine. It leaves a parked
// operation parked: it is how a person mends what stopped it.
func metalUpdate(ctx context.Context, c *Call, in fleet.MetalUpdateIn) (fleet.MetalOut, error) {
	if in.Name == nil && in.PoolID == nil && in.BootMACAddress == nil && in.BMC == nil && in.AcceptIdentity == nil {
		return fleet.MetalOut{}, fleet.Invalid("name", "at least one of name, poolId, bootMacAddress, bmc, acceptIdentity")
	}
	u := &updating{c: c, in: in}
	m := Mutation[fleet.MetalOut]{
		NodeID: in.NodeID, Find: c.OnNode(in.NodeID), Lock: LockNode(in.NodeID), Version: in.Version, Present: NodeVersion(in.NodeID),
		Before: func(ctx context.Context, tx pgx.Tx) error {
			if in.PoolID == nil {
				return nil
			}
			return store.LockPool(ctx, tx, *in.PoolID, true)
		},
		Input: u.input,
		Judge: func(ctx context.Context, tx pgx.Tx) error {
			if _, err := judge(ctx, tx, in.NodeID, fleet.Ask{Verb: fleet.VerbUpdate, Reason: text(in.Reason)}); err != nil {
				return err
			}
			return u.judgePool(ctx, tx)
		},
		Change: u.change,
	}
	if in.DryRun {
		m.DryRun = u.change // the same writes find the same conflicts; they are rolled back
	}
	return Mutate(ctx, c, m)
}

// updating is one metal/update.
type updating struct {
	c    *Call
	in   fleet.MetalUpdateIn
	node fleet.MetalNode
	bmc  store.BMCRecord
	pool fleet.Pool
}

// input checks what needs the row: the BMC's new settings and the pool.
func (u *updating) input(ctx context.Context, tx pgx.Tx) (err error) {
	if u.node, err = store.LoadMetal(ctx, tx, u.in.NodeID); err != nil {
		return err
	}
	if u.in.PoolID != nil {
		if u.pool, err = store.LoadPool(ctx, tx, u.c.TenantID, *u.in.PoolID); err != nil {
			return err
		}
		if u.pool.TenantID != u.node.TenantID {
			return fleet.NotFound("pool")
		}
	}
	if u.in.BMC == nil && u.in.AcceptIdentity == nil {
		return nil
	}
	var there bool
	if u.bmc, there, err = store.LoadBMC(ctx, tx, u.in.NodeID); err != nil {
		return err
	}
	if !there {
		return fleet.Errorf(fleet.CodeInvalidState, "no-bmc", "the node has no BMC recorded")
	}
	if u.in.BMC == nil {
		return nil
	}
	return u.applyBMC(ctx, tx, *u.in.BMC)
}

func (u *updating) applyBMC(ctx context.Context, tx pgx.Tx, in fleet.BMCUpdateIn) error {
	if in.Address != nil {
		address, err := fleet.ParseBMCAddress(*in.Address)
		if err != nil {
			return fleet.Invalid("bmc.address", err.Error())
		}
		site, err := store.LoadSite(ctx, tx, u.node.TenantID, u.node.SiteID)
		if err != nil {
			return err
		}
		if err := inNetworks(address, site.AllowedNetworks, "bmc.address"); err != nil {
			return err
		}
		u.bmc.Address = address
	}
	set(&u.bmc.Driver, in.Driver)
	set(&u.bmc.LegacyTLS, in.LegacyTLS)
	if in.TLS != nil {
		if in.TLS.Mode != u.bmc.TLSMode {
			u.bmc.CA, u.bmc.Fingerprint = nil, nil
		}
		u.bmc.TLSMode = in.TLS.Mode
		if in.TLS.CA != nil {
			u.bmc.CA = in.TLS.CA
		}
		if in.TLS.Fingerprint != nil {
			u.bmc.Fingerprint = in.TLS.Fingerprint
			// A fingerprint is what pin compares: giving one means pin.
			u.bmc.TLSMode = "pin"
		}
	}
	if in.IPMI != nil {
		u.bmc.CipherSuites = in.IPMI.CipherSuites
	}
	return nil
}

// judgePool keeps a pool's rules: same site, fitting GPUs, nothing allocated.
func (u *updating) judgePool(ctx context.Context, tx pgx.Tx) error {
	if u.in.PoolID == nil || u.node.PoolID == u.pool.ID {
		return nil
	}
	if u.pool.State != "active" {
		return fleet.Errorf(fleet.CodeInvalidState, "pool-archived", "the pool is archived")
	}
	if u.pool.SiteID != u.node.SiteID {
		return fleet.Errorf(fleet.CodeInvalidState, "other-site", "the node is in site %s, the pool in %s", u.node.SiteID, u.pool.SiteID)
	}
	if err := noAllocations(ctx, tx, u.node.ID); err != nil {
		return err
	}
	return gpusFit(ctx, tx, u.c.TenantID, u.pool, u.node)
}

func (u *updating) change(ctx context.Context, tx pgx.Tx) (fleet.MetalOut, error) {
	before, err := store.Audience(ctx, tx, u.in.NodeID)
	if err != nil {
		return fleet.MetalOut{}, err
	}
	if u.in.BMC != nil {
		if err := store.UpdateBMC(ctx, tx, u.bmc); err != nil {
			return fleet.MetalOut{}, err
		}
	}
	if a := u.in.AcceptIdentity; a != nil {
		if err := store.AcceptIdentity(ctx, tx, u.in.NodeID, text(a.UUID), text(a.Serial)); err != nil {
			return fleet.MetalOut{}, err
		}
	}
	mac := u.in.BootMACAddress
	if mac == nil {
		if mac, err = store.BootMAC(ctx, tx, u.in.NodeID); err != nil {
			return fleet.MetalOut{}, err
		}
	}
	if _, err := store.DescribeNode(ctx, tx, u.in.NodeID, or(u.in.Name, u.node.Name), or(u.in.PoolID, u.node.PoolID), mac); err != nil {
		return fleet.MetalOut{}, err
	}
	out, err := u.c.metalOut(ctx, tx, u.in.NodeID)
	if err != nil {
		return out, err
	}
	after, err := store.Audience(ctx, tx, u.in.NodeID)
	if err != nil {
		return out, err
	}
	return out, store.AddEvents(ctx, tx, store.EventIn{Type: "node.updated", NodeID: u.in.NodeID, TenantID: u.node.TenantID, Audience: union(before, after),
		Actor: u.c.Identity, Version: out.Node.Version, Data: because(u.in.Reason, map[string]any{"changed": u.changed()})})
}

// changed names what the call gave, for the event.
func (u *updating) changed() []string {
	out := []string{}
	for name, given := range map[string]bool{"name": u.in.Name != nil, "poolId": u.in.PoolID != nil, "bootMacAddress": u.in.BootMACAddress != nil,
		"bmc": u.in.BMC != nil, "acceptIdentity": u.in.AcceptIdentity != nil} {
		if given {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// or is the given value, else the present one, nil when that is empty.
func or(given *string, present string) *string {
	if given != nil || present == "" {
		return given
	}
	return &present
}
