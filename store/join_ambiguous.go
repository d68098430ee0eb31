package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// conditionAmbiguous is that of a node which a machine matched together with
// another.
const conditionAmbiguous = "IdentityAmbiguous"

// tellAmbiguous marks the nodes that one machine matches by different
// attributes, and tells of it once, however often the machine tries. They are
// the token's own tenant's and site's: a token cannot make another tenant's
// nodes unfit.
func (s *Store) tellAmbiguous(ctx context.Context, matches []fleet.JoinMatch) error {
	for i, m := range matches {
		var others []string
		for j, o := range matches {
			if j != i {
				others = append(others, o.NodeID)
			}
		}
		if err := s.markAmbiguous(ctx, m.NodeID, others); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) markAmbiguous(ctx context.Context, nodeID string, others []string) error {
	return s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, _, err := lockNode(ctx, tx, nodeID); err != nil {
			if fleet.CodeOf(err) == fleet.CodeNotFound {
				return nil // deleted meanwhile: it is ambiguous no more
			}
			return err
		}
		tag, err := tx.Exec(ctx, `INSERT INTO ambiguous_identities (node_id, other_id) SELECT $1, unnest($2::text[])
			ON CONFLICT (node_id, other_id) DO UPDATE SET settled = false WHERE ambiguous_identities.settled`, nodeID, others)
		if err != nil {
			return fmt.Errorf("record that node %s is ambiguous: %w", nodeID, err)
		}
		if tag.RowsAffected() == 0 {
			return nil
		}
		err = setCondition(ctx, tx, nodeID, fleet.Condition{Type: conditionAmbiguous, Status: fleet.ConditionTrue, Reason: "join",
			Message: "a machine that wants to join matches this node and " + strings.Join(others, ", ") + " by different attributes; delete those that it is not"})
		if err != nil {
			return err
		}
		return nodeEvent(ctx, tx, nodeID, "system", "security.node.identity-ambiguous", map[string]any{"otherNodeIds": others})
	})
}

// settleAmbiguous notes that the machine of a node matches it alone now. The
// conditions that follow are SettleIdentities' to set.
func settleAmbiguous(ctx context.Context, tx pgx.Tx, nodeID string) error {
	_, err := tx.Exec(ctx, `UPDATE ambiguous_identities SET settled = true WHERE (node_id = $1 OR other_id = $1) AND NOT settled`, nodeID)
	return wrapDoing(err, "note that node "+nodeID+" is ambiguous no more")
}

// settledSQL selects the nodes that were ambiguous and are no more: every other
// one was deleted, or the machine has joined as one of them since.
const settledSQL = `SELECT a.node_id FROM ambiguous_identities a LEFT JOIN nodes o ON o.id = a.other_id AND o.deleted_at IS NULL
	GROUP BY a.node_id HAVING NOT bool_or(o.id IS NOT NULL AND NOT a.settled)`

// SettleIdentities gives back to placement the nodes that are ambiguous no more,
// and returns how many.
func (s *Store) SettleIdentities(ctx context.Context) (int, error) {
	ids, err := s.nodeIDs(ctx, "look for nodes that are ambiguous no more", settledSQL+` ORDER BY a.node_id LIMIT $1`, upkeepBatch)
	if err != nil {
		return 0, err
	}
	settled := 0
	for _, id := range ids {
		done, err := s.settleIdentity(ctx, id)
		if err != nil {
			return settled, err
		}
		if done {
			settled++
		}
	}
	return settled, nil
}

func (s *Store) settleIdentity(ctx context.Context, nodeID string) (done bool, err error) {
	err = s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		done = false
		if _, _, err := lockNode(ctx, tx, nodeID); err != nil {
			if fleet.CodeOf(err) == fleet.CodeNotFound {
				return nil // its rows go with it
			}
			return err
		}
		// Asked again under the lock: the machine may just have tried once more.
		tag, err := tx.Exec(ctx, `DELETE FROM ambiguous_identities WHERE node_id = $1 AND node_id IN (`+settledSQL+`)`, nodeID)
		if err != nil {
			return fmt.Errorf("forget that node %s was ambiguous: %w", nodeID, err)
		}
		if done = tag.RowsAffected() > 0; !done {
			return nil
		}
		return setCondition(ctx, tx, nodeID, fleet.Condition{Type: conditionAmbiguous, Status: fleet.ConditionFalse, Reason: "settled",
			Message: "no machine matches this node and another any more"})
	})
	return done, err
}
