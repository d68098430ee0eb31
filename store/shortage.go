package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// ReasonNoCapacity is the reason of a full pool.
const ReasonNoCapacity = "no-capacity"

// Shortage is what a full pool lacks for an allocation.
type Shortage struct {
	// Asked is how many GPUs were wanted, 0 for a whole node.
	Asked int `json:"asked"`
	// Free GPUs are on nodes that take work; the most on one of them that matches
	// the selector is LargestOnOneNode.
	Free             int `json:"free"`
	LargestOnOneNode int `json:"largestOnOneNode"`
	// SetAside are free GPUs that reservations hold.
	SetAside int `json:"setAside"`
	// Queued is how many wait for the pool.
	Queued int `json:"queued"`
	// Nodes of the pool, and how many of them take no work and why.
	Nodes        int `json:"nodes"`
	NotDeployed  int `json:"notDeployed"`
	Cordoned     int `json:"cordoned"`
	NotScheduled int `json:"notScheduled"`
	NotConnected int `json:"notConnected"`
	OtherLabels  int `json:"otherLabels"`
}

// short makes the no-capacity error with what is short.
func (p *Placement) short(ctx context.Context, q Reader, r room) error {
	s := Shortage{Asked: p.GPUs, SetAside: r.setAside}
	err := q.QueryRow(ctx, `WITH all_nodes AS (
			SELECT n.*, s.node_id IS NOT NULL AND s.disconnected_at IS NULL AS connected, n.labels @> $2 AS matches, `+placeable+` AND s.node_id IS NOT NULL AS fit,
				(SELECT count(*) FROM devices d WHERE d.node_id = n.id AND d.present AND d.allocation_id IS NULL) AS free
			FROM nodes n LEFT JOIN sessions s ON s.node_id = n.id WHERE n.pool_id = $1 AND n.deleted_at IS NULL)
		SELECT count(*), coalesce(sum(free) FILTER (WHERE fit), 0), coalesce(max(free) FILTER (WHERE fit AND matches), 0),
			count(*) FILTER (WHERE provision_state NOT IN ('adopted', 'deployed')), count(*) FILTER (WHERE cordoned),
			count(*) FILTER (WHERE no_schedule_reasons <> '{}'), count(*) FILTER (WHERE NOT connected), count(*) FILTER (WHERE NOT matches),
			(SELECT count(*) FROM allocations a WHERE a.pool_id = $1 AND a.state = 'queued')
		FROM all_nodes`, p.PoolID, p.selector()).
		Scan(&s.Nodes, &s.Free, &s.LargestOnOneNode, &s.NotDeployed, &s.Cordoned, &s.NotScheduled, &s.NotConnected, &s.OtherLabels, &s.Queued)
	if err != nil {
		return fmt.Errorf("read what pool %s is short of: %w", p.PoolID, err)
	}
	return s.refusal()
}

// refusal is UNAVAILABLE, reason no-capacity, in words a person can act on.
func (s Shortage) refusal() *fleet.Error {
	asked := fmt.Sprintf("%d GPUs on one node", s.Asked)
	if s.Asked == 0 {
		asked = "a whole free node"
	}
	var why []string
	add := func(n int, format string) {
		if n > 0 {
			why = append(why, fmt.Sprintf(format, n))
		}
	}
	add(s.SetAside, "%d are set aside by reservations")
	add(s.Queued, "%d allocation(s) wait before it")
	add(s.NotDeployed, "%d node(s) are neither deployed nor adopted")
	add(s.Cordoned, "%d are cordoned")
	add(s.NotScheduled, "%d have noScheduleReasons")
	add(s.NotConnected, "%d are not in session")
	add(s.OtherLabels, "%d do not match nodeSelector")
	detail := fmt.Sprintf("the pool has no room for %s: of %d node(s) %d GPUs are free, at most %d on one node", asked, s.Nodes, s.Free, s.LargestOnOneNode)
	if len(why) > 0 {
		detail += "; " + strings.Join(why, ", ")
	}
	e := fleet.Errorf(fleet.CodeUnavailable, ReasonNoCapacity, "%s. Ask for less, pass wait: true to queue, or release something", detail).With("short", s)
	e.RetryAfter = 10 * time.Second
	return e
}
