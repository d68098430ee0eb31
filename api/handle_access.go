package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/authz"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

func registerAccess(r *Registry) {
	Handle(r, "access", "grant", accessGrant)
	Handle(r, "access", "revoke", accessRevoke)
	Handle(r, "access", "list", accessList)
	Handle(r, "access", "audit", accessAudit)
	Handle(r, "access", "issueToken", accessIssueToken)
	Handle(r, "access", "listTokens", accessListTokens)
	Handle(r, "access", "revokeToken", accessRevokeToken)
}

// checkOn checks that exactly one member is set and that the tenant may bind
// on it: itself, a pool it owns, a node of its own.
func (c *Call) checkOn(ctx context.Context, tx pgx.Tx, on fleet.On) error {
	given := 0
	for _, s := range []string{on.TenantID, on.PoolID, on.NodeID} {
		if s != "" {
			given++
		}
	}
	switch {
	case given != 1:
		return fleet.Invalid("on", "exactly one of tenantId, poolId, nodeId")
	case on.TenantID != "" && on.TenantID != c.TenantID:
		return fleet.Invalid("on.tenantId", "the calling tenant")
	case on.PoolID != "":
		pool, err := store.LoadPool(ctx, tx, c.TenantID, on.PoolID)
		if err == nil && pool.TenantID != c.TenantID {
			return fleet.NotFound("pool")
		}
		return err
	case on.NodeID != "":
		p, err := store.LoadNodeParents(ctx, tx, c.TenantID, on.NodeID)
		if err == nil && (!p.Visible || p.TenantID != c.TenantID) {
			return fleet.NotFound("node")
		}
		return err
	}
	return nil
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
		Find:  c.FindTenant,
		Input: func(ctx context.Context, tx pgx.Tx) error { return c.checkOn(ctx, tx, in.On) },
		Judge: func(context.Context, pgx.Tx) error { return c.holds(role, in.Identity) },
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

func accessList(ctx context.Context, c *Call, in fleet.AccessListIn) (fleet.BindingsPage, error) {
	return ReadTenant(ctx, c, func(ctx context.Context, q store.Reader, _ Target) (fleet.BindingsPage, error) {
		limit, after := page(in.PageIn)
		list, err := store.ListBindings(ctx, q, c.TenantID, in.Identity, after, limit)
		if err != nil {
			return fleet.BindingsPage{}, err
		}
		items, next := cut(list, limit, func(b fleet.Binding) string { return b.ID })
		return fleet.BindingsPage{Items: items, NextCursor: next}, nil
	})
}

func accessAudit(ctx context.Context, c *Call, in fleet.AccessAuditIn) (fleet.AuditPage, error) {
	limit, after := page(in.PageIn)
	var before int64
	if after != "" {
		var err error
		if before, err = strconv.ParseInt(after, 10, 64); err != nil {
			return fleet.AuditPage{}, fleet.Invalid("cursor", "nextCursor of the page before")
		}
	}
	return ReadTenant(ctx, c, func(ctx context.Context, q store.Reader, _ Target) (fleet.AuditPage, error) {
		list, err := store.ListAudit(ctx, q, store.AuditFilter{TenantID: c.TenantID, NodeID: in.NodeID, Identity: in.Identity, Before: before, Limit: limit})
		if err != nil {
			return fleet.AuditPage{}, err
		}
		rows, next := cut(list, limit, func(r store.AuditRow) string { return strconv.FormatInt(r.ID, 10) })
		out := fleet.AuditPage{Items: make([]fleet.AuditEntry, len(rows)), NextCursor: next}
		for i, r := range rows {
			out.Items[i] = r.Entry
		}
		return out, nil
	})
}

func accessIssueToken(ctx context.Context, c *Call, in fleet.AccessIssueTokenIn) (fleet.ServiceTokenSecretOut, error) {
	b := make([]byte, 32)
	if _, err := rand.Read(b); err != nil {
		return fleet.ServiceTokenSecretOut{}, fmt.Errorf("make a token: %w", err)
	}
	secret := store.ServiceTokenPrefix + base64.RawURLEncoding.EncodeToString(b)
	hash := sha256.Sum256([]byte(secret))
	return Mutate(ctx, c, Mutation[fleet.ServiceTokenSecretOut]{
		Find:  c.FindTenant,
		Input: func(ctx context.Context, tx pgx.Tx) error { return c.checkOn(ctx, tx, in.On) },
		Judge: func(context.Context, pgx.Tx) error { return c.holds(fleet.Role(in.Role), "") },
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.ServiceTokenSecretOut, error) {
			token, err := store.InsertServiceToken(ctx, tx, store.NewServiceToken{ID: store.NewID(fleet.KindServiceToken), TenantID: c.TenantID,
				Name: in.Name, Hash: hash[:], CreatedBy: c.Identity, TTL: time.Duration(in.TTLSeconds) * time.Second})
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

func accessListTokens(ctx context.Context, c *Call, in fleet.AccessListTokensIn) (fleet.ServiceTokensPage, error) {
	return ReadTenant(ctx, c, func(ctx context.Context, q store.Reader, _ Target) (fleet.ServiceTokensPage, error) {
		limit, after := page(in.PageIn)
		list, err := store.ListServiceTokens(ctx, q, c.TenantID, after, limit)
		if err != nil {
			return fleet.ServiceTokensPage{}, err
		}
		items, next := cut(list, limit, func(t fleet.ServiceToken) string { return t.ID })
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
