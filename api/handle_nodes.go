package api

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

func registerNodes(r *Registry) {
	Handle(r, "nodes", "list", nodesList, paged(nodesPage))
	Handle(r, "nodes", "get", nodesGet)
	Handle(r, "nodes", "events", nodesEvents, eventsInput)
	Handle(r, "nodes", "cordon", nodesCordon)
	Handle(r, "nodes", "uncordon", nodesUncordon)
	Handle(r, "nodes", "drain", nodesDrain)
	Handle(r, "nodes", "label", nodesLabel, labelsInput)
	Handle(r, "nodes", "taint", nodesTaint, taintsInput)
	Handle(r, "nodes", "adopt", nodesAdopt)
	Handle(r, "nodes", "revokeIdentity", nodesRevokeIdentity)
	Handle(r, "nodes", "delete", nodesDelete)
}

// nodeView is a node as the calling tenant sees it.
func (c *Call) nodeView(n fleet.Node) fleet.Node {
	if n.TenantID != c.TenantID {
		return n.ForOthers()
	}
	return n
}

// nodeTarget is a listed node as the target of its own decision.
func nodeTarget(n fleet.Node) Target {
	return Target{Kind: fleet.OnNode, ID: n.ID, OwnerTenant: n.TenantID, PoolID: n.PoolID, NodeID: n.ID}
}

func nodesPage(in fleet.NodesListIn) (pager, error) {
	filters := in
	filters.PageIn = fleet.PageIn{}
	return newPager("nodes/list", in.PageIn, filters, idCursor("nodeId"))
}

func nodesList(ctx context.Context, c *Call, in fleet.NodesListIn) (fleet.NodesPage, error) {
	pg, err := nodesPage(in)
	if err != nil {
		return fleet.NodesPage{}, err
	}
	return ReadTenant(ctx, c, func(ctx context.Context, q store.Reader, _ Target) (fleet.NodesPage, error) {
		list, err := store.ListNodes(ctx, q, store.NodeFilter{TenantID: c.TenantID, PoolID: in.PoolID, SiteID: in.SiteID, Cordoned: in.Cordoned,
			ProvisionState: in.ProvisionState, After: pg.after, Limit: pg.limit})
		if err != nil {
			return fleet.NodesPage{}, err
		}
		items, next := cut(pg, list, func(n fleet.Node) string { return n.ID })
		out := fleet.NodesPage{Items: []fleet.Node{}, NextCursor: next}
		for _, n := range items {
			if c.May(fleet.PermNodesRead, nodeTarget(n)) {
				out.Items = append(out.Items, c.nodeView(n))
			}
		}
		return out, nil
	})
}

func nodesGet(ctx context.Context, c *Call, in fleet.NodesGetIn) (fleet.NodeOut, error) {
	return ReadNode(ctx, c, in.NodeID, func(ctx context.Context, q store.Reader, _ Target) (fleet.NodeOut, error) {
		n, err := store.LoadNode(ctx, q, in.NodeID)
		return fleet.NodeOut{Node: c.nodeView(n)}, err
	})
}

// eventsInput checks the cursor, which is an event's own.
func eventsInput(in fleet.NodesEventsIn) error {
	if in.Cursor == nil {
		return nil
	}
	_, _, err := splitCursor(*in.Cursor)
	return err
}

func nodesEvents(ctx context.Context, c *Call, in fleet.NodesEventsIn) (fleet.EventsPage, error) {
	f := store.EventFilter{NodeID: in.NodeID, TenantID: c.TenantID}
	set(&f.Limit, in.Limit)
	set(&f.Prefix, in.Type)
	if in.Cursor != nil {
		var err error
		if f.Tx, f.Seq, err = splitCursor(*in.Cursor); err != nil {
			return fleet.EventsPage{}, err
		}
	}
	return ReadNode(ctx, c, in.NodeID, func(ctx context.Context, q store.Reader, t Target) (fleet.EventsPage, error) {
		f.Own = t.OwnerTenant == c.TenantID
		list, err := store.NodeEvents(ctx, q, f)
		if err != nil {
			return fleet.EventsPage{}, err
		}
		out := fleet.EventsPage{Items: list}
		if in.Cursor != nil {
			if out.Gap, _, err = store.EventsGap(ctx, q, f.Tx, f.Seq); err != nil {
				return fleet.EventsPage{}, err
			}
		}
		if len(list) > f.Limit {
			out.Items = list[:f.Limit]
			out.NextCursor = out.Items[f.Limit-1].Cursor
		}
		return out, nil
	})
}

