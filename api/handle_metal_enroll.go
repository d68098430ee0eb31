package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// bmcRecord makes a BMC's record of an input.
func (c *Call) bmcRecord(nodeID, siteID string, in fleet.BMCIn, address fleet.BMCAddress) (store.BMCRecord, error) {
	b := store.BMCRecord{NodeID: nodeID, SiteID: siteID, Address: address, Driver: in.Driver, Username: in.Username, TLSMode: "verify", LegacyTLS: in.LegacyTLS}
	if in.TLS != nil {
		b.TLSMode, b.CA, b.Fingerprint = in.TLS.Mode, in.TLS.CA, in.TLS.Fingerprint
	}
	if in.IPMI != nil {
		b.CipherSuites = in.IPMI.CipherSuites
	}
	var err error
	b.Password, err = c.Store().SealBMCPassword(nodeID, in.Password)
	return b, err
}

// enrollInput checks what needs no row of metal/enroll.
func enrollInput(in fleet.MetalEnrollIn) error {
	address, err := bmcAddress(in.BMC.Address, in.BMC.Driver, "bmc.")
	if err != nil {
		return err
	}
	if err := ipmiLimits(drivenBy(address, in.BMC.Driver), in.BMC.Username, in.BMC.Password, "bmc."); err != nil {
		return err
	}
	for key := range in.Labels {
		if ownedLabel(key) {
			return fleet.Invalid("labels["+key+"]", "a key that inventory or the system does not own (inventory/, system/)")
		}
	}
	return trustInput(address, in.BMC, "bmc.")
}

func metalEnroll(ctx context.Context, c *Call, in fleet.MetalEnrollIn) (fleet.MetalOperationOut, error) {
	address, err := bmcAddress(in.BMC.Address, in.BMC.Driver, "bmc.")
	if err != nil {
		return fleet.MetalOperationOut{}, err
	}
	chain := []fleet.Verb(nil)
	if in.Advance == string(fleet.Ready) {
		chain = []fleet.Verb{fleet.VerbInspect, fleet.VerbCommission}
	}
	m := Mutation[fleet.MetalOperationOut]{
		Find: c.FindTenant,
		Before: func(ctx context.Context, tx pgx.Tx) error {
			if in.PoolID == nil {
				return nil
			}
			return store.LockPool(ctx, tx, *in.PoolID, false)
		},
		Input: func(ctx context.Context, tx pgx.Tx) error { return c.enrollPlace(ctx, tx, in, address) },
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.MetalOperationOut, error) {
			return c.enroll(ctx, tx, in, address, chain)
		},
		Made:     func(o fleet.MetalOperationOut) string { return o.Operation.ID },
		MadeNode: func(o fleet.MetalOperationOut) string { return o.Node.ID },
	}
	if in.DryRun {
		m.DryRun = func(ctx context.Context, tx pgx.Tx) (fleet.MetalOperationOut, error) {
			// The same writes find the same conflicts; they are rolled back.
			if _, err := c.enroll(ctx, tx, in, address, chain); err != nil {
				return fleet.MetalOperationOut{}, err
			}
			// Nothing is known of the machine's model yet, so no step has an expected time.
			plan := &fleet.Plan{Steps: fleet.StepsOf(fleet.StepsAsk{Verb: fleet.VerbEnroll}), WouldBe: fleet.Enrolling}
			for _, v := range chain {
				plan.Steps = append(plan.Steps, fleet.StepsOf(fleet.StepsAsk{Verb: v, Mode: "outOfBand"})...)
				plan.WouldBe = fleet.Ready
			}
			return fleet.MetalOperationOut{Plan: plan}, nil
		}
	}
	return Mutate(ctx, c, m)
}

// enrollPlace checks what needs the site and the pool.
func (c *Call) enrollPlace(ctx context.Context, tx pgx.Tx, in fleet.MetalEnrollIn, address fleet.BMCAddress) error {
	site, err := store.LoadSite(ctx, tx, c.TenantID, in.SiteID)
	if err != nil {
		return err
	}
	if err := inNetworks(address, site.AllowedNetworks, "bmc.address"); err != nil {
		return err
	}
	if in.PoolID == nil {
		return nil
	}
	pool, err := store.LoadPool(ctx, tx, c.TenantID, *in.PoolID)
	if err != nil {
		return err
	}
	switch {
	case pool.TenantID != c.TenantID:
		return fleet.NotFound("pool")
	case pool.SiteID != in.SiteID:
		return fleet.Invalid("poolId", "a pool of the site "+in.SiteID)
	case pool.State != "active":
		return fleet.Errorf(fleet.CodeInvalidState, "pool-archived", "the pool is archived")
	}
	return nil
}

// enroll writes the node, its BMC and the operation.
func (c *Call) enroll(ctx context.Context, tx pgx.Tx, in fleet.MetalEnrollIn, address fleet.BMCAddress, chain []fleet.Verb) (fleet.MetalOperationOut, error) {
	var out fleet.MetalOperationOut
	nodeID, opID := store.NewID(fleet.KindNode), store.NewID(fleet.KindOperation)
	stored := in
	stored.BMC.Password = ""
	node := store.NewNode{ID: nodeID, TenantID: c.TenantID, SiteID: in.SiteID, PoolID: in.PoolID, Name: in.Name, Labels: in.Labels, BootMAC: in.BootMACAddress,
		MaybeInUse: in.InUse != nil && *in.InUse, OperationID: opID, RequestedBy: c.Identity}
	if err := store.InsertNode(ctx, tx, node); err != nil {
		return out, err
	}
	record, err := c.bmcRecord(nodeID, in.SiteID, in.BMC, address)
	if err != nil {
		return out, err
	}
	if err := store.InsertBMC(ctx, tx, record); err != nil {
		return out, err
	}
	err = c.Store().InsertOperation(ctx, tx, store.NewOperation{ID: opID, NodeID: nodeID, TenantID: c.TenantID, Verb: fleet.VerbEnroll, Lane: store.LaneProvision,
		Input: stored, Chain: chain, RequestedBy: c.Identity, Reason: text(in.Reason)})
	if err != nil {
		return out, err
	}
	return c.verbAnswer(ctx, tx, nodeID, opID, "node.provision.enrolling", because(in.Reason, map[string]any{"verb": "enroll"}))
}
