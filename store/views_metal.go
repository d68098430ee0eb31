package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// metalRow is a node with its hardware, read in one statement.
type metalRow struct {
	nodeRow
	EraseOwed      bool
	MaybeInUse     bool
	Image          *fleet.ImageView
	SkippedDisks   []fleet.DiskErase
	Address        *string
	System         *string
	SystemNamed    *bool
	Driver         *string
	TLSMode        *string
	TLSFingerprint *string
	TLSShown       *string
	CASet          *bool
	CredentialsSet *bool
	Username       *string
	BMCIdentity    *fleet.BMCIdentity
	IdentityShown  *fleet.BMCIdentity
	Capabilities   *fleet.Capabilities
	Quirks         []string
	Reachable      *bool
	LastError      *string
	CheckedAt      *time.Time
	PowerState     *string
	PowerAt        *time.Time
	Inventory      *fleet.Inventory
	InspectedAt    *time.Time
}

const metalColumns = nodeColumns + `,
	n.erase_owed_since IS NOT NULL, n.maybe_in_use, n.image, n.skipped_disks,
	b.address, b.system, b.system_named, b.driver, b.tls_mode, b.tls_fingerprint, b.tls_shown, b.tls_ca IS NOT NULL, b.password IS NOT NULL,
	b.username, b.identity, b.identity_shown, b.capabilities, b.quirks, b.reachable, b.last_error, b.checked_at, b.power_state, b.power_at,
	i.doc, i.inspected_at`

const metalFrom = nodeFrom + ` LEFT JOIN bmcs b ON b.node_id = n.id LEFT JOIN inventories i ON i.node_id = n.id`

func (r *metalRow) metal(now time.Time) fleet.MetalNode {
	m := fleet.MetalNode{Node: r.view(now), Inventory: r.Inventory, InspectedAt: fleet.AtPtr(r.InspectedAt), Image: r.Image,
		EraseOwed: r.EraseOwed, MaybeInUse: r.MaybeInUse, SkippedDisks: r.SkippedDisks}
	if r.Address != nil {
		m.BMC = r.bmc()
	}
	if r.PowerState != nil && r.PowerAt != nil {
		m.Power = &fleet.PowerView{State: *r.PowerState, At: fleet.At(*r.PowerAt)}
	}
	return m
}

// bmc is the BMC without its secrets. The system's path is part of the address
// when the caller named it so.
func (r *metalRow) bmc() *fleet.BMCView {
	v := &fleet.BMCView{Address: *r.Address, Driver: orEmpty(r.Driver), Username: orEmpty(r.Username),
		TLS:            fleet.BMCTLSView{Mode: orEmpty(r.TLSMode), Fingerprint: orEmpty(r.TLSFingerprint), Shown: orEmpty(r.TLSShown), CASet: r.CASet != nil && *r.CASet},
		CredentialsSet: r.CredentialsSet != nil && *r.CredentialsSet, Quirks: r.Quirks,
		Reachable: r.Reachable != nil && *r.Reachable, LastError: orEmpty(r.LastError), CheckedAt: fleet.AtPtr(r.CheckedAt)}
	v.ShownIdentity = r.IdentityShown
	if r.SystemNamed != nil && *r.SystemNamed {
		v.Address += orEmpty(r.System)
	}
	if r.BMCIdentity != nil {
		v.Identity = *r.BMCIdentity
	}
	if r.Capabilities != nil {
		v.Capabilities = *r.Capabilities
	}
	if v.Quirks == nil {
		v.Quirks = []string{}
	}
	return v
}

// LoadMetal returns the metal view of a node that was not deleted, or
// NOT_FOUND.
func LoadMetal(ctx context.Context, q Reader, nodeID string) (fleet.MetalNode, error) {
	rows, err := q.Query(ctx, `SELECT `+metalColumns+metalFrom+` WHERE n.id = $1 AND n.deleted_at IS NULL`, nodeID)
	if err != nil {
		return fleet.MetalNode{}, fmt.Errorf("load machine %s: %w", nodeID, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[metalRow])
	if err != nil {
		return fleet.MetalNode{}, noRows(err, "node", "load machine "+nodeID)
	}
	return r.metal(time.Now()), nil
}

func collectMetal(rows pgx.Rows) ([]fleet.MetalNode, error) {
	list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[metalRow])
	if err != nil {
		return nil, err
	}
	now := time.Now()
	out := make([]fleet.MetalNode, len(list))
	for i, r := range list {
		out[i] = r.metal(now)
	}
	return out, nil
}
