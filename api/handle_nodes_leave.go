package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// revokeReason is why certificates were revoked when the caller gives no reason.
const revokeReason = "identity revoked"

// nodesRevokeIdentity revokes the node's certificates. Gateways close its
// sessions when they next look.
func nodesRevokeIdentity(ctx context.Context, c *Call, in fleet.NodeChangeIn) (fleet.RevokedIdentityOut, error) {
	return Mutate(ctx, c, Mutation[fleet.RevokedIdentityOut]{
		NodeID: in.NodeID, Find: c.OnNode(in.NodeID), Lock: LockNode(in.NodeID), Version: in.Version, Present: NodeVersion(in.NodeID),
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.RevokedIdentityOut, error) {
			var out fleet.RevokedIdentityOut
			reason := revokeReason
			if in.Reason != nil && *in.Reason != "" {
				reason = *in.Reason
			}
			var err error
			if out.RevokedCertificates, _, err = store.RevokeNodeIdentity(ctx, tx, in.NodeID, reason); err != nil {
				return out, err
			}
			n, err := store.LoadNode(ctx, tx, in.NodeID)
			if err != nil {
				return out, err
			}
			out.Node = c.nodeView(n)
			err = c.nodeEvent(ctx, tx, n, "security.node.identity-revoked",
				map[string]any{"reason": reason, "revokedCertificates": out.RevokedCertificates, "generation": n.IdentityGeneration})
			if err != nil {
				return out, err
			}
			return out, store.WantReconcile(ctx, tx, in.NodeID)
		},
	})
}

// deletion is one call of nodes/delete: of a node that is there, or of one that
// was deleted before, which answers so to those who saw it and may delete it.
type deletion struct {
	c    *Call
	in   fleet.NodeChangeIn
	pool string
	gone bool
}

func nodesDelete(ctx context.Context, c *Call, in fleet.NodeChangeIn) (fleet.DeletedOut, error) {
	d := &deletion{c: c, in: in}
	return Mutate(ctx, c, Mutation[fleet.DeletedOut]{
		NodeID: in.NodeID, Find: d.find, Before: d.lockPool, Lock: d.lock, Version: in.Version, Present: d.present,
		Judge: func(ctx context.Context, tx pgx.Tx) error {
			if d.gone {
				return nil
			}
			s, err := store.LoadSituation(ctx, tx, in.NodeID)
			if err != nil {
				return err
			}
			return fleet.Admit(s, fleet.Ask{Verb: fleet.VerbDelete})
		},
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.DeletedOut, error) {
			if d.gone {
				return fleet.DeletedOut{}, nil
			}
			return fleet.DeletedOut{Deleted: true}, store.DeleteNode(ctx, tx, store.Deletion{NodeID: in.NodeID, Actor: c.Identity, Reason: in.Reason})
		},
	})
}

// find finds the node, or its tombstone for a tenant that saw it and an identity
// that may delete it: to anybody else a deleted node is not there.
func (d *deletion) find(ctx context.Context, tx pgx.Tx) (Target, error) {
	t, err := d.c.findNode(ctx, tx, d.in.NodeID)
	d.gone = fleet.CodeOf(err) == fleet.CodeNotFound
	if !d.gone {
		d.pool = t.PoolID
		return t, err
	}
	left, lerr := store.LoadTombstone(ctx, tx, d.c.TenantID, d.in.NodeID)
	if lerr != nil {
		return Target{}, lerr
	}
	if left == nil {
		return Target{}, err
	}
	t = Target{Kind: fleet.OnNode, ID: d.in.NodeID, OwnerTenant: left.TenantID, PoolID: left.PoolID, NodeID: d.in.NodeID}
	if !d.c.May(d.c.Method.Permission, t) {
		return Target{}, err
	}
	return t, nil
}

func (d *deletion) lockPool(ctx context.Context, tx pgx.Tx) error {
	if d.pool == "" {
		return nil
	}
	return store.LockPool(ctx, tx, d.pool, true)
}

// lock locks the node's row and sees that it is still in the pool that was
// locked before. One that was deleted meanwhile is found to be so afterwards.
func (d *deletion) lock(ctx context.Context, tx pgx.Tx) error {
	err := store.LockNode(ctx, tx, d.in.NodeID)
	if fleet.CodeOf(err) == fleet.CodeNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	p, err := store.LoadNodeParents(ctx, tx, d.c.TenantID, d.in.NodeID)
	if err == nil && p.PoolID != d.pool {
		return store.PoolChanged(d.in.NodeID)
	}
	return err
}

// present is the version that the caller's is compared with: any is right for a
// node that is gone.
func (d *deletion) present(ctx context.Context, tx pgx.Tx) (int64, error) {
	if d.gone {
		return *d.in.Version, nil
	}
	return NodeVersion(d.in.NodeID)(ctx, tx)
}
