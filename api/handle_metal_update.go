package api

import (
	"context"
	"reflect"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// updateInput checks what needs no row of metal/update.
func updateInput(in fleet.MetalUpdateIn) error {
	switch {
	case in.Name == nil && in.PoolID == nil && in.BootMACAddress == nil && in.BMC == nil && in.AcceptIdentity == nil:
		return fleet.Invalid("name", "at least one of name, poolId, bootMacAddress, bmc, acceptIdentity")
	case in.AcceptIdentity != nil && in.AcceptIdentity.UUID == nil && in.AcceptIdentity.Serial == nil:
		return fleet.Invalid("acceptIdentity", "at least one of uuid, serial")
	case in.BMC == nil:
		return nil
	case in.BMC.TLS != nil && in.BMC.TLS.CA != nil && !certificates(*in.BMC.TLS.CA):
		return fleet.Invalid("bmc.tls.ca", "PEM certificates")
	case in.BMC.TLS != nil && in.BMC.TLS.Fingerprint != nil && in.BMC.TLS.Mode != nil && *in.BMC.TLS.Mode != "pin":
		return fleet.Invalid("bmc.tls.fingerprint", "given with mode pin only")
	case in.BMC.Address != nil:
		_, err := bmcAddress(*in.BMC.Address, text(in.BMC.Driver), "bmc.")
		return err
	}
	return nil
}

// metalUpdate changes what a person says of a machine. It leaves a parked
// operation parked: it is how a person mends what stopped it.
func metalUpdate(ctx context.Context, c *Call, in fleet.MetalUpdateIn) (fleet.MetalChangeOut, error) {
	u := &updating{c: c, in: in}
	m := Mutation[fleet.MetalChangeOut]{
		NodeID: in.NodeID, Find: c.OnNode(in.NodeID), Lock: LockNode(in.NodeID), Version: in.Version, Present: NodeVersion(in.NodeID),
		Before: u.lockPools, Input: u.input, Judge: u.judge, Change: u.change,
	}
	if in.DryRun {
		m.DryRun = func(ctx context.Context, tx pgx.Tx) (fleet.MetalChangeOut, error) {
			// The same writes find the same conflicts; they are rolled back.
			_, err := u.change(ctx, tx)
			return unmoved(u.node), err
		}
	}
	return Mutate(ctx, c, m)
}

// unmoved is a dry run's answer of a change that starts nothing.
func unmoved(node fleet.MetalNode) fleet.MetalChangeOut {
	return fleet.MetalChangeOut{Node: node, Plan: &fleet.Plan{Steps: []fleet.PlanStep{}, WouldBe: node.ProvisionState}}
}

// updating is one metal/update.
type updating struct {
	c    *Call
	in   fleet.MetalUpdateIn
	node fleet.MetalNode
	// fromPool is the pool whose lock was taken before the node's.
	fromPool  string
	hasBMC    bool
	bmc, next store.BMCRecord
	mac       *string
	pool      fleet.Pool
}

// lockPools takes the locks of the pools the node leaves and enters, in the
// order of their ids, before the node's.
func (u *updating) lockPools(ctx context.Context, tx pgx.Tx) error {
	if u.in.PoolID == nil {
		return nil
	}
	p, err := store.LoadNodeParents(ctx, tx, u.c.TenantID, u.in.NodeID)
	if err != nil {
		return err
	}
	u.fromPool = p.PoolID
	ids := []string{*u.in.PoolID}
	if p.PoolID != "" {
		ids = append(ids, p.PoolID)
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if err := store.LockPool(ctx, tx, id, true); err != nil {
			return err
		}
	}
	return nil
}

// input checks what needs the row: the pool and the BMC's new settings.
func (u *updating) input(ctx context.Context, tx pgx.Tx) (err error) {
	if u.node, err = store.LoadMetal(ctx, tx, u.in.NodeID); err != nil {
		return err
	}
	if u.in.PoolID != nil {
		if _, err := u.c.ownPool(*u.in.PoolID, &u.pool)(ctx, tx); err != nil {
			return err
		}
		if u.node.PoolID != u.fromPool {
			return fleet.Errorf(fleet.CodeConflict, "pool-changed", "the node changed pools during the call; look at it and decide anew")
		}
	}
	if u.mac, err = store.BootMAC(ctx, tx, u.in.NodeID); err != nil {
		return err
	}
	if u.bmc, u.hasBMC, err = store.LoadBMC(ctx, tx, u.in.NodeID); err != nil {
		return err
	}
	u.next = u.bmc
	if u.in.BMC == nil || !u.hasBMC {
		return nil
	}
	return u.settings(ctx, tx, *u.in.BMC)
}

// settings applies the given members to the BMC's.
func (u *updating) settings(ctx context.Context, tx pgx.Tx, in fleet.BMCUpdateIn) error {
	set(&u.next.Driver, in.Driver)
	set(&u.next.LegacyTLS, in.LegacyTLS)
	if in.IPMI != nil {
		u.next.CipherSuites = in.IPMI.CipherSuites
	}
	if in.Address != nil || in.Driver != nil {
		written := u.bmc.Address.String() + u.bmc.Address.System
		set(&written, in.Address)
		address, err := bmcAddress(written, u.next.Driver, "bmc.")
		if err != nil {
			return err
		}
		site, err := store.LoadSite(ctx, tx, u.node.TenantID, u.node.SiteID)
		if err != nil {
			return err
		}
		if err := inNetworks(address, site.AllowedNetworks, "bmc.address"); err != nil {
			return err
		}
		u.next.Address = address
	}
	u.trust(in.TLS)
	return notInTheClear(u.next.Address, u.next.TLSMode, "bmc.address")
}

// trust applies the given members of the trust in the certificate.
func (u *updating) trust(in *fleet.BMCTLSUpdateIn) {
	if in == nil {
		return
	}
	mode := u.bmc.TLSMode
	set(&mode, in.Mode)
	if in.Fingerprint != nil {
		mode = "pin" // it is what pin compares
	}
	if mode != u.bmc.TLSMode {
		u.next.TLSMode, u.next.CA, u.next.Fingerprint = mode, nil, nil
	}
	if in.CA != nil {
		u.next.CA = in.CA
	}
	if in.Fingerprint != nil {
		u.next.Fingerprint = in.Fingerprint
	}
}

// judge asks the provision table, and keeps a pool's rules: same site, fitting
// GPUs, nothing allocated.
func (u *updating) judge(ctx context.Context, tx pgx.Tx) error {
	if _, err := judge(ctx, tx, u.in.NodeID, fleet.Ask{Verb: fleet.VerbUpdate, Reason: text(u.in.Reason)}); err != nil {
		return err
	}
	if (u.in.BMC != nil || u.in.AcceptIdentity != nil) && !u.hasBMC {
		return fleet.Errorf(fleet.CodeInvalidState, "no-bmc", "the node has no BMC recorded")
	}
	if a := u.in.AcceptIdentity; a != nil && a.UUID != nil {
		if err := store.IdentityFree(ctx, tx, u.node.SiteID, u.in.NodeID, *a.UUID); err != nil {
			return err
		}
	}
	if u.in.PoolID == nil || u.node.PoolID == u.pool.ID {
		return nil
	}
	return takes(ctx, tx, u.pool, u.node)
}

func (u *updating) change(ctx context.Context, tx pgx.Tx) (fleet.MetalChangeOut, error) {
	changed := u.changed()
	if len(changed) == 0 {
		return fleet.MetalChangeOut{Node: u.node}, nil
	}
	before, err := store.Audience(ctx, tx, u.in.NodeID)
	if err != nil {
		return fleet.MetalChangeOut{}, err
	}
	if err := u.write(ctx, tx); err != nil {
		return fleet.MetalChangeOut{}, err
	}
	node, err := store.LoadMetal(ctx, tx, u.in.NodeID)
	if err != nil {
		return fleet.MetalChangeOut{}, err
	}
	after, err := store.Audience(ctx, tx, u.in.NodeID)
	if err != nil {
		return fleet.MetalChangeOut{}, err
	}
	event := store.EventIn{Type: "node.updated", NodeID: u.in.NodeID, TenantID: node.TenantID, Audience: union(before, after),
		Private: !slices.Contains(changed, "name") && !slices.Contains(changed, "poolId"),
		Actor:   u.c.Identity, Version: node.Version, Data: because(u.in.Reason, map[string]any{"changed": changed})}
	return fleet.MetalChangeOut{Node: node}, store.AddEvents(ctx, tx, append(u.accepted(node), event)...)
}

// write stores what changed.
func (u *updating) write(ctx context.Context, tx pgx.Tx) error {
	if !reflect.DeepEqual(u.bmc, u.next) {
		if err := store.UpdateBMC(ctx, tx, u.next); err != nil {
			return err
		}
	}
	if a := u.in.AcceptIdentity; a != nil {
		if err := store.AcceptIdentity(ctx, tx, u.in.NodeID, text(a.UUID), text(a.Serial)); err != nil {
			return err
		}
	}
	mac := u.mac
	if u.in.BootMACAddress != nil {
		mac = u.in.BootMACAddress
	}
	_, err := store.DescribeNode(ctx, tx, u.in.NodeID, or(u.in.Name, u.node.Name), or(u.in.PoolID, u.node.PoolID), mac)
	return err
}

// changed names what differs from before, sorted.
func (u *updating) changed() []string {
	out := []string{}
	for _, m := range []struct {
		name    string
		differs bool
	}{
		{"acceptIdentity", u.in.AcceptIdentity != nil},
		{"bmc", !reflect.DeepEqual(u.bmc, u.next)},
		{"bootMacAddress", u.in.BootMACAddress != nil && !sameMAC(*u.in.BootMACAddress, u.mac)},
		{"name", u.in.Name != nil && *u.in.Name != u.node.Name},
		{"poolId", u.in.PoolID != nil && *u.in.PoolID != u.node.PoolID},
	} {
		if m.differs {
			out = append(out, m.name)
		}
	}
	return out
}

// accepted are the events of a trust that a person gave: a certificate, or a
// repaired machine's identity.
func (u *updating) accepted(node fleet.MetalNode) []store.EventIn {
	var out []store.EventIn
	add := func(typ string, data map[string]any) {
		out = append(out, store.EventIn{Type: typ, NodeID: node.ID, TenantID: node.TenantID, Private: true, Actor: u.c.Identity, Version: node.Version,
			Data: because(u.in.Reason, data)})
	}
	if u.next.TLSMode == "pin" && text(u.next.Fingerprint) != text(u.bmc.Fingerprint) {
		add("security.bmc.certificate-accepted", given(map[string]any{}, "fingerprint", text(u.next.Fingerprint), "before", text(u.bmc.Fingerprint)))
	}
	if a := u.in.AcceptIdentity; a != nil {
		add("security.bmc.identity-accepted", given(map[string]any{"before": u.node.BMC.Identity}, "uuid", text(a.UUID), "serial", text(a.Serial)))
	}
	return out
}

// or is the given value, else the present one, nil when that is empty.
func or(given *string, present string) *string {
	if given != nil || present == "" {
		return given
	}
	return &present
}
