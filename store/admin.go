package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// AdminIdentity is the actor of what is done with access to the database.
const AdminIdentity = "admin:database"

// CreateTenant makes a tenant, and its first owner, if they are not there; it
// says whether anything was made.
func (s *Store) CreateTenant(ctx context.Context, tenantID, owner string) (made bool, err error) {
	err = s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		made = false
		tag, err := tx.Exec(ctx, `INSERT INTO tenants (id) VALUES ($1) ON CONFLICT DO NOTHING`, tenantID)
		if err != nil {
			return fmt.Errorf("create tenant %s: %w", tenantID, err)
		}
		bound, err := adminGrant(ctx, tx, tenantID, owner, fleet.RoleOwner)
		if err != nil {
			return err
		}
		made = tag.RowsAffected() > 0 || bound
		return AddAudit(ctx, tx, AuditIn{TenantID: tenantID, Identity: AdminIdentity, Method: "admin/create-tenant", Outcome: "OK",
			Resource: owner, RequestID: NewID(fleet.KindRequest)})
	})
	return made, err
}

// AdminGrant binds a role on a tenant to an identity, if it is not bound; it
// says whether it was made.
func (s *Store) AdminGrant(ctx context.Context, tenantID, identity string, role fleet.Role) (made bool, err error) {
	err = s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if made, err = adminGrant(ctx, tx, tenantID, identity, role); err != nil {
			return err
		}
		return AddAudit(ctx, tx, AuditIn{TenantID: tenantID, Identity: AdminIdentity, Method: "admin/grant", Outcome: "OK",
			Resource: string(role) + " " + identity, RequestID: NewID(fleet.KindRequest)})
	})
	return made, err
}

func adminGrant(ctx context.Context, tx pgx.Tx, tenantID, identity string, role fleet.Role) (bool, error) {
	tag, err := tx.Exec(ctx, `INSERT INTO bindings (id, tenant_id, identity, role, on_tenant, granted_by)
		SELECT $1, id, $3, $4, id, $5 FROM tenants WHERE id = $2 ON CONFLICT ON CONSTRAINT bindings_unique DO NOTHING`,
		NewID(fleet.KindBinding), tenantID, identity, string(role), AdminIdentity)
	if err != nil {
		return false, fmt.Errorf("grant %s to %s in tenant %s: %w", role, identity, tenantID, err)
	}
	if tag.RowsAffected() > 0 {
		return true, nil
	}
	var there bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM tenants WHERE id = $1)`, tenantID).Scan(&there); err != nil {
		return false, fmt.Errorf("look for tenant %s: %w", tenantID, err)
	}
	if !there {
		return false, fleet.NotFound("tenant")
	}
	return false, nil
}
