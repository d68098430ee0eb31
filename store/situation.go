package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

type situationRow struct {
	State       fleet.ProvisionState
	FailedFrom  *fleet.ProvisionState
	Guarded     bool
	Hold        *fleet.Hold
	MaybeInUse  bool
	EraseOwed   bool
	Whole       bool
	Cordoned    bool
	Managed     bool
	Inventory   bool
	PolicyErase *fleet.EraseMethod
	LiveID      *string
	LiveVerb    *fleet.Verb
	ParkedID    *string
	ParkedVerb  *fleet.Verb
	Allocations []string
	Now         time.Time
}

const situationSQL = `
SELECT n.provision_state, n.failed->>'from', n.guarded, n.hold, n.maybe_in_use, n.erase_owed_since IS NOT NULL, n.whole_image, n.cordoned,
	EXISTS (SELECT 1 FROM bmcs b WHERE b.node_id = n.id), EXISTS (SELECT 1 FROM inventories i WHERE i.node_id = n.id),
	nullif(p.policy->>'eraseOnRelease', ''), l.id, l.verb, k.id, k.verb,
	ARRAY(SELECT a.id FROM allocations a WHERE a.node_id = n.id AND a.state = 'active' ORDER BY a.id), clock_timestamp()
FROM nodes n
LEFT JOIN pools p ON p.id = n.pool_id
LEFT JOIN operations l ON l.node_id = n.id AND l.lane = 'provision' AND l.state IN ('pending', 'running', 'waiting')
LEFT JOIN operations k ON k.node_id = n.id AND k.parked
WHERE n.id = $1 AND n.deleted_at IS NULL`

// LoadSituation reads all that the provision table judges a verb on a node by.
// To act on the answer the caller holds the lock of the node's row, taken by
// an earlier statement. NOT_FOUND for a node that is not there.
func LoadSituation(ctx context.Context, q Reader, nodeID string) (fleet.Situation, error) {
	rows, err := q.Query(ctx, situationSQL, nodeID)
	if err != nil {
		return fleet.Situation{}, fmt.Errorf("load the situation of node %s: %w", nodeID, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[situationRow])
	if err != nil {
		return fleet.Situation{}, noRows(err, "node", "load the situation of node "+nodeID)
	}
	s := fleet.Situation{State: r.State, Guarded: r.Guarded, Managed: r.Managed, Hold: r.Hold, Allocations: r.Allocations,
		EraseOwed: r.EraseOwed, MaybeInUse: r.MaybeInUse, Inventory: r.Inventory, Whole: r.Whole, Cordoned: r.Cordoned, Now: r.Now}
	if r.FailedFrom != nil {
		s.FailedFrom = *r.FailedFrom
	}
	if r.PolicyErase != nil {
		s.PolicyErase = *r.PolicyErase
	}
	if r.LiveID != nil {
		s.Live = &fleet.OpRef{ID: *r.LiveID, Verb: *r.LiveVerb}
	}
	if r.ParkedID != nil {
		s.Parked = &fleet.OpRef{ID: *r.ParkedID, Verb: *r.ParkedVerb}
	}
	return s, nil
}
