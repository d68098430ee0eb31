package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

func registerIdentity(r *Registry) {
	Handle(r, "joinTokens", "create", joinTokensCreate, joinTokenInput)
	Handle(r, "joinTokens", "list", joinTokensList, paged(joinTokensPage))
	Handle(r, "joinTokens", "revoke", joinTokensRevoke)
}

// newSecret makes a secret that begins with a prefix, and the hash of it that
// is stored.
func newSecret(prefix string) (secret string, hash []byte, err error) {
	b := make([]byte, 32)
	if _, err := rand.Read(b); err != nil {
		return "", nil, fmt.Errorf("make a secret: %w", err)
	}
	secret = prefix + base64.RawURLEncoding.EncodeToString(b)
	sum := sha256.Sum256([]byte(secret))
	return secret, sum[:], nil
}

// joinTokenInput checks what needs no row of joinTokens/create.
func joinTokenInput(in fleet.JoinTokensCreateIn) error {
	for key := range in.Labels {
		if ownedLabel(key) {
			return fleet.Invalid("labels["+key+"]", "a key that inventory or the system does not own (inventory/, system/)")
		}
	}
	return nil
}

// joinPlace checks the site and the pool that machines are to enter.
func (c *Call) joinPlace(ctx context.Context, tx pgx.Tx, siteID string, poolID *string) error {
	if _, err := store.LoadSite(ctx, tx, c.TenantID, siteID); err != nil || poolID == nil {
		return err
	}
	pool, err := store.LoadPool(ctx, tx, c.TenantID, *poolID)
	switch {
	case err != nil:
		return err
	case pool.TenantID != c.TenantID:
		return fleet.NotFound("pool")
	case pool.SiteID != siteID:
		return fleet.Invalid("poolId", "a pool of the site "+siteID)
	case pool.State != "active":
		return fleet.Errorf(fleet.CodeInvalidState, "pool-archived", "the pool is archived")
	}
	return nil
}

func joinTokensCreate(ctx context.Context, c *Call, in fleet.JoinTokensCreateIn) (fleet.JoinTokenSecretOut, error) {
	secret, hash, err := newSecret(store.JoinTokenPrefix)
	if err != nil {
		return fleet.JoinTokenSecretOut{}, err
	}
	return Mutate(ctx, c, Mutation[fleet.JoinTokenSecretOut]{
		Find:  c.FindTenant,
		Input: func(ctx context.Context, tx pgx.Tx) error { return c.joinPlace(ctx, tx, in.SiteID, in.PoolID) },
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.JoinTokenSecretOut, error) {
			token, err := store.InsertJoinToken(ctx, tx, store.NewJoinToken{ID: store.NewID(fleet.KindJoinToken), TenantID: c.TenantID, SiteID: in.SiteID,
				PoolID: in.PoolID, Labels: in.Labels, Hash: hash, MaxUses: in.MaxUses, TTL: time.Duration(in.TTLSeconds) * time.Second, CreatedBy: c.Identity})
			return fleet.JoinTokenSecretOut{JoinToken: token, Secret: secret}, err
		},
		Secret: true,
		Made:   func(o fleet.JoinTokenSecretOut) string { return o.JoinToken.ID },
	})
}

func joinTokensPage(in fleet.JoinTokensListIn) (pager, error) {
	filters := in
	filters.PageIn = fleet.PageIn{}
	return newPager("joinTokens/list", in.PageIn, filters, idCursor("joinTokenId"))
}

func joinTokensList(ctx context.Context, c *Call, in fleet.JoinTokensListIn) (fleet.JoinTokensPage, error) {
	pg, err := joinTokensPage(in)
	if err != nil {
		return fleet.JoinTokensPage{}, err
	}
	return ReadTenant(ctx, c, func(ctx context.Context, q store.Reader, _ Target) (fleet.JoinTokensPage, error) {
		list, err := store.ListJoinTokens(ctx, q, store.JoinTokenFilter{TenantID: c.TenantID, SiteID: in.SiteID, PoolID: in.PoolID, After: pg.after, Limit: pg.limit})
		if err != nil {
			return fleet.JoinTokensPage{}, err
		}
		items, next := cut(pg, list, func(t fleet.JoinToken) string { return t.ID })
		return fleet.JoinTokensPage{Items: items, NextCursor: next}, nil
	})
}

func joinTokensRevoke(ctx context.Context, c *Call, in fleet.JoinTokensRevokeIn) (fleet.JoinTokenOut, error) {
	return Mutate(ctx, c, Mutation[fleet.JoinTokenOut]{
		Find: c.FindTenant,
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.JoinTokenOut, error) {
			t, err := store.RevokeJoinToken(ctx, tx, c.TenantID, in.JoinTokenID)
			return fleet.JoinTokenOut{JoinToken: t}, err
		},
	})
}
