package store

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/bettercompute/compute/fleet"
)

// NodeFilter selects nodes of a list; nil members select all. After is the id
// that the page before ended with, "" for the first page.
type NodeFilter struct {
	TenantID       string
	PoolID         *string
	SiteID         *string
	Cordoned       *bool
	ProvisionState *string
	After          string
	Limit          int
}

// clauses collects conditions of a WHERE and their arguments.
type clauses struct {
	sql  []string
	args []any
}

// arg adds an argument and returns its placeholder.
func (c *clauses) arg(v any) string {
	c.args = append(c.args, v)
	return "$" + strconv.Itoa(len(c.args))
}

// add adds a condition whose %s is the placeholder of v.
func (c *clauses) add(condition string, v any) {
	c.sql = append(c.sql, strings.ReplaceAll(condition, "%s", c.arg(v)))
}

func (c *clauses) where() string { return strings.Join(c.sql, " AND ") }

// node adds what nodes/list can filter by, and the keyset.
func (c *clauses) node(f NodeFilter) {
	c.sql = append(c.sql, "n.deleted_at IS NULL")
	if f.PoolID != nil {
		c.add("n.pool_id = %s", *f.PoolID)
	}
	if f.SiteID != nil {
		c.add("n.site_id = %s", *f.SiteID)
	}
	if f.Cordoned != nil {
		c.add("n.cordoned = %s", *f.Cordoned)
	}
	if f.ProvisionState != nil {
		c.add("n.provision_state = %s", *f.ProvisionState)
	}
	if f.After != "" {
		c.add("n.id > %s", f.After)
	}
}

// ListNodes returns up to f.Limit+1 nodes that the tenant sees, in id order;
// the one beyond the limit says that there are more.
//
// Each way of seeing a node is its own ordered and limited scan, so that a
// page costs the same wherever in the fleet it begins.
func ListNodes(ctx context.Context, q Reader, f NodeFilter) ([]fleet.Node, error) {
	var c clauses
	tenant, limit := c.arg(f.TenantID), c.arg(f.Limit+1)
	c.node(f)
	sql := `WITH page AS (
		(SELECT n.id FROM node_visibility v JOIN nodes n ON n.id = v.node_id
			WHERE v.tenant_id = ` + tenant + ` AND ` + c.where() + ` ORDER BY v.node_id LIMIT ` + limit + `)
		UNION
		(SELECT x.id FROM pool_visibility pv CROSS JOIN LATERAL (SELECT n.id FROM nodes n
			WHERE n.pool_id = pv.pool_id AND ` + c.where() + ` ORDER BY n.id LIMIT ` + limit + `) x
			WHERE pv.tenant_id = ` + tenant + ` ORDER BY x.id LIMIT ` + limit + `)
		ORDER BY id LIMIT ` + limit + `)
	SELECT ` + nodeColumns + nodeFrom + ` JOIN page ON page.id = n.id ORDER BY n.id`
	if f.After != "" {
		// The keyset on the visibility's own key lets its index begin there.
		sql = strings.Replace(sql, "AND n.deleted_at IS NULL", "AND v.node_id > "+c.arg(f.After)+" AND n.deleted_at IS NULL", 1)
	}
	rows, err := q.Query(ctx, sql, c.args...)
	if err != nil {
		return nil, fmt.Errorf("list nodes of tenant %s: %w", f.TenantID, err)
	}
	list, err := collectNodes(rows)
	if err != nil {
		return nil, fmt.Errorf("list nodes of tenant %s: %w", f.TenantID, err)
	}
	return list, nil
}
