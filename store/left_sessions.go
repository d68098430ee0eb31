package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// leaveSession takes the session that is kept for a node off it, in the
// transaction in which the node forgets the BMC or moves to another address: who
// is left to end it on the BMC is the sweep. $2 is the address that is not left,
// "" leaves any.
const leaveSession = `
WITH gone AS (DELETE FROM bmc_sessions s USING bmcs b WHERE s.node_id = $1 AND b.node_id = $1 AND b.address <> $2
	RETURNING b.node_id, b.site_id, b.address, b.tls_mode, b.tls_ca, b.tls_fingerprint, b.legacy_tls, s.uri, s.token)
INSERT INTO left_sessions (node_id, site_id, address, tls_mode, tls_ca, tls_fingerprint, legacy_tls, uri, token)
SELECT node_id, site_id, address, tls_mode, tls_ca, tls_fingerprint, legacy_tls, uri, token FROM gone`

// LeftSession is a session on a BMC that its node knows no more.
type LeftSession struct {
	ID         int64
	NodeID     string
	URI, Token string
	// Address, TLSMode, CA, Fingerprint and LegacyTLS are the BMC's, Networks the
	// site's.
	Address         fleet.BMCAddress
	TLSMode         string
	CA, Fingerprint string
	LegacyTLS       bool
	Networks        []string
}

// ClaimLeftSessions claims sessions that are due to be ended; what is not
// forgotten then is due again later.
func (s *Store) ClaimLeftSessions(ctx context.Context, again time.Duration, limit int) ([]LeftSession, error) {
	rows, err := s.pool.Query(ctx, `
		WITH due AS (SELECT id FROM left_sessions WHERE due <= now() ORDER BY due LIMIT $2 FOR UPDATE SKIP LOCKED)
		UPDATE left_sessions l SET due = now() + $1::interval FROM due, sites s WHERE l.id = due.id AND s.id = l.site_id
		RETURNING l.id, l.node_id, l.uri, l.token, l.address, l.tls_mode, coalesce(l.tls_ca, ''), coalesce(l.tls_fingerprint, ''), l.legacy_tls, s.spec`, again, limit)
	if err != nil {
		return nil, fmt.Errorf("claim sessions that are left on BMCs: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (l LeftSession, err error) {
		var sealed []byte
		var address string
		var site fleet.SiteSpec
		if err := r.Scan(&l.ID, &l.NodeID, &l.URI, &sealed, &address, &l.TLSMode, &l.CA, &l.Fingerprint, &l.LegacyTLS, &site); err != nil {
			return l, err
		}
		l.Networks = site.AllowedNetworks
		if l.Address, err = fleet.ParseBMCAddress(address); err != nil {
			return l, err
		}
		token, err := s.Seal.Open(sealed, bmcSession(l.NodeID))
		l.Token = string(token)
		return l, err
	})
	return list, wrapDoing(err, "claim sessions that are left on BMCs")
}

// ForgetLeftSession forgets a session that was ended, or that nobody can end.
func (s *Store) ForgetLeftSession(ctx context.Context, id int64) error {
	_, err := s.pool.Exec(ctx, `DELETE FROM left_sessions WHERE id = $1`, id)
	return wrapDoing(err, "forget a session that was left on a BMC")
}
