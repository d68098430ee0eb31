package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// sessionLost is how long a node may be silent.
const sessionLost = 90 * time.Second

// gatewaySteady is how long a gateway must have served without a break before
// silence is a node's own: nodes need time to find a gateway that came back.
const gatewaySteady = 2 * time.Minute

// leastLost is how long a node may be silent at least where time is scaled: a
// busy machine delays its agents as much as ever.
const leastLost = 30 * time.Second

// OpenSession begins a node's session at a gateway and returns its epoch. The
// one before, wherever it is, ends with it. What waits for the node is woken.
func (s *Store) OpenSession(ctx context.Context, gateway string, shown ShownCert) (epoch int64, err error) {
	err = s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, _, err := lockNode(ctx, tx, shown.NodeID); err != nil {
			if fleet.CodeOf(err) == fleet.CodeNotFound {
				return notServed("is not of a node that is here")
			}
			return err
		}
		if err := judgeCert(ctx, tx, shown, 0); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE certificates SET used_at = now() WHERE serial = $1 AND used_at IS NULL`, shown.Serial); err != nil {
			return fmt.Errorf("note the use of a certificate of node %s: %w", shown.NodeID, err)
		}
		err := tx.QueryRow(ctx, `INSERT INTO sessions (node_id, epoch, gateway, connected_at, last_seen_at) VALUES ($1, 1, $2, now(), now())
			ON CONFLICT (node_id) DO UPDATE SET epoch = sessions.epoch + 1, gateway = EXCLUDED.gateway, connected_at = now(), last_seen_at = now(), disconnected_at = NULL
			RETURNING epoch`, shown.NodeID, gateway).Scan(&epoch)
		if err != nil {
			return fmt.Errorf("open the session of node %s: %w", shown.NodeID, err)
		}
		if err := setCondition(ctx, tx, shown.NodeID, fleet.Condition{Type: "Connected", Status: fleet.ConditionTrue, Reason: "session"}); err != nil {
			return err
		}
		if err := WantReconcile(ctx, tx, shown.NodeID); err != nil {
			return err
		}
		return wakeNode(ctx, tx, shown.NodeID)
	})
	s.Notify()
	return epoch, err
}

// CloseSession ends a session that the node itself ended. A later epoch is left
// alone.
func (s *Store) CloseSession(ctx context.Context, nodeID string, epoch int64) error {
	_, err := s.disconnect(ctx, nodeID, "left", "the agent left", `epoch = $2`, epoch)
	return err
}

// disconnect ends a node's session, if it is still as the condition says, and
// says so on the node, together.
func (s *Store) disconnect(ctx context.Context, nodeID, reason, message, condition string, arg any) (bool, error) {
	done := false
	err := s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		done = false
		if _, _, err := lockNode(ctx, tx, nodeID); err != nil {
			if fleet.CodeOf(err) == fleet.CodeNotFound {
				return nil
			}
			return err
		}
		tag, err := tx.Exec(ctx, `UPDATE sessions SET disconnected_at = now() WHERE node_id = $1 AND disconnected_at IS NULL AND `+condition, nodeID, arg)
		if err != nil {
			return fmt.Errorf("end the session of node %s: %w", nodeID, err)
		}
		if done = tag.RowsAffected() == 1; !done {
			return nil
		}
		return setCondition(ctx, tx, nodeID, fleet.Condition{Type: "Connected", Status: fleet.ConditionFalse, Reason: reason, Message: message})
	})
	return done, err
}

// InSession says whether the agent of an operation's node has a session. A
// revocation ends the session that was.
func (s *Store) InSession(ctx context.Context, operationID string) (bool, error) {
	var in bool
	err := s.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM sessions s JOIN operations o ON o.node_id = s.node_id WHERE o.id = $1 AND s.disconnected_at IS NULL)`, operationID).Scan(&in)
	return in, wrapDoing(err, "look for the session of operation "+operationID+"'s node")
}

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
// one began, the certificate was revoked or expired by the database's clock, the
// generation was raised, or the node was deleted. One statement serves all
// sessions of a gateway.
func (s *Store) EndedSessions(ctx context.Context, held []HeldSession) ([]string, error) {
	nodes, serials, epochs := columns(held)
	rows, err := s.pool.Query(ctx, `SELECT h.node FROM unnest($1::text[], $2::text[], $3::bigint[]) AS h (node, serial, epoch)
		LEFT JOIN sessions s ON s.node_id = h.node
		LEFT JOIN certificates c ON c.serial = h.serial AND c.node_id = h.node
		LEFT JOIN nodes n ON n.id = h.node AND n.deleted_at IS NULL
		WHERE s.epoch IS DISTINCT FROM h.epoch OR n.id IS NULL OR c.serial IS NULL OR c.revoked_at IS NOT NULL OR c.not_after <= now()
		   OR c.generation <> n.identity_generation`, nodes, serials, epochs)
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

// BeatGateway notes that a gateway serves, and by which CA machines know it; ""
// when it lets none join. A pause in it begins anew the time since when it has
// served without a break.
func (s *Store) BeatGateway(ctx context.Context, id, caFingerprint string) error {
	_, err := s.pool.Exec(ctx, `INSERT INTO gateways (id, ca_fingerprint) VALUES ($1, NULLIF($2, ''))
		ON CONFLICT (id) DO UPDATE SET at = now(), since = CASE WHEN gateways.at > now() - interval '30 seconds' THEN gateways.since ELSE now() END`, id, caFingerprint)
	return wrapDoing(err, "note that the gateway serves")
}

// LoseSessions marks nodes as not connected that have been silent for too long
// while a gateway served without a break: the restart of a gateway, or an outage
// of ours, loses no node. It returns how many.
func (s *Store) LoseSessions(ctx context.Context) (int, error) {
	scaled := func(d time.Duration) time.Duration {
		if s.TimeScale > 1 {
			return max(time.Duration(float64(d)/s.TimeScale), leastLost)
		}
		return d
	}
	ids, err := s.nodeIDs(ctx, "look for silent nodes", `SELECT node_id FROM sessions
		WHERE disconnected_at IS NULL AND last_seen_at < now() - $1::interval
		AND EXISTS (SELECT FROM gateways WHERE at > now() - interval '30 seconds' AND since < now() - $2::interval)
		ORDER BY last_seen_at LIMIT $3`, scaled(sessionLost), scaled(gatewaySteady), upkeepBatch)
	if err != nil {
		return 0, err
	}
	lost := 0
	for _, id := range ids {
		done, err := s.disconnect(ctx, id, "silent", "the agent was not heard of for "+sessionLost.String(),
			`last_seen_at < now() - $2::interval`, scaled(sessionLost))
		if err != nil {
			return lost, err
		}
		if done {
			lost++
		}
	}
	return lost, nil
}
