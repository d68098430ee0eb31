package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// Reader is what reads: a transaction, a connection or the pool.
type Reader interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// nodeRow is a node with all that its view needs, read in one statement: the
// number of round trips of a list does not depend on its length.
type nodeRow struct {
	ID                 string
	TenantID           string
	SiteID             string
	PoolID             *string
	Name               *string
	ProvisionState     fleet.ProvisionState
	Failed             *fleet.Failure
	Cordoned           bool
	CordonReason       *string
	NoScheduleReasons  []string
	Labels             map[string]string
	IdentityGeneration int64
	Guarded            bool
	Hold               *fleet.Hold
	DrainOp            *string
	Version            int64
	CreatedAt          time.Time
	UpdatedAt          time.Time
	Conditions         []fleet.Condition
	Epoch              *int64
	Gateway            *string
	ConnectedAt        *time.Time
	LastSeenAt         *time.Time
	DisconnectedAt     *time.Time
	ProvisionOp        *string
}

// nodeColumns are nodeRow's; the live operation and the parked one are found
// by their partial unique indexes.
const nodeColumns = `n.id, n.tenant_id, n.site_id, n.pool_id, n.name, n.provision_state, n.failed, n.cordoned, n.cordon_reason,
	n.no_schedule_reasons, n.labels, n.identity_generation, n.guarded, n.hold, n.drain_op, n.version, n.created_at, n.updated_at,
	coalesce((SELECT jsonb_agg(jsonb_build_object('type', c.type, 'status', c.status, 'reason', c.reason, 'message', c.message, 'since', c.since) ORDER BY c.type)
		FROM conditions c WHERE c.node_id = n.id), '[]') AS conditions,
	s.epoch, s.gateway, s.connected_at, s.last_seen_at, s.disconnected_at,
	coalesce((SELECT o.id FROM operations o WHERE o.node_id = n.id AND o.lane = 'provision' AND o.state IN ('pending', 'running', 'waiting')),
		(SELECT o.id FROM operations o WHERE o.node_id = n.id AND o.parked)) AS provision_op`

const nodeFrom = ` FROM nodes n LEFT JOIN sessions s ON s.node_id = n.id`

// view is the node as its own tenant sees it.
func (r *nodeRow) view(now time.Time) fleet.Node {
	n := fleet.Node{
		ID: r.ID, TenantID: r.TenantID, SiteID: r.SiteID, PoolID: orEmpty(r.PoolID), Name: orEmpty(r.Name),
		ProvisionState: r.ProvisionState, Failed: r.Failed, Cordoned: r.Cordoned, CordonReason: orEmpty(r.CordonReason),
		NoScheduleReasons: r.NoScheduleReasons, Labels: r.Labels, Conditions: r.Conditions,
		IdentityGeneration: r.IdentityGeneration, Guarded: r.Guarded, Version: r.Version,
		CreatedAt: fleet.At(r.CreatedAt), UpdatedAt: fleet.At(r.UpdatedAt),
	}
	if n.NoScheduleReasons == nil {
		n.NoScheduleReasons = []string{}
	}
	if r.Hold.Active(now) {
		n.Hold = r.Hold
	}
	if r.Epoch != nil && r.ConnectedAt != nil && r.LastSeenAt != nil {
		n.Session = &fleet.Session{Epoch: *r.Epoch, Gateway: orEmpty(r.Gateway), ConnectedAt: fleet.At(*r.ConnectedAt),
			LastSeenAt: fleet.At(*r.LastSeenAt), DisconnectedAt: fleet.AtPtr(r.DisconnectedAt)}
	}
	if r.ProvisionOp != nil || r.DrainOp != nil {
		n.Operations = &fleet.NodeOperations{Provision: orEmpty(r.ProvisionOp), Drain: orEmpty(r.DrainOp)}
	}
	return n
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// LoadNode returns the view of a node that was not deleted, or NOT_FOUND.
func LoadNode(ctx context.Context, q Reader, nodeID string) (fleet.Node, error) {
	rows, err := q.Query(ctx, `SELECT `+nodeColumns+nodeFrom+` WHERE n.id = $1 AND n.deleted_at IS NULL`, nodeID)
	if err != nil {
		return fleet.Node{}, fmt.Errorf("load node %s: %w", nodeID, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[nodeRow])
	if err != nil {
		return fleet.Node{}, noRows(err, "node", "load node "+nodeID)
	}
	return r.view(time.Now()), nil
}

// noRows makes NOT_FOUND of a missing row and wraps any other error.
func noRows(err error, kind, doing string) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return fleet.NotFound(kind)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

func collectNodes(rows pgx.Rows) ([]fleet.Node, error) {
	list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[nodeRow])
	if err != nil {
		return nil, err
	}
	now := time.Now()
	out := make([]fleet.Node, len(list))
	for i, r := range list {
		out[i] = r.view(now)
	}
	return out, nil
}
