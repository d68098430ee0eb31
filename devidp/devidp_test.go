package devidp_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/devidp"
)

// serve runs an issuer under the address it names.
func serve(t *testing.T) (*httptest.Server, string) {
	t.Helper()
	key := filepath.Join(t.TempDir(), "issuer.pem")
	var issuer *devidp.Issuer
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { issuer.Handler().ServeHTTP(w, r) }))
	t.Cleanup(srv.Close)
	var err error
	if issuer, err = devidp.New(srv.URL, key); err != nil {
		t.Fatal(err)
	}
	return srv, key
}

func ask(t *testing.T, url, body string) (int, string) {
	t.Helper()
	resp, err := http.Post(url+"/token", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out struct{ Token string }
	if resp.StatusCode == http.StatusOK {
		if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode, out.Token
}

// A standard client that discovers the issuer accepts its tokens, and finds in
// them whom and how.
func TestTokenByDiscovery(t *testing.T) {
	t.Parallel()
	srv, _ := serve(t)
	provider, err := oidc.NewProvider(t.Context(), srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	verifier := provider.Verifier(&oidc.Config{ClientID: devidp.Audience})
	for body, amr := range map[string][]string{
		`{"sub":"viewer"}`: {"pwd"},
		`{"sub":"viewer","mfa":true,"ttlSeconds":60}`: {"pwd", "mfa"},
	} {
		_, raw := ask(t, srv.URL, body)
		token, err := verifier.Verify(t.Context(), raw)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		var claims struct{ AMR []string }
		if err := token.Claims(&claims); err != nil {
			t.Fatal(err)
		}
		if token.Subject != "viewer" || !cmp.Equal(claims.AMR, amr) {
			t.Errorf("%s: sub %s, amr %v, want viewer, %v", body, token.Subject, claims.AMR, amr)
		}
	}
}

// A token goes on being good when the issuer starts again.
func TestKeyOutlivesRestart(t *testing.T) {
	t.Parallel()
	srv, key := serve(t)
	again, err := devidp.New(srv.URL, key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := again.Mint(devidp.Token{Subject: "owner", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	provider, err := oidc.NewProvider(t.Context(), srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.Verifier(&oidc.Config{ClientID: devidp.Audience}).Verify(t.Context(), raw); err != nil {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	srv, _ := serve(t)
	for _, body := range []string{"", "{}", `{"sub":""}`, "[]"} {
		if status, _ := ask(t, srv.URL, body); status != http.StatusBadRequest {
			t.Errorf("%q: status %d, want 400", body, status)
		}
	}
	// The same server under another name, as a page that rebinds its name sees it.
	other := strings.Replace(srv.URL, "127.0.0.1", "localhost", 1)
	if status, _ := ask(t, other, `{"sub":"owner"}`); status != http.StatusMisdirectedRequest {
		t.Errorf("under %s: status %d, want 421", other, status)
	}
}
