package api

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// holding is what hold and unhold share: admitted in every state, waiting
// operations of the node look again.
type holding struct {
	nodeID  string
	version *int64
	dryRun  bool
	event   string
	data    map[string]any
	// hold is what is stored; nil lifts it.
	hold func() *fleet.Hold
}

func (h holding) run(ctx context.Context, c *Call) (fleet.MetalChangeOut, error) {
	var node fleet.MetalNode
	m := Mutation[fleet.MetalChangeOut]{
		NodeID: h.nodeID, Find: c.OnNode(h.nodeID), Lock: LockNode(h.nodeID), Version: h.version, Present: NodeVersion(h.nodeID),
		Input: func(ctx context.Context, tx pgx.Tx) (err error) {
			node, err = store.LoadMetal(ctx, tx, h.nodeID)
			return err
		},
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.MetalChangeOut, error) { return h.change(ctx, c, tx, node) },
	}
	if h.dryRun {
		m.DryRun = func(context.Context, pgx.Tx) (fleet.MetalChangeOut, error) { return unmoved(node), nil }
	}
	return Mutate(ctx, c, m)
}

func (h holding) change(ctx context.Context, c *Call, tx pgx.Tx, before fleet.MetalNode) (fleet.MetalChangeOut, error) {
	hold := h.hold()
	if hold == nil && before.Hold == nil {
		return fleet.MetalChangeOut{Node: before}, nil
	}
	if _, err := store.HoldNode(ctx, tx, h.nodeID, hold); err != nil {
		return fleet.MetalChangeOut{}, err
	}
	node, err := store.LoadMetal(ctx, tx, h.nodeID)
	if err != nil {
		return fleet.MetalChangeOut{}, err
	}
	waiting, err := store.NodeWaiters(ctx, tx, h.nodeID)
	if err != nil {
		return fleet.MetalChangeOut{}, err
	}
	if err := wake(ctx, tx, waiting); err != nil {
		return fleet.MetalChangeOut{}, err
	}
	return fleet.MetalChangeOut{Node: node}, c.nodeEvent(ctx, tx, node.Node, h.event, h.data)
}

// holdInput checks that a hold does not end before it begins.
func holdInput(in fleet.MetalHoldIn) error {
	if in.Until != nil && !in.Until.After(time.Now()) {
		return fleet.Invalid("until", "a time to come")
	}
	return nil
}

func metalHold(ctx context.Context, c *Call, in fleet.MetalHoldIn) (fleet.MetalChangeOut, error) {
	data := map[string]any{"reason": in.Reason}
	if in.Until != nil {
		data["until"] = in.Until
	}
	return holding{nodeID: in.NodeID, version: in.Version, dryRun: in.DryRun, event: "node.hold.set", data: data, hold: func() *fleet.Hold {
		return &fleet.Hold{By: c.Identity, Since: fleet.At(time.Now()), Reason: in.Reason, Until: in.Until}
	}}.run(ctx, c)
}

func metalUnhold(ctx context.Context, c *Call, in fleet.MetalUnholdIn) (fleet.MetalChangeOut, error) {
	return holding{nodeID: in.NodeID, version: in.Version, dryRun: in.DryRun, event: "node.hold.lifted", data: because(in.Reason, nil),
		hold: func() *fleet.Hold { return nil }}.run(ctx, c)
}
