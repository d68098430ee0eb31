package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// RoleBinding is a role that an identity holds.
type RoleBinding struct {
	// TenantID is the tenant in which it was given.
	TenantID                 string
	Role                     fleet.Role
	OnTenant, OnPool, OnNode string
}

// Reaches says whether the binding covers a resource with these parents: it is
// on the tenant, on the pool or on the node. An empty parent is reached by
// nothing.
func (b RoleBinding) Reaches(tenantID, poolID, nodeID string) bool {
	return tenantID != "" && b.OnTenant == tenantID || poolID != "" && b.OnPool == poolID || nodeID != "" && b.OnNode == nodeID
}

// LoadRoles reads the bindings of an identity, in every tenant: those of the
// calling tenant, and those by which owners granted it something by name.
func LoadRoles(ctx context.Context, q Reader, identity string) ([]RoleBinding, error) {
	rows, err := q.Query(ctx, `SELECT tenant_id, role, coalesce(on_tenant, ''), coalesce(on_pool, ''), coalesce(on_node, '') FROM bindings WHERE identity = $1`, identity)
	if err != nil {
		return nil, fmt.Errorf("read the roles of %s: %w", identity, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[RoleBinding])
	if err != nil {
		return nil, fmt.Errorf("read the roles of %s: %w", identity, err)
	}
	return list, nil
}

// NodeParents are a node's owner and parents, and whether a tenant sees it.
type NodeParents struct {
	TenantID, PoolID, SiteID string
	Version                  int64
	Visible                  bool
}

// LoadNodeParents reads a node's parents and whether a tenant sees it, by the
// authorization projection. A node that is not there is not visible.
func LoadNodeParents(ctx context.Context, q Reader, tenantID, nodeID string) (NodeParents, error) {
	var p NodeParents
	err := q.QueryRow(ctx, `SELECT n.tenant_id, coalesce(n.pool_id, ''), n.site_id, n.version,
		EXISTS (SELECT FROM node_visibility v WHERE v.tenant_id = $1 AND v.node_id = n.id)
		OR EXISTS (SELECT FROM pool_visibility v WHERE v.tenant_id = $1 AND v.pool_id = n.pool_id)
		FROM nodes n WHERE n.id = $2 AND n.deleted_at IS NULL`, tenantID, nodeID).
		Scan(&p.TenantID, &p.PoolID, &p.SiteID, &p.Version, &p.Visible)
	if isNoRows(err) {
		return NodeParents{}, nil
	}
	if err != nil {
		return p, fmt.Errorf("read the parents of node %s: %w", nodeID, err)
	}
	return p, nil
}

// LockNode locks a node's row; NOT_FOUND when it is not there.
func LockNode(ctx context.Context, tx pgx.Tx, nodeID string) error {
	_, _, err := lockNode(ctx, tx, nodeID)
	return err
}

// Kept is a kept answer of an idempotent call.
type Kept struct {
	Request []byte
	Answer  []byte
	MadeID  string
}

// TakeKey takes an idempotency key for this transaction and returns the answer
// kept under it, if there is one. A key that another call is using at this
// moment is CONFLICT with a Retry-After.
func TakeKey(ctx context.Context, tx pgx.Tx, tenantID, identity, key string) (*Kept, error) {
	var got bool
	err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended($1 || chr(10) || $2 || chr(10) || $3, 42))`, tenantID, identity, key).Scan(&got)
	if err != nil {
		return nil, fmt.Errorf("take the idempotency key: %w", err)
	}
	if !got {
		e := fleet.Errorf(fleet.CodeConflict, "key-in-use", "a call with this Idempotency-Key is being made at this moment; try again")
		e.RetryAfter = 1e9
		return nil, e
	}
	k := &Kept{}
	var madeID *string
	err = tx.QueryRow(ctx, `SELECT request, answer::text, made_id FROM idempotency_keys
		WHERE tenant_id = $1 AND identity = $2 AND key = $3 AND created_at > now() - interval '24 hours'`, tenantID, identity, key).
		Scan(&k.Request, &k.Answer, &madeID)
	if isNoRows(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up the idempotency key: %w", err)
	}
	k.MadeID = orEmpty(madeID)
	return k, nil
}

// KeepAnswer stores a committed call's answer as its transaction's last write;
// a nil answer held a secret and is not kept, only the id it made.
func KeepAnswer(ctx context.Context, tx pgx.Tx, tenantID, identity, key string, k Kept) error {
	_, err := tx.Exec(ctx, `INSERT INTO idempotency_keys (tenant_id, identity, key, request, status, answer, made_id) VALUES ($1, $2, $3, $4, 200, $5, NULLIF($6, ''))
		ON CONFLICT (tenant_id, identity, key) DO UPDATE SET request = EXCLUDED.request, answer = EXCLUDED.answer, made_id = EXCLUDED.made_id, created_at = now()`,
		tenantID, identity, key, k.Request, k.Answer, k.MadeID)
	if err != nil {
		return fmt.Errorf("keep the answer of the idempotency key: %w", err)
	}
	return nil
}
