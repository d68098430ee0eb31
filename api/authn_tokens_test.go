package api

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/bettercompute/compute/fleet"
)

// keyServer is an issuer whose keys change, whose tokens say what a test wants,
// and whose keys can be kept back.
type keyServer struct {
	*httptest.Server
	mu      sync.Mutex
	keys    []jose.JSONWebKey
	fetched int
	// broken answers for the keys, when it is set.
	broken http.HandlerFunc
}

func newKeyServer(t *testing.T) *keyServer {
	t.Helper()
	s := &keyServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		answer := any(map[string]any{"issuer": s.URL, "jwks_uri": s.URL + "/keys", "authorization_endpoint": s.URL, "token_endpoint": s.URL})
		if q.URL.Path == "/keys" {
			if s.fetched++; s.broken != nil {
				s.broken(w, q)
				return
			}
			answer = jose.JSONWebKeySet{Keys: s.keys}
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// serve makes the server answer for its keys with these, or as broken does.
func (s *keyServer) serve(broken http.HandlerFunc, keys ...jose.JSONWebKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken, s.keys = broken, keys
}

func (s *keyServer) fetches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fetched
}

// signing is a key of an issuer with its name.
type signing struct {
	key crypto.Signer
	kid string
	alg jose.SignatureAlgorithm
}

func newECKey(t *testing.T, kid string) signing {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signing{key, kid, jose.ES256}
}

func (k signing) public() jose.JSONWebKey {
	return jose.JSONWebKey{Key: k.key.Public(), KeyID: k.kid, Algorithm: string(k.alg), Use: "sig"}
}

// claims are those of a good token, with others in their place; nil takes one
// away.
func (s *keyServer) claims(others map[string]any) map[string]any {
	now := time.Now().Unix()
	c := map[string]any{"iss": s.URL, "sub": "ann", "aud": "us", "iat": now, "nbf": now - 60, "exp": now + 3600, "amr": []string{"pwd"}}
	maps.Copy(c, others)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

// token signs claims as a bearer token.
func (k signing) token(t *testing.T, claims map[string]any, header map[jose.HeaderKey]any) string {
	t.Helper()
	o := &jose.SignerOptions{ExtraHeaders: map[jose.HeaderKey]any{"kid": k.kid}}
	maps.Copy(o.ExtraHeaders, header)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: k.alg, Key: k.key}, o)
	if err != nil {
		t.Fatal(err)
	}
	return "Bearer " + signed(t, signer, claims)
}

