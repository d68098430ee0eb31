package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

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

// KeepBMCSession keeps a session for the next holder, unless one is kept
// already: two may log in at once, and the second logs out again. Of a node
// without a BMC (deleted meanwhile) none is kept.
func (s *Store) KeepBMCSession(ctx context.Context, nodeID, uri, token string) (kept bool, err error) {
	sealed, err := s.Seal.Seal([]byte(token), bmcSession(nodeID))
	if err != nil {
		return false, err
	}
	tag, err := s.pool.Exec(ctx, `INSERT INTO bmc_sessions (node_id, uri, token)
		SELECT node_id, $2, $3 FROM bmcs WHERE node_id = $1 ON CONFLICT (node_id) DO NOTHING`, nodeID, uri, sealed)
	if err != nil {
		return false, fmt.Errorf("keep the BMC session of node %s: %w", nodeID, err)
	}
	return tag.RowsAffected() > 0, nil
}

// ForgetBMCSession forgets a node's kept session, if it is the one of this URI.
func (s *Store) ForgetBMCSession(ctx context.Context, nodeID, uri string) error {
	if _, err := s.pool.Exec(ctx, `DELETE FROM bmc_sessions WHERE node_id = $1 AND uri = $2`, nodeID, uri); err != nil {
		return fmt.Errorf("forget the BMC session of node %s: %w", nodeID, err)
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
