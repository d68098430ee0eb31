package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

type bindingRow struct {
	ID, Identity, Role       string
	OnTenant, OnPool, OnNode *string
	GrantedBy                string
	CreatedAt                time.Time
}

const bindingColumns = `id, identity, role, on_tenant, on_pool, on_node, granted_by, created_at`

func (r *bindingRow) view() fleet.Binding {
	return fleet.Binding{ID: r.ID, Identity: r.Identity, Role: r.Role, GrantedBy: r.GrantedBy, CreatedAt: fleet.At(r.CreatedAt),
		On: fleet.On{TenantID: orEmpty(r.OnTenant), PoolID: orEmpty(r.OnPool), NodeID: orEmpty(r.OnNode)}}
}

// NewBinding is a role to be given.
type NewBinding struct {
	ID, TenantID, Identity, Role string
	On                           fleet.On
	GrantedBy                    string
}

// InsertBinding gives a role. The one that is there already is CONFLICT.
func InsertBinding(ctx context.Context, tx pgx.Tx, b NewBinding) (fleet.Binding, error) {
	rows, err := tx.Query(ctx, `INSERT INTO bindings (id, tenant_id, identity, role, on_tenant, on_pool, on_node, granted_by)
		VALUES ($1, $2, $3, $4, nullif($5, ''), nullif($6, ''), nullif($7, ''), $8) RETURNING `+bindingColumns,
		b.ID, b.TenantID, b.Identity, b.Role, b.On.TenantID, b.On.PoolID, b.On.NodeID, b.GrantedBy)
	if err != nil {
		return fleet.Binding{}, fmt.Errorf("insert binding: %w", err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[bindingRow])
	if err != nil {
		return fleet.Binding{}, fmt.Errorf("insert binding: %w", err)
	}
	return r.view(), nil
}

// DeleteBinding takes a binding of the tenant back and returns what it was, or
// NOT_FOUND.
func DeleteBinding(ctx context.Context, tx pgx.Tx, tenantID, bindingID string) (fleet.Binding, error) {
	rows, err := tx.Query(ctx, `DELETE FROM bindings WHERE id = $1 AND tenant_id = $2 RETURNING `+bindingColumns, bindingID, tenantID)
	if err != nil {
		return fleet.Binding{}, fmt.Errorf("delete binding %s: %w", bindingID, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[bindingRow])
	if err != nil {
		return fleet.Binding{}, noRows(err, "binding", "delete binding "+bindingID)
	}
	return r.view(), nil
}

// ListBindings returns up to limit+1 bindings of the tenant with ids after the
// given one, of one identity when it is not nil.
func ListBindings(ctx context.Context, q Reader, tenantID string, identity *string, after string, limit int) ([]fleet.Binding, error) {
	rows, err := q.Query(ctx, `SELECT `+bindingColumns+` FROM bindings WHERE tenant_id = $1 AND ($2::text IS NULL OR identity = $2) AND id > $3 ORDER BY id LIMIT $4`,
		tenantID, identity, after, limit+1)
	if err != nil {
		return nil, fmt.Errorf("list bindings of tenant %s: %w", tenantID, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[bindingRow])
	if err != nil {
		return nil, fmt.Errorf("list bindings of tenant %s: %w", tenantID, err)
	}
	out := make([]fleet.Binding, len(list))
	for i, r := range list {
		out[i] = r.view()
	}
	return out, nil
}
