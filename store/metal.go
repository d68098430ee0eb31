package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// MetalFilter selects machines of a list; nil members select all.
type MetalFilter struct {
	NodeFilter
	Name   *string
	Serial *string
	MAC    *string
	// Address is the BMC's canonical address; System the system it names.
	Address    *fleet.BMCAddress
	Labels     map[string]string
	FailedFrom *string
}

// ListMetal returns up to f.Limit+1 machines of the tenant, in id order. The
// metal view is the own tenant's only, whatever else sees the node.
func ListMetal(ctx context.Context, q Reader, f MetalFilter) ([]fleet.MetalNode, error) {
	var c clauses
	c.add("n.tenant_id = %s", f.TenantID)
	c.node(f.NodeFilter)
	if f.Name != nil {
		c.add("n.name = %s", *f.Name)
	}
	if f.Serial != nil {
		c.add("n.id IN (SELECT node_id FROM inventories WHERE serial = %s UNION SELECT node_id FROM bmcs WHERE identity->>'serial' = %s)", *f.Serial)
	}
	if f.MAC != nil {
		c.add("n.id IN (SELECT node_id FROM inventories WHERE macs @> ARRAY[lower(%s)] UNION SELECT id FROM nodes WHERE boot_mac = lower(%s))", *f.MAC)
	}
	if f.Address != nil {
		c.add("b.address = %s", f.Address.String())
		if f.Address.System != "" {
			c.add("b.system = %s", f.Address.System)
		}
	}
	if len(f.Labels) > 0 {
		c.add("n.labels @> %s", f.Labels)
	}
	if f.FailedFrom != nil {
		c.sql = append(c.sql, "n.failed IS NOT NULL")
		c.add("n.failed->>'from' = %s", *f.FailedFrom)
	}
	rows, err := q.Query(ctx, `SELECT `+metalColumns+metalFrom+` WHERE `+c.where()+` ORDER BY n.id LIMIT `+c.arg(f.Limit+1), c.args...)
	if err != nil {
		return nil, fmt.Errorf("list machines of tenant %s: %w", f.TenantID, err)
	}
	list, err := collectMetal(rows)
	if err != nil {
		return nil, fmt.Errorf("list machines of tenant %s: %w", f.TenantID, err)
	}
	return list, nil
}

// NewNode is a node as enroll makes it.
type NewNode struct {
	ID, TenantID, SiteID string
	PoolID, Name         *string
	Labels               map[string]string
	BootMAC              *string
	MaybeInUse           bool
	// OperationID is the enroll that has the fence.
	OperationID string
	RequestedBy string
}

// InsertNode makes the row of an enrolled node and of its visibility to its
// tenant. A name taken in the site is CONFLICT.
func InsertNode(ctx context.Context, tx pgx.Tx, n NewNode) error {
	labels := n.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	_, err := tx.Exec(ctx, `INSERT INTO nodes (id, tenant_id, site_id, pool_id, name, provision_state, labels, boot_mac, maybe_in_use, provision_op)
		VALUES ($1, $2, $3, $4, $5, $6, $7, lower($8), $9, $10)`,
		n.ID, n.TenantID, n.SiteID, n.PoolID, n.Name, fleet.Enrolling, labels, n.BootMAC, n.MaybeInUse, n.OperationID)
	if err != nil {
		return fmt.Errorf("insert node %s: %w", n.ID, err)
	}
	if _, err := tx.Exec(ctx, `INSERT INTO node_visibility (tenant_id, node_id) VALUES ($1, $2)`, n.TenantID, n.ID); err != nil {
		return fmt.Errorf("make node %s visible to its tenant: %w", n.ID, err)
	}
	return nil
}

// BMCRecord is what is stored of a BMC. Password is sealed.
type BMCRecord struct {
	NodeID, SiteID string
	Address        fleet.BMCAddress
	Driver         string
	Username       string
	Password       []byte
	TLSMode        string
	CA             *string
	Fingerprint    *string
	LegacyTLS      bool
	CipherSuites   []int
}

// InsertBMC records a node's BMC. An address that another node of the site has
// is CONFLICT.
func InsertBMC(ctx context.Context, tx pgx.Tx, b BMCRecord) error {
	_, err := tx.Exec(ctx, `INSERT INTO bmcs (node_id, site_id, address, system, system_named, driver, username, password,
			tls_mode, tls_ca, tls_fingerprint, legacy_tls, cipher_suites)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`,
		b.NodeID, b.SiteID, b.Address.String(), b.Address.System, b.Address.System != "", b.Driver, b.Username, b.Password,
		b.TLSMode, b.CA, b.Fingerprint, b.LegacyTLS, b.CipherSuites)
	if err != nil {
		return fmt.Errorf("record the BMC of node %s: %w", b.NodeID, err)
	}
	return nil
}

