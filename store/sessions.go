package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// sessionLost is how long a node may be silent. Where many of one site fall
// silent together it is the way to them that is broken, and a fleet must not
// flap: they have splitPatience times as long to come back.
const (
	sessionLost   = 90 * time.Second
	splitPatience = 2
)

// Silence of a part of a site's sessions, fewLost and a twentieth at least, for
// two thirds of sessionLost makes it a split. It is judged before the first of
// them is lost, since they were not all heard of at the same moment last.
const (
	fewLost  = 3
	partLost = 20
)

// gatewaySteady is how long a gateway must have served without a break before
// silence is a node's own: nodes need time to find a gateway that came back.
const gatewaySteady = 2 * time.Minute

// leastLost is how long a node may be silent at least where time is scaled: a
// busy machine delays its agents as much as ever.
const leastLost = 30 * time.Second

// OpenSession begins a node's session at a gateway and returns its epoch. The
// one before, wherever it is, ends with it.
func (s *Store) OpenSession(ctx context.Context, gateway string, shown ShownCert) (epoch int64, err error) {
	if epoch, err = s.reopenSession(ctx, gateway, shown); err != nil || epoch > 0 {
		return epoch, err
	}
	err = s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		epoch, err = connect(ctx, tx, gateway, shown)
		return err
	})
	s.Notify()
	return epoch, err
}

// reopenSession begins the session of a node that counts as connected: nothing
// changes of the node, so a fleet that comes back costs one statement a node and
// takes no node's lock. 0 is that there is more to be done, or to be refused.
func (s *Store) reopenSession(ctx context.Context, gateway string, shown ShownCert) (epoch int64, err error) {
	err = s.pool.QueryRow(ctx, `UPDATE sessions s SET epoch = s.epoch + 1, gateway = $5, connected_at = now(), last_seen_at = now()
		FROM certificates c JOIN nodes n ON n.id = c.node_id
		WHERE s.node_id = $1 AND s.disconnected_at IS NULL AND n.deleted_at IS NULL AND n.identity_generation = $3
		AND c.serial = $2 AND c.node_id = $1 AND c.generation = $3 AND c.key_hash = $4
		AND c.used_at IS NOT NULL AND c.revoked_at IS NULL AND c.not_after > now()
		RETURNING s.epoch`, shown.NodeID, shown.Serial, shown.Generation, shown.KeyHash, gateway).Scan(&epoch)
	if isNoRows(err) {
		return 0, nil
	}
	return epoch, wrapDoing(wrap(err), "reopen the session of node "+shown.NodeID)
}

// connect begins the session of a node that does not count as connected, and
// wakes what waits for it.
func connect(ctx context.Context, tx pgx.Tx, gateway string, shown ShownCert) (epoch int64, err error) {
	if _, _, err := lockNode(ctx, tx, shown.NodeID); err != nil {
		if fleet.CodeOf(err) == fleet.CodeNotFound {
			return 0, notServed("is not of a node that is here")
		}
		return 0, err
	}
	if err := judgeCert(ctx, tx, shown, 0); err != nil {
		return 0, err
	}
	if _, err := tx.Exec(ctx, `UPDATE certificates SET used_at = now() WHERE serial = $1 AND used_at IS NULL`, shown.Serial); err != nil {
		return 0, fmt.Errorf("note the use of a certificate of node %s: %w", shown.NodeID, err)
	}
	err = tx.QueryRow(ctx, `INSERT INTO sessions (node_id, epoch, gateway, connected_at, last_seen_at) VALUES ($1, 1, $2, now(), now())
		ON CONFLICT (node_id) DO UPDATE SET epoch = sessions.epoch + 1, gateway = EXCLUDED.gateway, connected_at = now(), last_seen_at = now(), disconnected_at = NULL
		RETURNING epoch`, shown.NodeID, gateway).Scan(&epoch)
	if err != nil {
		return 0, fmt.Errorf("open the session of node %s: %w", shown.NodeID, err)
	}
	if err := setCondition(ctx, tx, shown.NodeID, fleet.Condition{Type: "Connected", Status: fleet.ConditionTrue, Reason: "session"}); err != nil {
		return 0, err
	}
	if err := WantReconcile(ctx, tx, shown.NodeID); err != nil {
		return 0, err
	}
	return epoch, wakeNode(ctx, tx, shown.NodeID)
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

// silentSQL finds the nodes that are lost: silent for $1, few of their site, at a
// gateway that has served without a break for $2; or silent for $3 while that
// gateway, or where it is gone some other, has so served.
const silentSQL = `
WITH steady AS MATERIALIZED (SELECT id FROM gateways WHERE at > now() - interval '30 seconds' AND since < now() - $2::interval),
silent AS MATERIALIZED (
	SELECT s.node_id, s.last_seen_at, n.site_id FROM sessions s JOIN nodes n ON n.id = s.node_id
	WHERE s.disconnected_at IS NULL AND s.last_seen_at < now() - $1::interval
	AND (s.gateway IN (SELECT id FROM steady)
		OR EXISTS (SELECT FROM steady) AND s.last_seen_at < now() - $3::interval
		AND NOT EXISTS (SELECT FROM gateways g WHERE g.id = s.gateway AND g.at > now() - $3::interval))),
sites AS (
	SELECT n.site_id, count(*) FILTER (WHERE s.last_seen_at < now() - $1::interval * 2 / 3) AS quiet, count(*) AS live
	FROM sessions s JOIN nodes n ON n.id = s.node_id
	WHERE s.disconnected_at IS NULL AND n.site_id IN (SELECT site_id FROM silent) GROUP BY n.site_id)
SELECT node_id FROM silent JOIN sites USING (site_id)
WHERE quiet <= greatest($4, live / $5) OR last_seen_at < now() - $3::interval
ORDER BY last_seen_at LIMIT $6`

// LoseSessions marks nodes as not connected that have been silent for too long
// while their gateway served without a break: the restart of a gateway, a split
// or an outage of ours loses no node. It returns how many.
func (s *Store) LoseSessions(ctx context.Context) (int, error) {
	scaled := func(d time.Duration) time.Duration {
		if s.TimeScale > 1 {
			return max(time.Duration(float64(d)/s.TimeScale), leastLost)
		}
		return d
	}
	ids, err := s.nodeIDs(ctx, "look for silent nodes", silentSQL, scaled(sessionLost), scaled(gatewaySteady), splitPatience*scaled(sessionLost), fewLost, partLost, upkeepBatch)
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
