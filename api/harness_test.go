package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/bettercompute/compute/api"
	"github.com/bettercompute/compute/authz"
	"github.com/bettercompute/compute/devidp"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/seal"
	"github.com/bettercompute/compute/store/storetest"
)

// rig is an API on a database of its own, with two tenants: acme, whose owner
// is dev:owner, and globex, whose owner is dev:owner2.
type rig struct {
	t      testing.TB
	store  *store.Store
	issuer *devidp.Issuer
	url    string
	// issuerURL is the issuer's.
	issuerURL string
	log       *bytes.Buffer
	// tokens are the tokens of subjects whose session is not the usual one.
	tokens map[string]string
	logger *slog.Logger
	site   string
}

func newRig(t testing.TB) *rig {
	t.Helper()
	return newRigOn(t, storetest.New(t))
}

func newRigOn(t testing.TB, pool *pgxpool.Pool) *rig {
	t.Helper()
	keys, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	st := store.New(pool, store.Options{Seal: keys, BootKey: []byte("boot key of a test, 32 bytes long")})
	r := &rig{t: t, store: st, log: &bytes.Buffer{}}
	r.logger = slog.New(slog.NewJSONHandler(r.log, nil))
	idp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { r.issuer.Handler().ServeHTTP(w, q) }))
	t.Cleanup(idp.Close)
	if r.issuer, err = devidp.New(idp.URL, filepath.Join(t.TempDir(), "issuer.pem")); err != nil {
		t.Fatal(err)
	}
	r.issuerURL = idp.URL
	r.url = r.serve(1e6)
	for tenant, owner := range map[string]string{"acme": "dev:owner", "globex": "dev:owner2"} {
		if _, err := st.CreateTenant(t.Context(), tenant, owner); err != nil {
			t.Fatal(err)
		}
	}
	r.grant("acme", "viewer", fleet.RoleViewer)
	r.grant("acme", "operator", fleet.RoleOperator)
	var site fleet.SiteOut
	r.ok("owner", "sites/create", obj{"tenantId": "acme", "name": "lab", "allowedNetworks": []string{"127.0.0.0/8"}}, &site)
	r.site = site.Site.ID
	return r
}

// serve starts another process of the API, with its own count of calls.
func (r *rig) serve(callsPerSecond float64) (url string) {
	_, url = r.serveWith(api.Options{CallsPerSecond: callsPerSecond})
	return url
}

// serveWith starts another process of the API with further options, by the
// built-in policies unless they are others.
func (r *rig) serveWith(o api.Options) (srv *api.Server, url string) {
	r.t.Helper()
	var err error
	if o.Authz == nil {
		if o.Authz, err = authz.New(""); err != nil {
			r.t.Fatal(err)
		}
	}
	o.Store, o.Log, o.RequestKey = r.store, r.logger, []byte("k")
	o.Issuers = []api.Issuer{{Alias: "dev", URL: r.issuerURL, Audience: devidp.Audience}}
	srv, err = api.New(o)
	if err != nil {
		r.t.Fatal(err)
	}
	web := httptest.NewServer(srv.Handler())
	r.t.Cleanup(web.Close)
	return srv, web.URL
}

type obj = map[string]any

func (r *rig) grant(tenant, subject string, role fleet.Role) {
	r.t.Helper()
	if _, err := r.store.AdminGrant(context.Background(), tenant, "dev:"+subject, role); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) token(subject string) string {
	r.t.Helper()
	if token, ok := r.tokens[subject]; ok {
		return token
	}
	token, err := r.issuer.Mint(devidp.Token{Subject: subject, TTL: time.Hour})
	if err != nil {
		r.t.Fatal(err)
	}
	return token
}

// problem is an error's answer.
type problem struct {
	HTTP   int
	Code   fleet.Code         `json:"code"`
	Reason string             `json:"reason"`
	Detail string             `json:"detail"`
	Title  string             `json:"title"`
	Fields []fleet.FieldError `json:"fields"`
	// RetryAfter is the header.
	RetryAfter string `json:"-"`
}