// LoadBMC reads what is recorded of a node's BMC, and whether there is one.
func LoadBMC(ctx context.Context, q Reader, nodeID string) (BMCRecord, bool, error) {
	b := BMCRecord{NodeID: nodeID}
	var address, system string
	var named bool
	err := q.QueryRow(ctx, `SELECT site_id, address, system, system_named, driver, username, password, tls_mode, tls_ca, tls_fingerprint, legacy_tls, cipher_suites
		FROM bmcs WHERE node_id = $1`, nodeID).
		Scan(&b.SiteID, &address, &system, &named, &b.Driver, &b.Username, &b.Password, &b.TLSMode, &b.CA, &b.Fingerprint, &b.LegacyTLS, &b.CipherSuites)
	if errors.Is(err, pgx.ErrNoRows) {
		return b, false, nil
	}
	if err != nil {
		return b, false, fmt.Errorf("load the BMC of node %s: %w", nodeID, err)
	}
	if b.Address, err = fleet.ParseBMCAddress(address); err != nil {
		return b, false, fmt.Errorf("read the recorded BMC address of node %s: %w", nodeID, err)
	}
	if named {
		b.Address.System = system
	}
	return b, true, nil
}

// UpdateBMC replaces a BMC's settings, not its credentials. What was learned of
// it under another address or driver is forgotten; the machine's identity
// stays, so that another machine at the new address is noticed.
func UpdateBMC(ctx context.Context, tx pgx.Tx, b BMCRecord) error {
	// A session's token is for the BMC that gave it.
	if _, err := tx.Exec(ctx, leaveSession, b.NodeID, b.Address.String()); err != nil {
		return fmt.Errorf("leave the BMC session of node %s: %w", b.NodeID, err)
	}
	_, err := tx.Exec(ctx, `UPDATE bmcs SET address = $2, driver = $5, tls_mode = $6, tls_ca = $7, tls_fingerprint = $8, legacy_tls = $9, cipher_suites = $10,
			system = CASE WHEN $4 OR system_named OR address <> $2 THEN $3 ELSE system END, system_named = $4,
			quirks = CASE WHEN address = $2 AND driver = $5 THEN quirks ELSE '{}' END,
			capabilities = CASE WHEN address = $2 AND driver = $5 THEN capabilities ELSE capabilities - 'driver' END,
			tls_shown = CASE WHEN address = $2 AND tls_fingerprint IS NOT DISTINCT FROM $8 THEN tls_shown END,
			identity_shown = CASE WHEN address = $2 THEN identity_shown END,
			next_check_at = now(), check_failures = 0
		WHERE node_id = $1`,
		b.NodeID, b.Address.String(), b.Address.System, b.Address.System != "", b.Driver, b.TLSMode, b.CA, b.Fingerprint, b.LegacyTLS, b.CipherSuites)
	if err != nil {
		return fmt.Errorf("update the BMC of node %s: %w", b.NodeID, err)
	}
	return nil
}

// IdentityFree is CONFLICT, naming it, when another node of the site has a BMC
// of this UUID.
func IdentityFree(ctx context.Context, q Reader, siteID, nodeID, uuid string) error {
	var other string
	err := q.QueryRow(ctx, `SELECT coalesce(min(node_id), '') FROM bmcs WHERE site_id = $1 AND node_id <> $2 AND lower(identity->>'uuid') = lower($3)`,
		siteID, nodeID, uuid).Scan(&other)
	if err != nil {
		return fmt.Errorf("look for another machine of identity %s: %w", uuid, err)
	}
	if other == "" {
		return nil
	}
	return fleet.Errorf(fleet.CodeConflict, "already-enrolled", "node %s of this site has this identity", other).With("nodeId", other)
}

// AcceptIdentity records the identity of a repaired machine in place of the
// one enrolled; empty members stay. The machine key, which was made from the
// old identity, is learned anew by the next operation.
func AcceptIdentity(ctx context.Context, tx pgx.Tx, nodeID, uuid, serial string) error {
	_, err := tx.Exec(ctx, `UPDATE bmcs SET machine_key = NULL, identity_shown = NULL,
			identity = identity || jsonb_strip_nulls(jsonb_build_object('uuid', nullif($2, ''), 'serial', nullif($3, '')))
		WHERE node_id = $1`, nodeID, uuid, serial)
	if err != nil {
		return fmt.Errorf("accept the identity of node %s: %w", nodeID, err)
	}
	return nil
}
