package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// ChangeSlot is the slot of a BMC's lease that changes need; reads take any
// other.
const ChangeSlot = 0

// Lease is the right to talk to a BMC until it expires.
type Lease struct {
	NodeID  string
	Slot    int
	Token   int64
	Expires time.Time
	// TakenOver says that a holder let it expire: its last request may still be
	// under way.
	TakenOver bool
}

// TakeLease takes a lease of a node's BMC: the change slot, or one of the read
// slots 1..reads. It is nil when none is free; wait says how long the earliest
// holder may still keep it.
func (s *Store) TakeLease(ctx context.Context, nodeID, holder string, change bool, reads int, life time.Duration) (l *Lease, wait time.Duration, err error) {
	first, last := ChangeSlot, ChangeSlot
	if !change {
		first, last = 1, reads
	}
	var taken Lease
	var before *string
	err = s.pool.QueryRow(ctx, `
		INSERT INTO bmc_leases AS l (node_id, slot, holder, token, expires_at)
		SELECT $1, slot, $4, 1, clock_timestamp() + $5 FROM (
			SELECT g AS slot FROM generate_series($2::int, $3::int) g
			WHERE NOT EXISTS (SELECT FROM bmc_leases x WHERE x.node_id = $1 AND x.slot = g AND x.holder IS NOT NULL AND x.expires_at > clock_timestamp())
			ORDER BY g LIMIT 1) pick
		ON CONFLICT (node_id, slot) DO UPDATE SET holder = EXCLUDED.holder, token = l.token + 1, expires_at = EXCLUDED.expires_at
			WHERE l.holder IS NULL OR l.expires_at <= clock_timestamp()
		RETURNING slot, token, expires_at, (SELECT x.holder FROM bmc_leases x WHERE x.node_id = $1 AND x.slot = l.slot)`,
		nodeID, first, last, holder, life).Scan(&taken.Slot, &taken.Token, &taken.Expires, &before)
	if isNoRows(err) {
		var left float64
		err := s.pool.QueryRow(ctx, `SELECT coalesce(extract(epoch FROM min(expires_at) - clock_timestamp()), 0) FROM bmc_leases
			WHERE node_id = $1 AND slot BETWEEN $2 AND $3 AND holder IS NOT NULL`, nodeID, first, last).Scan(&left)
		if err != nil {
			return nil, 0, fmt.Errorf("read the leases of the BMC of node %s: %w", nodeID, err)
		}
		return nil, max(0, time.Duration(left*float64(time.Second))), nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("take a lease of the BMC of node %s: %w", nodeID, err)
	}
	taken.NodeID, taken.TakenOver = nodeID, before != nil
	return &taken, 0, nil
}

