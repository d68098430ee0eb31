package api

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/bettercompute/compute/devidp"
	"github.com/bettercompute/compute/fleet"
)

// issuer serves an OIDC issuer until the test ends.
func issuer(t *testing.T) (*devidp.Issuer, *httptest.Server) {
	t.Helper()
	var i *devidp.Issuer
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { i.Handler().ServeHTTP(w, q) }))
	t.Cleanup(srv.Close)
	i, err := devidp.New(srv.URL, filepath.Join(t.TempDir(), "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return i, srv
}

func mint(t *testing.T, i *devidp.Issuer, token devidp.Token) string {
	t.Helper()
	s, err := i.Mint(token)
	if err != nil {
		t.Fatal(err)
	}
	return "Bearer " + s
}

// Tokens of several issuers are told apart by alias; what is not a good token
// of one of them is UNAUTHENTICATED, and an issuer that does not answer is
// UNAVAILABLE and keeps nobody else's token from being verified.
func TestAuthenticate(t *testing.T) {
	t.Parallel()
	one, oneSrv := issuer(t)
	two, twoSrv := issuer(t)
	stranger, _ := issuer(t)
	away, awaySrv := issuer(t)
	awayToken := mint(t, away, devidp.Token{Subject: "ann", TTL: time.Hour})
	awaySrv.Close()
	other, otherSrv := issuer(t)
	a := newAuthenticator([]Issuer{
		{Alias: "away", URL: awaySrv.URL, Audience: devidp.Audience},
		{Alias: "one", URL: oneSrv.URL, Audience: devidp.Audience},
		{Alias: "two", URL: twoSrv.URL, Audience: devidp.Audience},
		{Alias: "other", URL: otherSrv.URL, Audience: "another service"},
	}, nil)
	for name, c := range map[string]struct {
		header, identity string
		mfa              bool
		code             fleet.Code
	}{
		"first issuer":          {mint(t, one, devidp.Token{Subject: "ann", TTL: time.Hour}), "one:ann", false, ""},
		"second issuer":         {mint(t, two, devidp.Token{Subject: "ann", TTL: time.Hour}), "two:ann", false, ""},
		"second factor":         {mint(t, one, devidp.Token{Subject: "ann", TTL: time.Hour, MFA: true}), "one:ann", true, ""},
		"scheme in small":       {"bearer" + mint(t, one, devidp.Token{Subject: "ann", TTL: time.Hour})[6:], "one:ann", false, ""},
		"no header":             {"", "", false, fleet.CodeUnauthenticated},
		"another scheme":        {"Basic YTpi", "", false, fleet.CodeUnauthenticated},
		"no token":              {"Bearer ", "", false, fleet.CodeUnauthenticated},
		"no JWT":                {"Bearer a.b.c", "", false, fleet.CodeUnauthenticated},
		"issuer not configured": {mint(t, stranger, devidp.Token{Subject: "ann", TTL: time.Hour}), "", false, fleet.CodeUnauthenticated},
		"expired":               {mint(t, one, devidp.Token{Subject: "ann", TTL: -time.Minute}), "", false, fleet.CodeUnauthenticated},
		"another audience":      {mint(t, other, devidp.Token{Subject: "ann", TTL: time.Hour}), "", false, fleet.CodeUnauthenticated},
		"a sub with a blank":    {mint(t, one, devidp.Token{Subject: "a b", TTL: time.Hour}), "", false, fleet.CodeUnauthenticated},
		"an empty sub":          {mint(t, one, devidp.Token{Subject: "", TTL: time.Hour}), "", false, fleet.CodeUnauthenticated},
		"issuer away":           {awayToken, "", false, fleet.CodeUnavailable},
		"signature cut":         {mint(t, one, devidp.Token{Subject: "ann", TTL: time.Hour})[:200], "", false, fleet.CodeUnauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := a.caller(t.Context(), c.header)
			if fleet.CodeOf(err) != c.code || got.Identity != c.identity || got.MFA != c.mfa {
				t.Errorf("caller %+v, error %v; want %q, mfa %v, %q", got, err, c.identity, c.mfa, c.code)
			}
		})
	}
}

// The list of issuers is read strictly.
func TestParseIssuers(t *testing.T) {
	t.Parallel()
	list, err := ParseIssuers("dev=http://127.0.0.1:1,a  corp=https://idp.example/x,b")
	if err != nil || len(list) != 2 || list[1] != (Issuer{Alias: "corp", URL: "https://idp.example/x", Audience: "b"}) {
		t.Errorf("issuers = %v, %v", list, err)
	}
	if list, err := ParseIssuers("dev=http://x,a dev=http://x,b"); err != nil || len(list) != 2 {
		t.Errorf("one issuer with two audiences: %v, %v", list, err)
	}
	for _, bad := range []string{"dev", "dev=http://x", "=http://x,a", "svc=http://x,a", "Dev=http://x,a", "dev=,a", "dev=http://x,", "dev=http://x,a dev=http://y,a"} {
		if _, err := ParseIssuers(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
