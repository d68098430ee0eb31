package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

type siteRow struct {
	ID, TenantID         string
	Spec                 fleet.SiteSpec
	Version              int64
	CreatedAt, UpdatedAt time.Time
}

const siteColumns = `id, tenant_id, spec, version, created_at, updated_at`

func (r *siteRow) view() fleet.Site {
	s := fleet.Site{ID: r.ID, TenantID: r.TenantID, SiteSpec: r.Spec, Version: r.Version,
		CreatedAt: fleet.At(r.CreatedAt), UpdatedAt: fleet.At(r.UpdatedAt)}
	if s.AllowedNetworks == nil {
		s.AllowedNetworks = []string{}
	}
	return s
}

// InsertSite makes a site. A name taken in the tenant is CONFLICT.
func InsertSite(ctx context.Context, tx pgx.Tx, id, tenantID string, spec fleet.SiteSpec) (fleet.Site, error) {
	return oneSite(ctx, tx, "insert site "+spec.Name, `INSERT INTO sites (id, tenant_id, name, spec) VALUES ($1, $2, $3, $4) RETURNING `+siteColumns,
		id, tenantID, spec.Name, spec)
}

// LoadSite returns a site of the tenant, or NOT_FOUND.
func LoadSite(ctx context.Context, q Reader, tenantID, siteID string) (fleet.Site, error) {
	return oneSite(ctx, q, "load site "+siteID, `SELECT `+siteColumns+` FROM sites WHERE id = $1 AND tenant_id = $2`, siteID, tenantID)
}

// LockSite is LoadSite that keeps the row from changing until the transaction
// ends.
func LockSite(ctx context.Context, tx pgx.Tx, tenantID, siteID string) (fleet.Site, error) {
	return oneSite(ctx, tx, "lock site "+siteID, `SELECT `+siteColumns+` FROM sites WHERE id = $1 AND tenant_id = $2 FOR UPDATE`, siteID, tenantID)
}

// UpdateSite stores a site's settings and raises its version.
func UpdateSite(ctx context.Context, tx pgx.Tx, siteID string, spec fleet.SiteSpec) (fleet.Site, error) {
	return oneSite(ctx, tx, "update site "+siteID, `UPDATE sites SET name = $2, spec = $3, version = version + 1, updated_at = now() WHERE id = $1 RETURNING `+siteColumns,
		siteID, spec.Name, spec)
}

func oneSite(ctx context.Context, q Reader, doing, sql string, args ...any) (fleet.Site, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return fleet.Site{}, fmt.Errorf("%s: %w", doing, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[siteRow])
	if err != nil {
		return fleet.Site{}, noRows(err, "site", doing)
	}
	return r.view(), nil
}

// ListSites returns up to limit+1 sites of the tenant with ids after the given
// one, in id order.
func ListSites(ctx context.Context, q Reader, tenantID, after string, limit int) ([]fleet.Site, error) {
	rows, err := q.Query(ctx, `SELECT `+siteColumns+` FROM sites WHERE tenant_id = $1 AND id > $2 ORDER BY id LIMIT $3`, tenantID, after, limit+1)
	if err != nil {
		return nil, fmt.Errorf("list sites of tenant %s: %w", tenantID, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[siteRow])
	if err != nil {
		return nil, fmt.Errorf("list sites of tenant %s: %w", tenantID, err)
	}
	out := make([]fleet.Site, len(list))
	for i, r := range list {
		out[i] = r.view()
	}
	return out, nil
}

// SiteWaiters returns the operations of a site's nodes that wait, so that they
// can be told to look again.
func SiteWaiters(ctx context.Context, q Reader, siteID string) ([]string, error) {
	rows, err := q.Query(ctx, `SELECT o.id FROM operations o JOIN nodes n ON n.id = o.node_id WHERE n.site_id = $1 AND o.state = 'waiting' ORDER BY o.id`, siteID)
	if err != nil {
		return nil, fmt.Errorf("list waiting operations of site %s: %w", siteID, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list waiting operations of site %s: %w", siteID, err)
	}
	return ids, nil
}
