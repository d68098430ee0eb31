package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// BMCAccess is what is needed to open a node's BMC.
type BMCAccess struct {
	BMCRecord
	// System is the path found or named.
	System   string
	Quirks   []string
	Identity fleet.BMCIdentity
	// Found is the driver that was found to work, "" before the first success.
	Found string
	// Staged is a sealed password that a rotation may have set, and StagedBy the
	// rotation's operation.
	Staged   []byte
	StagedBy string
	Networks []string
	// Fence is the node's provision fence.
	Fence string
	// Unproved are the condition types about the BMC that are not True.
	Unproved []string
	// Quiet is how long the BMC asked to be left alone, from now on.
	Quiet time.Duration
}

// accessColumns are scanned by scanAccess, from bmcs b, nodes n and sites s.
const accessColumns = `b.node_id, b.site_id, b.address, b.system, b.system_named, b.driver, b.username, b.password, b.tls_mode, b.tls_ca, b.tls_fingerprint,
	b.legacy_tls, b.cipher_suites, b.quirks, b.identity, coalesce(b.capabilities->>'driver', ''), b.staged_password,
	coalesce(b.staged_op, ''), s.spec, coalesce(n.provision_op, ''),
	ARRAY(SELECT t FROM unnest(ARRAY['BmcReachable', 'BmcTrusted', 'BmcAuthenticated']) t
		WHERE NOT EXISTS (SELECT FROM conditions c WHERE c.node_id = b.node_id AND c.type = t AND c.status = 'True')),
	greatest(0, coalesce(extract(epoch FROM b.quiet_until - clock_timestamp()), 0))::float8`

// scanAccess reads accessColumns and what follows them.
func scanAccess(row pgx.Row, a *BMCAccess, more ...any) error {
	var address, system string
	var named bool
	var site fleet.SiteSpec
	var quiet float64
	err := row.Scan(append([]any{&a.NodeID, &a.SiteID, &address, &system, &named, &a.Driver, &a.Username, &a.Password, &a.TLSMode, &a.CA, &a.Fingerprint,
		&a.LegacyTLS, &a.CipherSuites, &a.Quirks, &a.Identity, &a.Found, &a.Staged, &a.StagedBy, &site, &a.Fence, &a.Unproved, &quiet}, more...)...)
	if err != nil {
		return err
	}
	a.Quiet = time.Duration(quiet * float64(time.Second))
	if a.Address, err = fleet.ParseBMCAddress(address); err != nil {
		return fmt.Errorf("read the recorded BMC address of node %s: %w", a.NodeID, err)
	}
	if named {
		a.Address.System = system
	}
	a.System, a.Networks = system, site.AllowedNetworks
	return nil
}

// LoadBMCAccess reads what is needed to open a node's BMC.
func (s *Store) LoadBMCAccess(ctx context.Context, nodeID string) (BMCAccess, error) {
	var a BMCAccess
	err := scanAccess(s.pool.QueryRow(ctx, `SELECT `+accessColumns+`
		FROM bmcs b JOIN nodes n ON n.id = b.node_id JOIN sites s ON s.id = n.site_id WHERE b.node_id = $1 AND n.deleted_at IS NULL`, nodeID), &a)
	if isNoRows(err) {
		return a, fleet.Errorf(fleet.CodeInvalidState, "no-bmc", "node %s has no BMC recorded", nodeID)
	}
	return a, wrapDoing(err, "read the BMC of node "+nodeID)
}

// KeepQuiet records that a BMC asked to be left alone for a while, so that
// whoever opens it next obeys too.
func (s *Store) KeepQuiet(ctx context.Context, nodeID string, d time.Duration) error {
	_, err := s.pool.Exec(ctx, `UPDATE bmcs SET quiet_until = greatest(quiet_until, clock_timestamp() + $2::interval) WHERE node_id = $1`, nodeID, d)
	return wrapDoing(err, "record that the BMC of node "+nodeID+" asked to wait")
}

// PinCertificate stores the fingerprint trusted on first use, if none is
// stored.
func (s *Store) PinCertificate(ctx context.Context, nodeID, fingerprint string) error {
	tag, err := s.pool.Exec(ctx, `UPDATE bmcs SET tls_fingerprint = $2 WHERE node_id = $1 AND (tls_fingerprint IS NULL OR tls_fingerprint = $2)`, nodeID, fingerprint)
	if err != nil {
		return fmt.Errorf("pin the BMC certificate of node %s: %w", nodeID, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("pin the BMC certificate of node %s: another one was pinned in the meantime", nodeID)
	}
	return nil
}

// PromoteStaged makes a staged password the recorded one: the recorded one was
// refused and the staged one was not, so the rotation that staged it did set it.
func (s *Store) PromoteStaged(ctx context.Context, a BMCAccess) error {
	_, err := s.pool.Exec(ctx, `UPDATE bmcs SET password = staged_password, staged_password = NULL, staged_op = NULL
		WHERE node_id = $1 AND staged_password = $2`, a.NodeID, a.Staged)
	return wrapDoing(err, "record the rotated password of the BMC of node "+a.NodeID)
}