// nodeChange is what the mutations of a node's own row share.
func nodeChange(c *Call, nodeID string, version *int64, change func(ctx context.Context, tx pgx.Tx, n fleet.Node) (event string, data map[string]any, err error)) Mutation[fleet.NodeOut] {
	return Mutation[fleet.NodeOut]{
		NodeID: nodeID, Find: c.OnNode(nodeID), Lock: LockNode(nodeID), Version: version, Present: NodeVersion(nodeID),
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.NodeOut, error) {
			n, err := store.LoadNode(ctx, tx, nodeID)
			if err != nil {
				return fleet.NodeOut{}, err
			}
			event, data, err := change(ctx, tx, n)
			if err != nil || event == "" {
				return fleet.NodeOut{Node: c.nodeView(n)}, err
			}
			if n, err = store.LoadNode(ctx, tx, nodeID); err != nil {
				return fleet.NodeOut{}, err
			}
			if err := c.nodeEvent(ctx, tx, n, event, data); err != nil {
				return fleet.NodeOut{}, err
			}
			return fleet.NodeOut{Node: c.nodeView(n)}, store.WantReconcile(ctx, tx, nodeID)
		},
	}
}

// nodeEvent writes an event of a node to all that see it.
func (c *Call) nodeEvent(ctx context.Context, tx pgx.Tx, n fleet.Node, typ string, data map[string]any) error {
	audience, err := store.Audience(ctx, tx, n.ID)
	if err != nil {
		return err
	}
	return store.AddEvents(ctx, tx, store.EventIn{Type: typ, NodeID: n.ID, TenantID: n.TenantID, Audience: audience, Private: fleet.EventPrivate(typ),
		Actor: c.Identity, Version: n.Version, Data: data})
}

// because is an event's data with the caller's reason, when there is one.
func because(reason *string, data map[string]any) map[string]any {
	if data == nil {
		data = map[string]any{}
	}
	if reason != nil && *reason != "" {
		data["reason"] = *reason
	}
	return data
}

// given adds those of the named members that hold something: an absent one is
// left out, never null.
func given(data map[string]any, members ...any) map[string]any {
	for i := 0; i+1 < len(members); i += 2 {
		if v := reflect.ValueOf(members[i+1]); v.Len() > 0 {
			data[members[i].(string)] = members[i+1]
		}
	}
	return data
}

func nodesCordon(ctx context.Context, c *Call, in fleet.NodeChangeIn) (fleet.NodeOut, error) {
	return Mutate(ctx, c, nodeChange(c, in.NodeID, in.Version, func(ctx context.Context, tx pgx.Tx, n fleet.Node) (string, map[string]any, error) {
		if n.Cordoned {
			return "", nil, nil
		}
		_, err := store.CordonNode(ctx, tx, in.NodeID, in.Reason)
		return "node.cordoned", because(in.Reason, nil), err
	}))
}

func nodesUncordon(ctx context.Context, c *Call, in fleet.NodeChangeIn) (fleet.NodeOut, error) {
	return Mutate(ctx, c, nodeChange(c, in.NodeID, in.Version, func(ctx context.Context, tx pgx.Tx, n fleet.Node) (string, map[string]any, error) {
		if !n.Cordoned && !slices.Contains(n.NoScheduleReasons, fleet.ReasonDraining) {
			return "", nil, nil
		}
		if err := store.EndDrain(ctx, tx, in.NodeID, "the node was uncordoned by "+c.Identity, "call nodes/drain again when the node is to be emptied"); err != nil {
			return "", nil, err
		}
		_, err := store.UncordonNode(ctx, tx, in.NodeID)
		return "node.uncordoned", because(in.Reason, nil), err
	}))
}

