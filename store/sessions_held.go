package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// What a gateway asks for all of its sessions together: how many statements it
// sends does not grow with how many machines it serves.

// HeldSession is a session that a gateway serves.
type HeldSession struct {
	NodeID, Serial string
	Epoch          int64
	Seen           time.Time
}

// columns are the sessions' members, a list each.
func columns(held []HeldSession) (nodes, serials []string, epochs []int64) {
	for _, h := range held {
		nodes, serials, epochs = append(nodes, h.NodeID), append(serials, h.Serial), append(epochs, h.Epoch)
	}
	return nodes, serials, epochs
}

// EndedSessions returns the nodes of those sessions that must end now: another
// one began, it was given up as lost, the certificate was revoked or expired by
// the database's clock, the generation was raised, or the node was deleted. One
// statement serves all sessions of a gateway.
func (s *Store) EndedSessions(ctx context.Context, held []HeldSession) ([]string, error) {
	nodes, serials, epochs := columns(held)
	rows, err := s.pool.Query(ctx, `SELECT h.node FROM unnest($1::text[], $2::text[], $3::bigint[]) AS h (node, serial, epoch)
		LEFT JOIN sessions s ON s.node_id = h.node
		LEFT JOIN certificates c ON c.serial = h.serial AND c.node_id = h.node
		LEFT JOIN nodes n ON n.id = h.node AND n.deleted_at IS NULL
		WHERE s.epoch IS DISTINCT FROM h.epoch OR s.disconnected_at IS NOT NULL OR n.id IS NULL
		   OR c.serial IS NULL OR c.revoked_at IS NOT NULL OR c.not_after <= now() OR c.generation <> n.identity_generation`, nodes, serials, epochs)
	if err != nil {
		return nil, fmt.Errorf("look for ended sessions: %w", err)
	}
	ended, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return ended, wrapDoing(err, "look for ended sessions")
}

// TouchSessions notes when the sessions' nodes were last heard of, in one
// statement.
func (s *Store) TouchSessions(ctx context.Context, held []HeldSession) error {
	nodes, _, epochs := columns(held)
	ages := make([]float64, len(held))
	for i, h := range held {
		ages[i] = time.Since(h.Seen).Seconds()
	}
	_, err := s.pool.Exec(ctx, `UPDATE sessions s SET last_seen_at = greatest(s.last_seen_at, now() - h.age * interval '1 second')
		FROM unnest($1::text[], $2::bigint[], $3::float8[]) AS h (node, epoch, age)
		WHERE s.node_id = h.node AND s.epoch = h.epoch`, nodes, epochs, ages)
	return wrapDoing(err, "note who was heard of")
}

// BeatGateway notes that a gateway serves and has noted whom it heard of, and by
// which CA machines know it; "" when it lets none join. A pause in it begins
// anew the time since when it has served without a break.
func (s *Store) BeatGateway(ctx context.Context, id, caFingerprint string) error {
	_, err := s.pool.Exec(ctx, `INSERT INTO gateways (id, ca_fingerprint) VALUES ($1, NULLIF($2, ''))
		ON CONFLICT (id) DO UPDATE SET at = now(), since = CASE WHEN gateways.at > now() - interval '30 seconds' THEN gateways.since ELSE now() END`, id, caFingerprint)
	return wrapDoing(err, "note that the gateway serves")
}

// OwnersWithCommands returns those of the boots that have a command to fetch or
// have ended, and the nodes with a session at the gateway that have a command or
// a NodeSpec to fetch: one statement for all machines of a gateway. It begins with
// what waits to be fetched, which is little, and asks of each whose it is.
func (s *Store) OwnersWithCommands(ctx context.Context, gateway string, boots []string) ([]string, error) {
	rows, err := s.pool.Query(ctx, `SELECT boot_id FROM commands WHERE boot_id = ANY ($2) AND state = 'pending' AND expires_at > now()
		UNION SELECT id FROM boots WHERE id = ANY ($2) AND voided_at IS NOT NULL
		UNION SELECT node_id FROM commands c WHERE boot_id IS NULL AND state = 'pending' AND expires_at > now()
			AND (SELECT gateway FROM sessions s WHERE s.node_id = c.node_id) = $1
		UNION SELECT node_id FROM node_specs p WHERE version > coalesce(judged, 0)
			AND (SELECT gateway FROM sessions s WHERE s.node_id = p.node_id) = $1`, gateway, boots)
	if err != nil {
		return nil, fmt.Errorf("look for commands: %w", err)
	}
	due, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return due, wrapDoing(err, "look for commands")
}