func signed(t *testing.T, signer jose.Signer, claims map[string]any) string {
	t.Helper()
	b, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	jws, err := signer.Sign(b)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jws.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// unsigned is a token of the algorithm none, or one with the signature of another
// text.
func unsigned(t *testing.T, header string, claims map[string]any, signature string) string {
	t.Helper()
	b, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	enc := base64.RawURLEncoding.EncodeToString
	return "Bearer " + enc([]byte(header)) + "." + enc(b) + "." + signature
}

// A token is good when a key of its issuer signed it, for us and for now. Nothing
// that a token says of itself makes it good: not its algorithm, not a key that it
// brings along.
func TestTokens(t *testing.T) {
	t.Parallel()
	s := newKeyServer(t)
	good, forger := newECKey(t, "k1"), newECKey(t, "k1")
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	byRSA := signing{rsaKey, "k2", jose.RS256}
	secret := []byte("a secret that an issuer served as if it were a public key")
	s.serve(nil, good.public(), byRSA.public(), jose.JSONWebKey{Key: secret, KeyID: "k3"})
	a := newAuthenticator([]Issuer{{Alias: "corp", URL: s.URL, Audience: "us"}}, nil)

	// The classic confusion: the public key as the secret of an HMAC.
	der, err := x509.MarshalPKIXPublicKey(rsaKey.Public())
	if err != nil {
		t.Fatal(err)
	}
	hmac, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: der}, (&jose.SignerOptions{}).WithHeader("kid", "k2"))
	if err != nil {
		t.Fatal(err)
	}
	served, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: secret}, (&jose.SignerOptions{}).WithHeader("kid", "k3"))
	if err != nil {
		t.Fatal(err)
	}
	brings, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: forger.key}, &jose.SignerOptions{EmbedJWK: true})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Unix()
	whole := good.token(t, s.claims(nil), nil)
	_, signature, _ := strings.Cut(whole[strings.Index(whole, ".")+1:], ".")
	for name, c := range map[string]struct {
		header string
		want   string // the identity, "" for UNAUTHENTICATED
	}{
		"good":                         {whole, "corp:ann"},
		"by another algorithm of ours": {byRSA.token(t, s.claims(nil), nil), "corp:ann"},
		"one of several audiences":     {good.token(t, s.claims(map[string]any{"aud": []string{"them", "us"}}), nil), "corp:ann"},
		"a clock that is ahead":        {good.token(t, s.claims(map[string]any{"nbf": now + 60, "iat": now + 60}), nil), "corp:ann"},
		"without nbf, iat and amr":     {good.token(t, s.claims(map[string]any{"nbf": nil, "iat": nil, "amr": nil}), nil), "corp:ann"},

		"of the algorithm none":           {unsigned(t, `{"alg":"none"}`, s.claims(nil), ""), ""},
		"none, in other letters":          {unsigned(t, `{"alg":"nOnE"}`, s.claims(nil), ""), ""},
		"none, with a signature":          {unsigned(t, `{"alg":"none","kid":"k1"}`, s.claims(nil), signature), ""},
		"the signature of another":        {unsigned(t, `{"alg":"ES256","kid":"k1"}`, s.claims(map[string]any{"sub": "eve"}), signature), ""},
		"the public key as HMAC's":        {"Bearer " + signed(t, hmac, s.claims(nil)), ""},
		"by a secret":                     {"Bearer " + signed(t, served, s.claims(nil)), ""},
		"another key of the same name":    {forger.token(t, s.claims(nil), nil), ""},
		"a key that it brings":            {"Bearer " + signed(t, brings, s.claims(nil)), ""},
		"the right key, by another name":  {signing{good.key, "k2", jose.ES256}.token(t, s.claims(nil), nil), ""},
		"a header that must be known":     {good.token(t, s.claims(nil), map[jose.HeaderKey]any{"crit": []string{"exp"}, "exp": now + 3600}), ""},
		"not for us":                      {good.token(t, s.claims(map[string]any{"aud": "them"}), nil), ""},
		"for nobody":                      {good.token(t, s.claims(map[string]any{"aud": nil}), nil), ""},
		"for who begins as we do":         {good.token(t, s.claims(map[string]any{"aud": "us2"}), nil), ""},
		"over":                            {good.token(t, s.claims(map[string]any{"exp": now - 1}), nil), ""},
		"without an end":                  {good.token(t, s.claims(map[string]any{"exp": nil}), nil), ""},
		"an end that is no number":        {good.token(t, s.claims(map[string]any{"exp": "tomorrow"}), nil), ""},
		"not begun":                       {good.token(t, s.claims(map[string]any{"nbf": now + 600}), nil), ""},
		"of nobody":                       {good.token(t, s.claims(map[string]any{"sub": nil}), nil), ""},
		"of somebody with a line break":   {good.token(t, s.claims(map[string]any{"sub": "ann\nroot"}), nil), ""},
		"of an issuer written otherwise":  {good.token(t, s.claims(map[string]any{"iss": s.URL + "/"}), nil), ""},
		"of two issuers":                  {good.token(t, s.claims(map[string]any{"iss": []string{s.URL, "x"}}), nil), ""},
		"of a name longer than any":       {good.token(t, s.claims(map[string]any{"sub": strings.Repeat("a", 300)}), nil), ""},
		"huge":                            {"Bearer " + strings.Repeat("a", 1<<19) + "." + strings.Repeat("b", 1<<19) + ".c", ""},
		"huge, of the right issuer":       {unsigned(t, `{"alg":"ES256","kid":"k1"}`, s.claims(map[string]any{"pad": strings.Repeat("a", 1<<19)}), signature), ""},
		"many signatures":                 {"Bearer " + strings.Repeat(whole[len("Bearer "):]+".", 50), ""},
		"a service token that is unknown": {"Bearer .bcsvc_", ""},
	} {
		got, err := a.caller(t.Context(), c.header)
		code := map[bool]fleet.Code{true: fleet.CodeUnauthenticated, false: ""}[c.want == ""]
		if got.Identity != c.want || fleet.CodeOf(err) != code {
			t.Errorf("a token %s: %q, %v; want %q", name, got.Identity, err, c.want)
		}
		if got.MFA {
			t.Errorf("a token %s stands for a second factor", name)
		}
	}
	got, err := a.caller(t.Context(), good.token(t, s.claims(map[string]any{"amr": []string{"pwd", "mfa"}, "exp": now + 1800}), nil))
	if err != nil || !got.MFA || got.SessionEnd.Unix() != now+1800 {
		t.Errorf("%+v, %v; want a second factor and a session that ends with the token", got, err)
	}
}