func nodesDrain(ctx context.Context, c *Call, in fleet.NodeChangeIn) (fleet.NodeOut, error) {
	return Mutate(ctx, c, nodeChange(c, in.NodeID, in.Version, func(ctx context.Context, tx pgx.Tx, n fleet.Node) (string, map[string]any, error) {
		if slices.Contains(n.NoScheduleReasons, fleet.ReasonDraining) {
			return "", nil, nil
		}
		if _, err := store.DrainNode(ctx, tx, in.NodeID, in.Reason); err != nil {
			return "", nil, err
		}
		op := store.NewOperation{ID: store.NewID(fleet.KindOperation), NodeID: n.ID, TenantID: n.TenantID, Verb: fleet.VerbDrain, Lane: store.LaneDrain,
			Input: map[string]any{}, RequestedBy: c.Identity}
		set(&op.Reason, in.Reason)
		return "node.draining", because(in.Reason, map[string]any{"operationId": op.ID}), c.Store().InsertOperation(ctx, tx, op)
	}))
}

// ownedLabel says whether inventory or the system owns a label's key.
func ownedLabel(key string) bool {
	return strings.HasPrefix(key, "inventory/") || strings.HasPrefix(key, "system/")
}

// labelsInput checks what needs no row of nodes/label.
func labelsInput(in fleet.NodesLabelIn) error {
	if len(in.Set) == 0 && len(in.Remove) == 0 {
		return fleet.Invalid("set", "set or remove names at least one label")
	}
	var wrong []fleet.FieldError
	for _, key := range slices.Sorted(maps.Keys(in.Set)) {
		if ownedLabel(key) {
			wrong = append(wrong, fleet.FieldError{Field: "set[" + key + "]", Constraint: "a key that inventory or the system does not own (inventory/, system/)"})
		}
	}
	if twice := inBoth(slices.Sorted(maps.Keys(in.Set)), in.Remove); len(twice) > 0 {
		wrong = append(wrong, fleet.FieldError{Field: "remove", Constraint: fmt.Sprintf("no key that is also in set (%s)", strings.Join(twice, ", "))})
	}
	if len(wrong) > 0 {
		return invalidInput(wrong)
	}
	return nil
}

// inBoth are the keys of a list that are in another as well.
func inBoth(keys, others []string) []string {
	return slices.DeleteFunc(keys, func(key string) bool { return !slices.Contains(others, key) })
}

func nodesLabel(ctx context.Context, c *Call, in fleet.NodesLabelIn) (fleet.NodeOut, error) {
	return Mutate(ctx, c, nodeChange(c, in.NodeID, in.Version, func(ctx context.Context, tx pgx.Tx, n fleet.Node) (string, map[string]any, error) {
		labels := maps.Clone(n.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, in.Set)
		for _, key := range in.Remove {
			if !ownedLabel(key) {
				delete(labels, key)
			}
		}
		_, err := store.LabelNode(ctx, tx, in.NodeID, labels)
		return "node.labeled", given(map[string]any{}, "set", in.Set, "remove", in.Remove), err
	}))
}

// taintsInput checks what needs no row of nodes/taint.
func taintsInput(in fleet.NodesTaintIn) error {
	if len(in.Add) == 0 && len(in.Remove) == 0 {
		return fleet.Invalid("add", "add or remove names at least one taint")
	}
	if twice := inBoth(slices.Clone(in.Add), in.Remove); len(twice) > 0 {
		return fleet.Invalid("remove", fmt.Sprintf("no key that is also in add (%s)", strings.Join(twice, ", ")))
	}
	return nil
}

func nodesTaint(ctx context.Context, c *Call, in fleet.NodesTaintIn) (fleet.NodeOut, error) {
	return Mutate(ctx, c, nodeChange(c, in.NodeID, in.Version, func(ctx context.Context, tx pgx.Tx, n fleet.Node) (string, map[string]any, error) {
		reasons := slices.Clone(n.NoScheduleReasons)
		for _, key := range in.Remove {
			reasons = slices.DeleteFunc(reasons, func(r string) bool { return r == fleet.TaintPrefix+key })
		}
		for _, key := range in.Add {
			if !slices.Contains(reasons, fleet.TaintPrefix+key) {
				reasons = append(reasons, fleet.TaintPrefix+key)
			}
		}
		if slices.Equal(reasons, n.NoScheduleReasons) {
			return "", nil, nil
		}
		_, err := store.TaintNode(ctx, tx, in.NodeID, reasons)
		return "node.tainted", given(map[string]any{}, "add", in.Add, "remove", in.Remove), err
	}))
}
