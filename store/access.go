package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// NewServiceToken is a service token to be issued. Hash is of its secret.
type NewServiceToken struct {
	ID, TenantID, Name string
	Hash               []byte
	CreatedBy          string
	TTL                time.Duration
}

type serviceTokenRow struct {
	ID, Name  string
	ExpiresAt time.Time
	RevokedAt *time.Time
	CreatedBy string
	CreatedAt time.Time
}

const serviceTokenColumns = `id, name, expires_at, revoked_at, created_by, created_at`

func (r *serviceTokenRow) view() fleet.ServiceToken {
	return fleet.ServiceToken{ID: r.ID, Name: r.Name, ExpiresAt: fleet.At(r.ExpiresAt), RevokedAt: fleet.AtPtr(r.RevokedAt),
		CreatedBy: r.CreatedBy, CreatedAt: fleet.At(r.CreatedAt)}
}

// InsertServiceToken records a service token.
func InsertServiceToken(ctx context.Context, tx pgx.Tx, t NewServiceToken) (fleet.ServiceToken, error) {
	return oneServiceToken(ctx, tx, "insert service token "+t.Name, `INSERT INTO service_tokens (id, tenant_id, name, hash, created_by, expires_at)
		VALUES ($1, $2, $3, $4, $5, now() + $6) RETURNING `+serviceTokenColumns, t.ID, t.TenantID, t.Name, t.Hash, t.CreatedBy, t.TTL)
}

// RevokeServiceToken revokes a token of the tenant, or returns the revocation
// it already has; NOT_FOUND for none.
func RevokeServiceToken(ctx context.Context, tx pgx.Tx, tenantID, id string) (fleet.ServiceToken, error) {
	return oneServiceToken(ctx, tx, "revoke service token "+id, `UPDATE service_tokens SET revoked_at = coalesce(revoked_at, now())
		WHERE id = $1 AND tenant_id = $2 RETURNING `+serviceTokenColumns, id, tenantID)
}

func oneServiceToken(ctx context.Context, q Reader, doing, sql string, args ...any) (fleet.ServiceToken, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return fleet.ServiceToken{}, fmt.Errorf("%s: %w", doing, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[serviceTokenRow])
	if err != nil {
		return fleet.ServiceToken{}, noRows(err, "service token", doing)
	}
	return r.view(), nil
}

// ListServiceTokens returns up to limit+1 tokens of the tenant with ids after
// the given one, in id order.
func ListServiceTokens(ctx context.Context, q Reader, tenantID, after string, limit int) ([]fleet.ServiceToken, error) {
	rows, err := q.Query(ctx, `SELECT `+serviceTokenColumns+` FROM service_tokens WHERE tenant_id = $1 AND id > $2 ORDER BY id LIMIT $3`, tenantID, after, limit+1)
	if err != nil {
		return nil, fmt.Errorf("list service tokens of tenant %s: %w", tenantID, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[serviceTokenRow])
	if err != nil {
		return nil, fmt.Errorf("list service tokens of tenant %s: %w", tenantID, err)
	}
	out := make([]fleet.ServiceToken, len(list))
	for i, r := range list {
		out[i] = r.view()
	}
	return out, nil
}

// AuditFilter selects audit rows; nil members select all. Before is the number
// of the last row of the page before, 0 begins at the newest.
type AuditFilter struct {
	TenantID         string
	NodeID, Identity *string
	Before           int64
	Limit            int
}

// AuditRow is an audit entry with its number, which orders them.
type AuditRow struct {
	ID    int64
	Entry fleet.AuditEntry
}

// ListAudit returns up to f.Limit+1 audit rows of the tenant, newest first.
func ListAudit(ctx context.Context, q Reader, f AuditFilter) ([]AuditRow, error) {
	var c clauses
	c.add("tenant_id = %s", f.TenantID)
	if f.NodeID != nil {
		c.add("node_id = %s", *f.NodeID)
	}
	if f.Identity != nil {
		c.add("identity = %s", *f.Identity)
	}
	if f.Before != 0 {
		c.add("id < %s", f.Before)
	}
	rows, err := q.Query(ctx, `SELECT id, at, identity, method, node_id, resource, outcome, reason, dry_run, request_id FROM audit
		WHERE `+c.where()+` ORDER BY id DESC LIMIT `+c.arg(f.Limit+1), c.args...)
	if err != nil {
		return nil, fmt.Errorf("list audit of tenant %s: %w", f.TenantID, err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (AuditRow, error) {
		var (
			a                      AuditRow
			at                     time.Time
			nodeID, resource, note *string
		)
		err := row.Scan(&a.ID, &at, &a.Entry.Identity, &a.Entry.Method, &nodeID, &resource, &a.Entry.Outcome, &note, &a.Entry.DryRun, &a.Entry.RequestID)
		a.Entry.At, a.Entry.NodeID, a.Entry.Resource, a.Entry.Reason = fleet.At(at), orEmpty(nodeID), orEmpty(resource), orEmpty(note)
		return a, err
	})
	if err != nil {
		return nil, fmt.Errorf("list audit of tenant %s: %w", f.TenantID, err)
	}
	return list, nil
}