// call makes a call and returns its problem, nil when it succeeded.
func (r *rig) call(subject, method string, in any, out any, headers ...string) *problem {
	r.t.Helper()
	body, ok := in.([]byte)
	if !ok {
		var err error
		if body, err = json.Marshal(in); err != nil {
			r.t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, r.url+"/api/compute/"+method, bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if subject != "" {
		req.Header.Set("Authorization", "Bearer "+r.token(subject))
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if resp.StatusCode == http.StatusOK {
		var whole any
		if err := json.Unmarshal(answer, &whole); err != nil || hasNull(whole) {
			r.t.Errorf("%s answered %s (%v): what is absent is left out, and never null", method, answer, err)
		}
		if out != nil {
			if err := json.Unmarshal(answer, out); err != nil {
				r.t.Fatalf("%s answered %s: %v", method, answer, err)
			}
		}
		return nil
	}
	p := &problem{HTTP: resp.StatusCode, RetryAfter: resp.Header.Get("Retry-After")}
	if err := json.Unmarshal(answer, p); err != nil {
		r.t.Fatalf("%s answered %d %s: %v", method, resp.StatusCode, answer, err)
	}
	return p
}

// hasNull says whether there is a null anywhere in an answer.
func hasNull(v any) bool {
	switch x := v.(type) {
	case nil:
		return true
	case []any:
		return slices.ContainsFunc(x, hasNull)
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(x)), hasNull)
	}
	return false
}

// ok is a call that must succeed.
func (r *rig) ok(subject, method string, in, out any) {
	r.t.Helper()
	if p := r.call(subject, method, in, out); p != nil {
		r.t.Fatalf("%s: %+v", method, *p)
	}
}

// refused is a call that must be refused with a code.
func (r *rig) refused(subject, method string, in any, code fleet.Code, reason string) *problem {
	r.t.Helper()
	p := r.call(subject, method, in, nil)
	if p == nil {
		r.t.Fatalf("%s succeeded, want %s %s", method, code, reason)
	}
	if p.Code != code || p.Reason != reason {
		r.t.Errorf("%s: %s (%s) %s, want %s (%s)", method, p.Code, p.Reason, p.Detail, code, reason)
	}
	if (code == fleet.CodeUnavailable || code == fleet.CodeRateLimited) && p.RetryAfter == "" {
		r.t.Errorf("%s: %s (%s) says not when to try again", method, p.Code, p.Reason)
	}
	return p
}

func enrollIn(site, address string) obj {
	return obj{"tenantId": "acme", "siteId": site, "bmc": obj{"address": address, "username": "root", "password": "sesame-of-a-test"}}
}

// enrolled makes a node in a state with nothing live, as its enroll left it.
func (r *rig) enrolled(address string, state fleet.ProvisionState) fleet.MetalNode {
	r.t.Helper()
	var out fleet.MetalOperationOut
	r.ok("owner", "metal/enroll", enrollIn(r.site, address), &out)
	for _, sql := range []string{
		`UPDATE operations SET state = 'succeeded', ended_at = now() WHERE node_id = $1`,
		`UPDATE nodes SET provision_op = NULL, provision_state = '` + string(state) + `' WHERE id = $1`,
		`DELETE FROM dispatch WHERE operation_id IN (SELECT id FROM operations WHERE node_id = $1)`,
	} {
		if _, err := r.store.Pool().Exec(context.Background(), sql, out.Node.ID); err != nil {
			r.t.Fatal(err)
		}
	}
	var got fleet.MetalOut
	r.ok("owner", "metal/get", obj{"tenantId": "acme", "nodeId": out.Node.ID}, &got)
	return got.Node
}

// count counts rows.
func (r *rig) count(sql string, args ...any) int {
	r.t.Helper()
	var n int
	if err := r.store.Pool().QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}