// An issuer that does not answer is asked again after a pause, and not at each
// call.
func TestIssuerAway(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusBadGateway)
	}))
	t.Cleanup(web.Close)
	a := newAuthenticator([]Issuer{{Alias: "corp", URL: web.URL, Audience: "us"}}, nil)
	s := &keyServer{Server: web}
	token := newECKey(t, "k1").token(t, s.claims(nil), nil)
	for range 100 {
		_, err := a.caller(t.Context(), token)
		var e *fleet.Error
		if !errors.As(err, &e) || e.Code != fleet.CodeUnavailable || e.RetryAfter == 0 {
			t.Fatalf("%v, want UNAVAILABLE", err)
		}
	}
	if n := asked.Load(); n > 20 {
		t.Errorf("a hundred calls asked %d times", n)
	}
}

// A rotation is followed: tokens of the new key are good once it is served. Who
// sends tokens that no key verifies makes no fetch for each, and while the keys
// cannot be had, what they would decide is UNAVAILABLE and all else goes on.
func TestIssuerKeys(t *testing.T) {
	t.Parallel()
	s := newKeyServer(t)
	first, second, third := newECKey(t, "k1"), newECKey(t, "k2"), newECKey(t, "k3")
	s.serve(nil, first.public())
	a := newAuthenticator([]Issuer{{Alias: "corp", URL: s.URL, Audience: "us"}}, nil)
	code := func(k signing) fleet.Code {
		t.Helper()
		_, err := a.caller(t.Context(), k.token(t, s.claims(nil), nil))
		return fleet.CodeOf(err)
	}
	// becomes calls until the outcome is the one wanted and returns those before.
	becomes := func(k signing, want fleet.Code) (before []fleet.Code) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			got := code(k)
			if got == want {
				return slices.Compact(before)
			}
			if before = append(before, got); time.Now().After(deadline) {
				t.Fatalf("%v, want %q", slices.Compact(before), want)
			}
			<-tick.C
		}
	}
	if got := code(first); got != "" {
		t.Fatalf("the first key: %s", got)
	}
	for range 100 {
		if got := code(second); got != fleet.CodeUnauthenticated {
			t.Fatalf("a key that is not served: %s", got)
		}
	}
	if began := s.fetches(); began > 20 {
		t.Errorf("a hundred tokens of an unknown key made %d fetches", began)
	}
	s.serve(nil, second.public())
	for _, got := range becomes(second, "") {
		if got != fleet.CodeUnauthenticated {
			t.Errorf("before the rotation is seen: %s", got)
		}
	}
	becomes(first, fleet.CodeUnauthenticated)

	for name, broken := range map[string]http.HandlerFunc{
		"an error":       func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		"something else": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"nothing": func(w http.ResponseWriter, _ *http.Request) {
			if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
				_ = c.Close()
			}
		},
	} {
		s.serve(broken)
		for _, got := range becomes(third, fleet.CodeUnavailable) {
			if got != fleet.CodeUnauthenticated {
				t.Errorf("%s: %s", name, got)
			}
		}
		for range 5 { // it stays so
			if got := code(third); got != fleet.CodeUnavailable {
				t.Errorf("%s: then %s", name, got)
			}
		}
		if got := code(second); got != "" {
			t.Errorf("%s: a token of a key that is known: %s", name, got)
		}
		s.serve(nil, second.public())
		becomes(third, fleet.CodeUnauthenticated)
	}
}
