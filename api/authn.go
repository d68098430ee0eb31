package api

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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
		if !ok1 || !ok2 || alias == "" || alias == servicePrefix || !fleet.MatchPattern("identity", alias+":x") || url == "" || audience == "" {
			return nil, fmt.Errorf("issuer %q is not alias=url,audience", entry)
		}
		if slices.ContainsFunc(out, func(i Issuer) bool { return i.Alias == alias && i.URL != url }) {
			// Who is ann of one would be ann of the other.
			return nil, fmt.Errorf("issuer %q: its alias is that of another issuer", entry)
		}
		out = append(out, Issuer{Alias: alias, URL: url, Audience: audience})
	}
	return out, nil
}

// servicePrefix is the alias of service tokens.
const servicePrefix = "svc"

// discoveryTimeout bounds one request to an issuer, and discoveryPause how soon
// one that did not answer is asked again.
const (
	discoveryTimeout = 5 * time.Second
	discoveryPause   = 5 * time.Second
)

// authenticator verifies bearer tokens.
type authenticator struct {
	issuers []*trusted
	store   *store.Store
}

func newAuthenticator(issuers []Issuer, s *store.Store) *authenticator {
	a := &authenticator{store: s}
	for _, i := range issuers {
		a.issuers = append(a.issuers, &trusted{Issuer: i})
	}
	return a
}

func unauthenticated(detail string, cause error) error {
	return &fleet.Error{Code: fleet.CodeUnauthenticated, Detail: detail, Err: cause}
}

// caller returns who a bearer token is of.
func (a *authenticator) caller(ctx context.Context, header string) (Caller, error) {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return Caller{}, unauthenticated("send a bearer token: Authorization: Bearer TOKEN", nil)
	}
	if strings.HasPrefix(token, store.ServiceTokenPrefix) {
		sum := sha256.Sum256([]byte(token))
		id, end, err := store.ServiceTokenByHash(ctx, a.store.Pool(), sum[:])
		if fleet.CodeOf(err) == fleet.CodeNotFound {
			return Caller{}, unauthenticated("the service token is not known, has expired or was revoked", nil)
		}
		return Caller{Identity: servicePrefix + ":" + id, SessionEnd: end}, err
	}
	last := errors.New("no configured issuer has the token's iss")
	iss := issuerOf(token)
	for _, i := range a.issuers {
		if i.URL != iss {
			continue
		}
		c, err := i.caller(ctx, token)
		if err == nil || fleet.CodeOf(err) == fleet.CodeUnavailable {
			return c, err
		}
		last = err
	}
	return Caller{}, unauthenticated("the token is not one of a configured issuer, or has expired; log in again", last)
}

// issuerOf reads a token's iss without believing it: it only chooses whose keys
// the token is verified with.
func issuerOf(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(payload, &claims) != nil {
		return ""
	}
	return claims.Issuer
}

// trusted is an issuer and, once it was discovered, what verifies its tokens.
// Discovery is made at its first token and again after a failure, so that an
// issuer that is away at the start keeps nothing from starting; keys are cached
// and their rotation followed by the library.
type trusted struct {
	Issuer

	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier
	failed   error
	failedAt time.Time
}

func (i *trusted) caller(ctx context.Context, token string) (Caller, error) {
	verifier, err := i.discovered(ctx)
	if err != nil {
		return Caller{}, issuerAway(err)
	}
	away := false
	id, err := verifier.Verify(context.WithValue(ctx, keysAway{}, &away), token)
	if away {
		return Caller{}, issuerAway(err)
	}
	if err != nil {
		return Caller{}, fmt.Errorf("verify a token of issuer %s: %w", i.Alias, err)
	}
	var claims struct {
		AMR []string `json:"amr"`
	}
	if err := id.Claims(&claims); err != nil {
		return Caller{}, fmt.Errorf("read the claims of a token of issuer %s: %w", i.Alias, err)
	}
	identity := i.Alias + ":" + id.Subject
	if !fleet.MatchPattern("identity", identity) {
		return Caller{}, fmt.Errorf("issuer %s: the token's sub cannot be an identity", i.Alias)
	}
	return Caller{Identity: identity, MFA: slices.Contains(claims.AMR, "mfa"), SessionEnd: id.Expiry}, nil
}

// issuerAway is what a caller is told whose token cannot be verified now, be it
// good or not.
func issuerAway(cause error) error {
	return &fleet.Error{Code: fleet.CodeUnavailable, Reason: "issuer", Detail: "the token's issuer does not answer, so the token cannot be verified; try again",
		RetryAfter: discoveryPause, Err: cause}
}

func (i *trusted) discovered(ctx context.Context) (*oidc.IDTokenVerifier, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.verifier != nil {
		return i.verifier, nil
	}
	if i.failed != nil && time.Since(i.failedAt) < discoveryPause {
		return nil, i.failed
	}
	// The keys are fetched later by this context: it must not be this request's. The
	// client's own timeout bounds each.
	ctx = oidc.ClientContext(context.WithoutCancel(ctx), &http.Client{Timeout: discoveryTimeout})
	p, err := oidc.NewProvider(ctx, i.URL)
	if err != nil {
		i.failed, i.failedAt = fmt.Errorf("discover issuer %s: %w", i.Alias, err), time.Now()
		return nil, i.failed
	}
	var document struct {
		Keys string `json:"jwks_uri"`
	}
	if err := p.Claims(&document); err != nil {
		i.failed, i.failedAt = fmt.Errorf("discover issuer %s: %w", i.Alias, err), time.Now()
		return nil, i.failed
	}
	i.verifier = oidc.NewVerifier(i.URL, newIssuerKeys(ctx, document.Keys),
		&oidc.Config{ClientID: i.Audience, SupportedSigningAlgs: []string{oidc.RS256, oidc.ES256, oidc.PS256, oidc.EdDSA}})
	return i.verifier, nil
}
