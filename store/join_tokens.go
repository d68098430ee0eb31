package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// JoinTokenPrefix begins every join token's secret, so that one that leaked is
// recognized.
const JoinTokenPrefix = "bcjoin_"

// NewJoinToken is a join token to be made. Hash is of its secret.
type NewJoinToken struct {
	ID, TenantID, SiteID string
	PoolID               *string
	Labels               map[string]string
	Hash                 []byte
	MaxUses              int
	TTL                  time.Duration
	CreatedBy            string
}

type joinTokenRow struct {
	ID        string
	SiteID    string
	PoolID    *string
	Labels    map[string]string
	MaxUses   int
	Uses      int
	ExpiresAt time.Time
	RevokedAt *time.Time
	CreatedBy string
	CreatedAt time.Time
}

const joinTokenColumns = `id, site_id, pool_id, labels, max_uses, uses, expires_at, revoked_at, created_by, created_at`

func (r *joinTokenRow) view() fleet.JoinToken {
	return fleet.JoinToken{ID: r.ID, SiteID: r.SiteID, PoolID: orEmpty(r.PoolID), Labels: r.Labels, MaxUses: r.MaxUses, Uses: r.Uses,
		ExpiresAt: fleet.At(r.ExpiresAt), RevokedAt: fleet.AtPtr(r.RevokedAt), CreatedBy: r.CreatedBy, CreatedAt: fleet.At(r.CreatedAt)}
}

// InsertJoinToken records a join token.
func InsertJoinToken(ctx context.Context, tx pgx.Tx, t NewJoinToken) (fleet.JoinToken, error) {
	labels := t.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	return oneJoinToken(ctx, tx, "insert a join token of site "+t.SiteID, `INSERT INTO join_tokens (id, tenant_id, site_id, pool_id, labels, hash, max_uses, expires_at, created_by)
		VALUES ($1, $2, $3, $4, $5, $6, $7, now() + $8::interval, $9) RETURNING `+joinTokenColumns,
		t.ID, t.TenantID, t.SiteID, t.PoolID, labels, t.Hash, t.MaxUses, t.TTL, t.CreatedBy)
}

// RevokeJoinToken revokes a token of the tenant, or returns the revocation it
// already has; NOT_FOUND for none.
func RevokeJoinToken(ctx context.Context, tx pgx.Tx, tenantID, id string) (fleet.JoinToken, error) {
	return oneJoinToken(ctx, tx, "revoke join token "+id, `UPDATE join_tokens SET revoked_at = coalesce(revoked_at, now())
		WHERE id = $1 AND tenant_id = $2 RETURNING `+joinTokenColumns, id, tenantID)
}

func oneJoinToken(ctx context.Context, q Reader, doing, sql string, args ...any) (fleet.JoinToken, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return fleet.JoinToken{}, fmt.Errorf("%s: %w", doing, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[joinTokenRow])
	if err != nil {
		return fleet.JoinToken{}, noRows(err, "join token", doing)
	}
	return r.view(), nil
}

// JoinTokenFilter selects join tokens; nil members select all.
type JoinTokenFilter struct {
	TenantID       string
	SiteID, PoolID *string
	After          string
	Limit          int
}

// ListJoinTokens returns up to f.Limit+1 tokens of the tenant in id order.
func ListJoinTokens(ctx context.Context, q Reader, f JoinTokenFilter) ([]fleet.JoinToken, error) {
	var c clauses
	c.add("tenant_id = %s", f.TenantID)
	c.add("id > %s", f.After)
	if f.SiteID != nil {
		c.add("site_id = %s", *f.SiteID)
	}
	if f.PoolID != nil {
		c.add("pool_id = %s", *f.PoolID)
	}
	rows, err := q.Query(ctx, `SELECT `+joinTokenColumns+` FROM join_tokens WHERE `+c.where()+` ORDER BY id LIMIT `+c.arg(f.Limit+1), c.args...)
	if err != nil {
		return nil, fmt.Errorf("list join tokens of tenant %s: %w", f.TenantID, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[joinTokenRow])
	if err != nil {
		return nil, fmt.Errorf("list join tokens of tenant %s: %w", f.TenantID, err)
	}
	out := make([]fleet.JoinToken, len(list))
	for i, r := range list {
		out[i] = r.view()
	}
	return out, nil
}
