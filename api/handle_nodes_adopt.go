package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// nodesAdopt begins a new run of the acceptance checks. A live one gives way to
// it; what runs on the node stays.
func nodesAdopt(ctx context.Context, c *Call, in fleet.NodeChangeIn) (fleet.NodeOut, error) {
	m := nodeChange(c, in.NodeID, in.Version, func(ctx context.Context, tx pgx.Tx, n fleet.Node) (string, map[string]any, error) {
		op := store.NewOperation{ID: store.NewID(fleet.KindOperation), NodeID: n.ID, TenantID: n.TenantID, Verb: fleet.VerbAdopt, Lane: store.LaneProvision,
			Input: map[string]any{}, RequestedBy: c.Identity, Reason: text(in.Reason)}
		if err := store.SupersedeAdopt(ctx, tx, n.ID, op.ID); err != nil {
			return "", nil, err
		}
		if err := c.Store().InsertOperation(ctx, tx, op); err != nil {
			return "", nil, err
		}
		if n.ProvisionState != fleet.Adopting {
			if _, err := store.MoveNode(ctx, tx, n.ID, fleet.Adopting); err != nil {
				return "", nil, err
			}
		}
		return "node.adopting", because(in.Reason, map[string]any{"operationId": op.ID}), nil
	})
	m.Judge = func(ctx context.Context, tx pgx.Tx) error {
		_, err := judge(ctx, tx, in.NodeID, fleet.Ask{Verb: fleet.VerbAdopt, Reason: text(in.Reason)})
		return err
	}
	return Mutate(ctx, c, m)
}
