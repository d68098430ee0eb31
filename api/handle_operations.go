package api

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

func registerOperations(r *Registry) {
	Handle(r, "operations", "get", operationsGet)
	Handle(r, "operations", "list", operationsList, paged(operationsPage))
	Handle(r, "operations", "wait", operationsWait)
}

// findOperation finds an operation of a node of the calling tenant: operations
// are its own tenant's only.
func (c *Call) findOperation(op *fleet.Operation, id string) func(ctx context.Context, q store.Reader) (Target, error) {
	return func(ctx context.Context, q store.Reader) (Target, error) {
		var err error
		if *op, err = store.LoadOperation(ctx, q, id); err != nil {
			return Target{}, err
		}
		t, err := c.findNode(ctx, q, op.NodeID)
		// A node that the tenant does not see is told as an operation that is not
		// there; what went wrong of ours stays an error.
		if fleet.CodeOf(err) == fleet.CodeNotFound || err == nil && t.OwnerTenant != c.TenantID {
			return Target{}, fleet.NotFound("operation")
		}
		if err != nil {
			return Target{}, err
		}
		t.Kind, t.ID = fleet.OnOperation, id
		return t, nil
	}
}

func operationsGet(ctx context.Context, c *Call, in fleet.OperationsGetIn) (fleet.OperationOut, error) {
	var op fleet.Operation
	return Read(ctx, c, "", c.findOperation(&op, in.OperationID), func(ctx context.Context, q store.Reader, _ Target) (fleet.OperationOut, error) {
		if in.Evidence {
			evidence, err := store.LoadEvidence(ctx, q, op.ID)
			if err != nil {
				return fleet.OperationOut{}, err
			}
			op.Evidence = evidence
		}
		return fleet.OperationOut{Operation: op}, nil
	})
}

// A cursor of operations is the time of the last in microseconds, and its id.
func operationsCursor(o fleet.Operation) string {
	return strconv.FormatInt(o.CreatedAt.UnixMicro(), 10) + ":" + o.ID
}

// splitOperationsKey reads what operationsCursor wrote.
func splitOperationsKey(key string) (at time.Time, id string, ok bool) {
	micros, id, ok := strings.Cut(key, ":")
	n, err := strconv.ParseInt(micros, 10, 64)
	return time.UnixMicro(n), id, ok && err == nil && fleet.MatchPattern("operationId", id)
}

func operationsPage(in fleet.OperationsListIn) (pager, error) {
	filters := in
	filters.PageIn = fleet.PageIn{}
	return newPager("operations/list", in.PageIn, filters, func(key string) bool {
		_, _, ok := splitOperationsKey(key)
		return ok
	})
}

func operationsList(ctx context.Context, c *Call, in fleet.OperationsListIn) (fleet.OperationsPage, error) {
	pg, err := operationsPage(in)
	if err != nil {
		return fleet.OperationsPage{}, err
	}
	f := store.OperationFilter{TenantID: c.TenantID, State: in.State, SiteID: in.SiteID, PoolID: in.PoolID, NodeID: in.NodeID, Limit: pg.limit}
	if pg.after != "" {
		f.BeforeTime, f.BeforeID, _ = splitOperationsKey(pg.after)
	}
	return ReadTenant(ctx, c, func(ctx context.Context, q store.Reader, _ Target) (fleet.OperationsPage, error) {
		list, err := store.ListOperations(ctx, q, f)
		if err != nil {
			return fleet.OperationsPage{}, err
		}
		items, next := cut(pg, list, func(o store.ListedOperation) string { return operationsCursor(o.Operation) })
		out := fleet.OperationsPage{Items: []fleet.Operation{}, NextCursor: next}
		for _, o := range items {
			if c.May(fleet.PermOperationsRead, Target{Kind: fleet.OnOperation, ID: o.ID, OwnerTenant: c.TenantID, PoolID: o.PoolID, NodeID: o.NodeID}) {
				out.Items = append(out.Items, o.Operation)
			}
		}
		return out, nil
	})
}

func operationsWait(ctx context.Context, c *Call, in fleet.OperationsWaitIn) (fleet.OperationOut, error) {
	var op fleet.Operation
	return Read(ctx, c, "", c.findOperation(&op, in.OperationID), func(ctx context.Context, q store.Reader, _ Target) (fleet.OperationOut, error) {
		seen, err := store.LoadMark(ctx, q, op.ID)
		if err != nil {
			return fleet.OperationOut{}, err
		}
		if seen.State == op.State && !seen.Settled() {
			bounded, cancel := context.WithTimeout(ctx, time.Duration(in.TimeoutSeconds)*time.Second)
			defer cancel()
			c.srv.waiters.wait(bounded, op.ID, seen)
			if ctx.Err() != nil {
				return fleet.OperationOut{Operation: op}, nil // the caller is gone
			}
		}
		op, err = store.LoadOperation(ctx, q, op.ID)
		return fleet.OperationOut{Operation: op}, err
	})
}
