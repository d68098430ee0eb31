package api

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/authz"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

func registerAccess(r *Registry) {
	Handle(r, "access", "grant", accessGrant, func(in fleet.AccessGrantIn) error { return onInput(in.TenantID, in.On) })
	Handle(r, "access", "revoke", accessRevoke)
	Handle(r, "access", "list", accessList, paged(bindingsPage))
	Handle(r, "access", "audit", accessAudit, paged(auditPage))
	Handle(r, "access", "issueToken", accessIssueToken, func(in fleet.AccessIssueTokenIn) error { return onInput(in.TenantID, in.On) })
	Handle(r, "access", "listTokens", accessListTokens, paged(tokensPage))
	Handle(r, "access", "revokeToken", accessRevokeToken)
}

// onInput checks that exactly one member is set and that a tenant is the
// calling one.
func onInput(tenantID string, on fleet.On) error {
	given := 0
	for _, s := range []string{on.TenantID, on.PoolID, on.NodeID} {
		if s != "" {
			given++
		}
	}
	switch {
	case given != 1:
		return fleet.Invalid("on", "exactly one of tenantId, poolId, nodeId")
	case on.TenantID != "" && on.TenantID != tenantID:
		return fleet.Invalid("on.tenantId", "the calling tenant")
	}
	return nil
}

// findOn finds the calling tenant, and what a role is bound on: a pool that it
// owns, or a node that it sees.
func (c *Call) findOn(on fleet.On) func(ctx context.Context, tx pgx.Tx) (Target, error) {
	return func(ctx context.Context, tx pgx.Tx) (Target, error) {
		switch {
		case on.PoolID != "":
			var pool fleet.Pool
			if _, err := c.ownPool(on.PoolID, &pool)(ctx, tx); err != nil {
				return Target{}, err
			}
		case on.NodeID != "":
			if _, err := c.findNode(ctx, tx, on.NodeID); err != nil {
				return Target{}, err
			}
		}
		return c.OnTenant(), nil
	}
}

// giving is what giving a role needs: the method's permission, and to hold
// oneself what one gives.
func (c *Call) giving(role fleet.Role, to string) func(context.Context, pgx.Tx) ([]fleet.Permission, error) {
	return func(context.Context, pgx.Tx) ([]fleet.Permission, error) {
		if err := c.Permit(c.Method.Permission, c.OnTenant()); err != nil {
			return nil, err
		}
		return nil, c.holds(role, to)
	}
}

// holds checks that the caller holds itself what it gives: every permission of
// the role on the tenant. break-glass is nobody's to hold, and is given to
// another identity only.
func (c *Call) holds(role fleet.Role, to string) error {
	if role == fleet.RoleBreakGlass {
		if to == c.Identity {
			return fleet.Errorf(fleet.CodeAccessDenied, "not-to-oneself", "break-glass is given to another identity than one's own")
		}
		return nil
	}
	for _, p := range authz.Permissions() {
		if role.Grants(p) && !c.May(p, c.OnTenant()) {
			return fleet.Errorf(fleet.CodeAccessDenied, "not-held", "%s holds %s, which the caller does not hold itself", role, p)
		}
	}
	return nil
}

func accessGrant(ctx context.Context, c *Call, in fleet.AccessGrantIn) (fleet.BindingOut, error) {
	role := fleet.Role(in.Role)
	return Mutate(ctx, c, Mutation[fleet.BindingOut]{
		Find: c.findOn(in.On), Permissions: c.giving(role, in.Identity),
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.BindingOut, error) {
			b, err := store.InsertBinding(ctx, tx, store.NewBinding{ID: store.NewID(fleet.KindBinding), TenantID: c.TenantID, Identity: in.Identity,
				Role: in.Role, On: in.On, GrantedBy: c.Identity})
			return fleet.BindingOut{Binding: b}, err
		},
		Made: func(o fleet.BindingOut) string { return o.Binding.ID },
	})
}

func accessRevoke(ctx context.Context, c *Call, in fleet.AccessRevokeIn) (fleet.BindingOut, error) {
	return Mutate(ctx, c, Mutation[fleet.BindingOut]{
		Find: c.FindTenant,
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.BindingOut, error) {
			b, err := store.DeleteBinding(ctx, tx, c.TenantID, in.BindingID)
			return fleet.BindingOut{Binding: b}, err
		},
	})
}

func bindingsPage(in fleet.AccessListIn) (pager, error) {
	filters := in
	filters.PageIn = fleet.PageIn{}
	return newPager("access/list", in.PageIn, filters, idCursor("bindingId"))
}