// CheckLease says whether a lease is still the holder's, for at least the time
// given.
func (s *Store) CheckLease(ctx context.Context, l Lease, left time.Duration) (bool, error) {
	var ok bool
	err := s.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM bmc_leases WHERE node_id = $1 AND slot = $2 AND token = $3 AND holder IS NOT NULL
		AND expires_at > clock_timestamp() + $4)`, l.NodeID, l.Slot, l.Token, left).Scan(&ok)
	if err != nil {
		return false, fmt.Errorf("check the lease of the BMC of node %s: %w", l.NodeID, err)
	}
	return ok, nil
}

// RenewLease extends a lease that is still the holder's; false when it is not.
func (s *Store) RenewLease(ctx context.Context, l *Lease, life time.Duration) (bool, error) {
	err := s.pool.QueryRow(ctx, `UPDATE bmc_leases SET expires_at = clock_timestamp() + $4
		WHERE node_id = $1 AND slot = $2 AND token = $3 AND holder IS NOT NULL AND expires_at > clock_timestamp() RETURNING expires_at`,
		l.NodeID, l.Slot, l.Token, life).Scan(&l.Expires)
	if isNoRows(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("renew the lease of the BMC of node %s: %w", l.NodeID, err)
	}
	return true, nil
}

// ReleaseLease gives a lease back, if it is still the holder's.
func (s *Store) ReleaseLease(ctx context.Context, l Lease) error {
	_, err := s.pool.Exec(ctx, `UPDATE bmc_leases SET holder = NULL, expires_at = clock_timestamp() WHERE node_id = $1 AND slot = $2 AND token = $3`,
		l.NodeID, l.Slot, l.Token)
	if err != nil {
		return fmt.Errorf("give back the lease of the BMC of node %s: %w", l.NodeID, err)
	}
	return nil
}

// bmcSession is what a BMC session's token is sealed for.
func bmcSession(nodeID string) string { return "bmc:" + nodeID + ":session" }

// LoadBMCSession returns the URI and token of the BMC session kept for a node,
// empty without one.
func (s *Store) LoadBMCSession(ctx context.Context, nodeID string) (uri, token string, err error) {
	var sealed []byte
	err = s.pool.QueryRow(ctx, `UPDATE bmc_sessions SET used_at = now() WHERE node_id = $1 RETURNING uri, token`, nodeID).Scan(&uri, &sealed)
	if isNoRows(err) {
		return "", "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("read the BMC session of node %s: %w", nodeID, err)
	}
	b, err := s.Seal.Open(sealed, bmcSession(nodeID))
	return uri, string(b), err
}

// SaveBMCSession keeps a BMC session for the next holder; an empty URI forgets
// it.
func (s *Store) SaveBMCSession(ctx context.Context, nodeID, uri, token string) error {
	if uri == "" {
		if _, err := s.pool.Exec(ctx, `DELETE FROM bmc_sessions WHERE node_id = $1`, nodeID); err != nil {
			return fmt.Errorf("forget the BMC session of node %s: %w", nodeID, err)
		}
		return nil
	}
	sealed, err := s.Seal.Seal([]byte(token), bmcSession(nodeID))
	if err != nil {
		return err
	}
	_, err = s.pool.Exec(ctx, `INSERT INTO bmc_sessions (node_id, uri, token) VALUES ($1, $2, $3)
		ON CONFLICT (node_id) DO UPDATE SET uri = EXCLUDED.uri, token = EXCLUDED.token, used_at = now()`, nodeID, uri, sealed)
	if err != nil {
		return fmt.Errorf("keep the BMC session of node %s: %w", nodeID, err)
	}
	return nil
}

// IdleBMCSessions names the nodes whose kept session was not used for a while
// and that have no live operation.
func (s *Store) IdleBMCSessions(ctx context.Context, idle time.Duration, limit int) ([]string, error) {
	rows, err := s.pool.Query(ctx, `SELECT node_id FROM bmc_sessions s WHERE used_at < now() - $1::interval
		AND NOT EXISTS (SELECT FROM operations o WHERE o.node_id = s.node_id AND o.state IN ('pending', 'running', 'waiting')) LIMIT $2`, idle, limit)
	if err != nil {
		return nil, fmt.Errorf("list idle BMC sessions: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list idle BMC sessions: %w", err)
	}
	return ids, nil
}

// BMCAccess is what is needed to open a node's BMC.
type BMCAccess struct {
	BMCRecord
	// System is the path found or named, CipherSuite the one found to work.
	System      string
	CipherSuite int
	Quirks      []string
	Identity    fleet.BMCIdentity
	Staged      []byte
	Networks    []string
	// Fence is the node's provision fence.
	Fence string
}

// LoadBMCAccess reads what is needed to open a node's BMC.
func (s *Store) LoadBMCAccess(ctx context.Context, nodeID string) (BMCAccess, error) {
	var a BMCAccess
	b, there, err := LoadBMC(ctx, s.pool, nodeID)
	if err != nil {
		return a, err
	}
	if !there {
		return a, fleet.Errorf(fleet.CodeInvalidState, "no-bmc", "node %s has no BMC recorded", nodeID)
	}
	a.BMCRecord = b
	var suite *int
	var site fleet.SiteSpec
	var fence *string
	err = s.pool.QueryRow(ctx, `SELECT b.system, b.cipher_suite, b.quirks, b.identity, b.staged_password, s.spec, n.provision_op
		FROM bmcs b JOIN nodes n ON n.id = b.node_id JOIN sites s ON s.id = n.site_id WHERE b.node_id = $1`, nodeID).
		Scan(&a.System, &suite, &a.Quirks, &a.Identity, &a.Staged, &site, &fence)
	if err != nil {
		return a, noRows(err, "BMC", "read the BMC of node "+nodeID)
	}
	if suite != nil {
		a.CipherSuite = *suite
	}
	a.Networks, a.Fence = site.AllowedNetworks, orEmpty(fence)
	return a, nil
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
