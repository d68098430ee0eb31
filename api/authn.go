package api

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// Issuer is a trusted OIDC issuer. An identity of it is <Alias>:<sub>.
type Issuer struct{ Alias, URL, Audience string }

// ParseIssuers reads "alias=url,audience" entries, separated by blanks.
func ParseIssuers(text string) ([]Issuer, error) {
	var out []Issuer
	for _, entry := range strings.Fields(text) {
		alias, rest, ok1 := strings.Cut(entry, "=")
		url, audience, ok2 := strings.Cut(rest, ",")
		if !ok1 || !ok2 || alias == "" || alias == servicePrefix || url == "" || audience == "" {
			return nil, fmt.Errorf("issuer %q is not alias=url,audience", entry)
		}
		out = append(out, Issuer{Alias: alias, URL: url, Audience: audience})
	}
	return out, nil
}

// servicePrefix is the alias of service tokens.
const servicePrefix = "svc"

// authenticator verifies bearer tokens. Discovery is made at an issuer's first
// token and again after a failure, so that an issuer that is away at the start
// keeps nothing from starting; keys are cached and their rotation followed by
// the library.
type authenticator struct {
	issuers []Issuer
	store   *store.Store

	mu        sync.Mutex
	verifiers map[string]*oidc.IDTokenVerifier
}

var unauthenticated = func(detail string) error { return fleet.Errorf(fleet.CodeUnauthenticated, "", "%s", detail) }

// caller returns who a bearer token is of.
func (a *authenticator) caller(ctx context.Context, header string) (Caller, error) {
	token, ok := strings.CutPrefix(header, "Bearer ")
	if !ok || token == "" {
		return Caller{}, unauthenticated("send a bearer token: Authorization: Bearer TOKEN")
	}
	if strings.HasPrefix(token, store.ServiceTokenPrefix) {
		sum := sha256.Sum256([]byte(token))
		id, end, err := store.ServiceTokenByHash(ctx, a.store.Pool(), sum[:])
		if fleet.CodeOf(err) == fleet.CodeNotFound {
			return Caller{}, unauthenticated("the service token is not known, has expired or was revoked")
		}
		return Caller{Identity: servicePrefix + ":" + id, SessionEnd: end}, err
	}
	var last error
	for _, i := range a.issuers {
		verifier, err := a.verifier(ctx, i)
		if err != nil {
			last = err
			continue
		}
		id, err := verifier.Verify(ctx, token)
		if err != nil {
			last = err
			continue
		}
		var claims struct {
			AMR []string `json:"amr"`
		}
		if err := id.Claims(&claims); err != nil {
			return Caller{}, unauthenticated("the token's claims are not readable")
		}
		return Caller{Identity: i.Alias + ":" + id.Subject, MFA: slices.Contains(claims.AMR, "mfa"), SessionEnd: id.Expiry}, nil
	}
	return Caller{}, &fleet.Error{Code: fleet.CodeUnauthenticated, Detail: "the token is not one of a configured issuer, or has expired; log in again", Err: last}
}

func (a *authenticator) verifier(ctx context.Context, i Issuer) (*oidc.IDTokenVerifier, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if v := a.verifiers[i.Alias]; v != nil {
		return v, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	// The provider keeps its context for later key fetches: it must not be this
	// request's.
	p, err := oidc.NewProvider(context.WithoutCancel(ctx), i.URL)
	if err != nil {
		return nil, fmt.Errorf("discover issuer %s: %w", i.Alias, err)
	}
	if a.verifiers == nil {
		a.verifiers = map[string]*oidc.IDTokenVerifier{}
	}
	a.verifiers[i.Alias] = p.Verifier(&oidc.Config{ClientID: i.Audience, SupportedSigningAlgs: []string{oidc.RS256, oidc.ES256, oidc.PS256, oidc.EdDSA}})
	return a.verifiers[i.Alias], nil
}