func accessList(ctx context.Context, c *Call, in fleet.AccessListIn) (fleet.BindingsPage, error) {
	pg, err := bindingsPage(in)
	if err != nil {
		return fleet.BindingsPage{}, err
	}
	return ReadTenant(ctx, c, func(ctx context.Context, q store.Reader, _ Target) (fleet.BindingsPage, error) {
		list, err := store.ListBindings(ctx, q, c.TenantID, in.Identity, pg.after, pg.limit)
		if err != nil {
			return fleet.BindingsPage{}, err
		}
		items, next := cut(pg, list, func(b fleet.Binding) string { return b.ID })
		return fleet.BindingsPage{Items: items, NextCursor: next}, nil
	})
}

// auditPage reads a page of the audit: a cursor's key is the row's number.
func auditPage(in fleet.AccessAuditIn) (pager, error) {
	filters := in
	filters.PageIn = fleet.PageIn{}
	return newPager("access/audit", in.PageIn, filters, func(key string) bool {
		_, err := strconv.ParseInt(key, 10, 64)
		return err == nil
	})
}

func accessAudit(ctx context.Context, c *Call, in fleet.AccessAuditIn) (fleet.AuditPage, error) {
	pg, err := auditPage(in)
	if err != nil {
		return fleet.AuditPage{}, err
	}
	var before int64
	if pg.after != "" {
		if before, err = strconv.ParseInt(pg.after, 10, 64); err != nil {
			return fleet.AuditPage{}, fmt.Errorf("read a checked cursor: %w", err)
		}
	}
	return ReadTenant(ctx, c, func(ctx context.Context, q store.Reader, _ Target) (fleet.AuditPage, error) {
		list, err := store.ListAudit(ctx, q, store.AuditFilter{TenantID: c.TenantID, NodeID: in.NodeID, Identity: in.Identity, Before: before, Limit: pg.limit})
		if err != nil {
			return fleet.AuditPage{}, err
		}
		rows, next := cut(pg, list, func(r store.AuditRow) string { return strconv.FormatInt(r.ID, 10) })
		out := fleet.AuditPage{Items: make([]fleet.AuditEntry, len(rows)), NextCursor: next}
		for i, r := range rows {
			out.Items[i] = r.Entry
		}
		return out, nil
	})
}

func accessIssueToken(ctx context.Context, c *Call, in fleet.AccessIssueTokenIn) (fleet.ServiceTokenSecretOut, error) {
	secret, hash, err := newSecret(store.ServiceTokenPrefix)
	if err != nil {
		return fleet.ServiceTokenSecretOut{}, err
	}
	return Mutate(ctx, c, Mutation[fleet.ServiceTokenSecretOut]{
		Find: c.findOn(in.On), Permissions: c.giving(fleet.Role(in.Role), ""),
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.ServiceTokenSecretOut, error) {
			token, err := store.InsertServiceToken(ctx, tx, store.NewServiceToken{ID: store.NewID(fleet.KindServiceToken), TenantID: c.TenantID,
				Name: in.Name, Hash: hash, CreatedBy: c.Identity, TTL: time.Duration(in.TTLSeconds) * time.Second})
			if err != nil {
				return fleet.ServiceTokenSecretOut{}, err
			}
			_, err = store.InsertBinding(ctx, tx, store.NewBinding{ID: store.NewID(fleet.KindBinding), TenantID: c.TenantID,
				Identity: servicePrefix + ":" + token.ID, Role: in.Role, On: in.On, GrantedBy: c.Identity})
			return fleet.ServiceTokenSecretOut{ServiceToken: token, Secret: secret}, err
		},
		Secret: true,
		Made:   func(o fleet.ServiceTokenSecretOut) string { return o.ServiceToken.ID },
	})
}

func tokensPage(in fleet.AccessListTokensIn) (pager, error) {
	return newPager("access/listTokens", in.PageIn, in.TenantIn, idCursor("serviceTokenId"))
}

func accessListTokens(ctx context.Context, c *Call, in fleet.AccessListTokensIn) (fleet.ServiceTokensPage, error) {
	pg, err := tokensPage(in)
	if err != nil {
		return fleet.ServiceTokensPage{}, err
	}
	return ReadTenant(ctx, c, func(ctx context.Context, q store.Reader, _ Target) (fleet.ServiceTokensPage, error) {
		list, err := store.ListServiceTokens(ctx, q, c.TenantID, pg.after, pg.limit)
		if err != nil {
			return fleet.ServiceTokensPage{}, err
		}
		items, next := cut(pg, list, func(t fleet.ServiceToken) string { return t.ID })
		return fleet.ServiceTokensPage{Items: items, NextCursor: next}, nil
	})
}

func accessRevokeToken(ctx context.Context, c *Call, in fleet.AccessRevokeTokenIn) (fleet.ServiceTokenOut, error) {
	return Mutate(ctx, c, Mutation[fleet.ServiceTokenOut]{
		Find: c.FindTenant,
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.ServiceTokenOut, error) {
			t, err := store.RevokeServiceToken(ctx, tx, c.TenantID, in.ServiceTokenID)
			return fleet.ServiceTokenOut{ServiceToken: t}, err
		},
	})
}
