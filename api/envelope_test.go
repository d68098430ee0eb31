package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/bettercompute/compute/api"
	"github.com/bettercompute/compute/authz"
	"github.com/bettercompute/compute/devidp"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// answer is what came back of a request, whole.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// problem reads an answer that is to be one.
func (a answer) problem(t *testing.T) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal(a.body, &p); err != nil {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	return p
}

// do sends a request as it is; headers can be given twice.
func (r *rig) do(verb, url string, body []byte, headers ...string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), verb, url, bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, b}
}

// post calls a method of acme as its owner.
func (r *rig) post(method string, body string, headers ...string) answer {
	r.t.Helper()
	return r.do(http.MethodPost, r.url+"/api/compute/"+method, []byte(body),
		append([]string{"Authorization", "Bearer " + r.token("owner"), "Content-Type", "application/json"}, headers...)...)
}

// Every error is one problem document, whose request id is the header's; a
// success is 200 and carries the version of what it is about as ETag.
func TestEnvelope(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	limited := r.serve(1e-9)
	r.do(http.MethodPost, limited+"/api/compute/nodes/get", nodeBody(n.ID), "Authorization", "Bearer "+r.token("owner"), "Content-Type", "application/json")
	auth := []string{"Authorization", "Bearer " + r.token("owner"), "Content-Type", "application/json"}
	path := "/api/compute/nodes/get"
	for name, c := range map[string]struct {
		verb, url string
		body      []byte
		headers   []string
		status    int
		code      fleet.Code
		sends     map[string]string
	}{
		"no such path":       {http.MethodPost, r.url + path + "/", nodeBody(n.ID), auth, 404, fleet.CodeNotFound, nil},
		"a path in capitals": {http.MethodPost, r.url + "/api/compute/Nodes/get", nodeBody(n.ID), auth, 404, fleet.CodeNotFound, nil},
		"HTTP method":        {http.MethodGet, r.url + path, nil, auth, 405, fleet.CodeNotFound, map[string]string{"Allow": "POST"}},
		"preflight":          {http.MethodOptions, r.url + path, nil, []string{"Origin", "https://evil.example"}, 405, fleet.CodeNotFound, map[string]string{"Access-Control-Allow-Origin": ""}},
		"no token":           {http.MethodPost, r.url + path, nodeBody(n.ID), auth[2:], 401, fleet.CodeUnauthenticated, map[string]string{"WWW-Authenticate": "Bearer"}},
		"rate":               {http.MethodPost, limited + path, nodeBody(n.ID), auth, 429, fleet.CodeRateLimited, nil},
		"input":              {http.MethodPost, r.url + path, []byte(`{}`), auth, 400, fleet.CodeInvalidInput, nil},
	} {
		a := r.do(c.verb, c.url, c.body, c.headers...)
		var got map[string]any
		if err := json.Unmarshal(a.body, &got); err != nil {
			t.Fatalf("%s: %s: %v", name, a.body, err)
		}
		want := map[string]any{"type": "about:blank", "status": float64(c.status), "code": string(c.code), "instance": strings.TrimPrefix(strings.TrimPrefix(c.url, r.url), limited),
			"requestId": a.header.Get("X-Request-Id")}
		for member, v := range want {
			if got[member] != v {
				t.Errorf("%s: %s is %v, want %v", name, member, got[member], v)
			}
		}
		if a.status != c.status || a.header.Get("Content-Type") != "application/problem+json" || got["title"] == "" || got["detail"] == "" || got["requestId"] == "" {
			t.Errorf("%s: %d %s %s", name, a.status, a.header.Get("Content-Type"), a.body)
		}
		for header, v := range c.sends {
			if a.header.Get(header) != v {
				t.Errorf("%s: %s is %q, want %q", name, header, a.header.Get(header), v)
			}
		}
		// One call in a thousand million seconds is let through.
		if wait, _ := strconv.Atoi(a.header.Get("Retry-After")); (wait > 1e8) != (c.status == 429) {
			t.Errorf("%s: Retry-After %q", name, a.header.Get("Retry-After"))
		}
	}
	pool := r.pool(r.site, "p")
	for method, c := range map[string]struct{ body, etag string }{
		"nodes/get": {string(nodeBody(n.ID)), `"1"`}, "metal/get": {string(nodeBody(n.ID)), `"1"`},
		"nodes/cordon": {string(nodeBody(n.ID)), `"2"`}, "sites/get": {`{"tenantId":"acme","siteId":"` + r.site + `"}`, `"1"`},
		"pools/get": {`{"tenantId":"acme","poolId":"` + pool + `"}`, `"1"`}, "nodes/list": {`{"tenantId":"acme"}`, ""},
	} {
		if method == "nodes/cordon" {
			continue // after the others
		}
		if a := r.post(method, c.body); a.status != 200 || a.header.Get("ETag") != c.etag {
			t.Errorf("%s: %d, ETag %s, want %s", method, a.status, a.header.Get("ETag"), c.etag)
		}
	}
	// If-Match is not read.
	if a := r.post("nodes/cordon", string(nodeBody(n.ID)), "If-Match", `"77"`); a.status != 200 || a.header.Get("ETag") != `"2"` {
		t.Errorf("cordon: %d, ETag %s", a.status, a.header.Get("ETag"))
	}
	if !strings.Contains(r.log.String(), `"code":"UNAUTHENTICATED"`) || !strings.Contains(r.log.String(), `"code":"INVALID_INPUT"`) {
		t.Error("what was refused is not in the log")
	}
	_, metrics := r.get("/metrics")
	for _, status := range []string{"400", "401"} {
		if !strings.Contains(string(metrics), `path="/api/compute/nodes/get",status="`+status+`"`) {
			t.Errorf("no metric counts the %s", status)
		}
	}
}

func nodeBody(id string) []byte { return []byte(`{"tenantId":"acme","nodeId":"` + id + `"}`) }

// A body is JSON by its content type, of a mebibyte at most.
func TestBodies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	body := string(nodeBody(n.ID))
	for size, want := range map[int]int{1 << 20: 200, 1<<20 + 1: 413} {
		if a := r.post("nodes/get", body+strings.Repeat(" ", size-len(body))); a.status != want {
			t.Errorf("a body of %d bytes: %d, want %d", size, a.status, want)
		}
	}
	for kind, want := range map[string]int{"application/json; charset=utf-8": 200, "Application/JSON": 200, "application/json; =": 415, "": 415,
		"text/json": 415, "application/problem+json": 415, "application/x-www-form-urlencoded": 415} {
		a := r.do(http.MethodPost, r.url+"/api/compute/nodes/get", []byte(body), "Authorization", "Bearer "+r.token("owner"), "Content-Type", kind)
		if a.status != want {
			t.Errorf("content type %q: %d, want %d", kind, a.status, want)
		}
	}
}

// An Idempotency-Key is one header of 1 to 255 printable ASCII characters;
// reads do not look at it.
func TestIdempotencyKeyForm(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	key := "Idempotency-Key"
	for name, c := range map[string]struct {
		headers []string
		taken   bool
	}{
		"one character":  {[]string{key, "a"}, true},
		"255 characters": {[]string{key, strings.Repeat("~", 255)}, true},
		"with a blank":   {[]string{key, "a b"}, true},
		"256 characters": {[]string{key, strings.Repeat("~", 256)}, false},
		"empty":          {[]string{key, ""}, false},
		"a tab":          {[]string{key, "a\tb"}, false},
		"no ASCII":       {[]string{key, "ä"}, false},
		"two":            {[]string{key, "a", key, "b"}, false},
		"the same twice": {[]string{key, "a", key, "a"}, false},
	} {
		a := r.post("nodes/cordon", string(nodeBody(n.ID)), c.headers...)
		if c.taken != (a.status == 200) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
		if p := a.problem(t); !c.taken && (a.status != 400 || len(p.Fields) != 1 || p.Fields[0].Field != key) {
			t.Errorf("%s: %+v, want the header named", name, p)
		}
		if a := r.post("nodes/get", string(nodeBody(n.ID)), c.headers...); a.status != 200 {
			t.Errorf("a read with %s: %d", name, a.status)
		}
	}
}

// A key is its tenant's and identity's, bound to the method and the meaning of
// the body, good at every process for a day, and for calls that were committed.
func TestIdempotencyKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n, m := r.enrolled("127.0.0.9", fleet.Ready), r.enrolled("127.0.0.10", fleet.Ready)
	r.grant("globex", "owner", fleet.RoleOwner)
	label := func(tenant, node, value string) obj {
		return obj{"tenantId": tenant, "nodeId": node, "set": obj{"a": value, "b": "1"}}
	}
	call := func(via *rig, subject, method string, in any) (int64, *problem) {
		t.Helper()
		var out fleet.NodeOut
		p := via.call(subject, method, in, &out, "Idempotency-Key", "k")
		return out.Node.Version, p
	}
	version, p := call(r, "operator", "nodes/label", label("acme", n.ID, "1"))
	if p != nil || version != 2 {
		t.Fatalf("version %d, %+v", version, p)
	}
	again := func(name string, via *rig, body any) {
		t.Helper()
		if v, p := call(via, "operator", "nodes/label", body); p != nil || v != version {
			t.Errorf("%s: version %d, %+v, want %d again", name, v, p, version)
		}
	}
	again("the same", r, label("acme", n.ID, "1"))
	again("at another process", r.at(r.secondProcess()), label("acme", n.ID, "1"))
	again("written otherwise", r, []byte(`{ "set" : {"b":"\u0031", "a":"1"},"nodeId":"`+n.ID+`", "tenantId":"acme"}`))

	reused := func(name, method string, in any) {
		t.Helper()
		if _, p := call(r, "operator", method, in); p == nil || p.Code != fleet.CodeConflict || p.Reason != "key-reused" {
			t.Errorf("%s: %+v, want CONFLICT", name, p)
		}
	}
	reused("another value", "nodes/label", label("acme", n.ID, "2"))
	reused("another node", "nodes/label", label("acme", m.ID, "1"))
	r.ok("operator", "nodes/cordon", on(m.ID), nil)
	if _, p := call(r, "owner", "nodes/cordon", on(n.ID)); p != nil {
		t.Errorf("another identity: %+v", *p)
	}
	if _, p := call(r, "owner", "nodes/uncordon", on(n.ID)); p == nil || p.Reason != "key-reused" {
		t.Errorf("another method with the same body: %+v, want CONFLICT", p)
	}
	var site fleet.SiteOut
	if p := r.call("owner", "sites/create", obj{"tenantId": "globex", "name": "lab"}, &site, "Idempotency-Key", "k"); p != nil {
		t.Errorf("the same identity in another tenant: %+v", *p)
	}

	// While a call with the key is made, another is told to wait.
	err := r.store.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := store.TakeKey(ctx, tx, "acme", "dev:operator", "k"); err != nil {
			return err
		}
		if _, p := call(r, "operator", "nodes/label", label("acme", n.ID, "1")); p == nil || p.Code != fleet.CodeConflict || p.Reason != "key-in-use" || p.RetryAfter != "1" {
			t.Errorf("while the key is in use: %+v", p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	// Its day over, it is a new key: also before what is old was removed.
	r.exec(`UPDATE idempotency_keys SET created_at = now() - interval '23 hours 50 minutes'`)
	again("within the day", r, label("acme", n.ID, "1"))
	r.exec(`UPDATE idempotency_keys SET created_at = now() - interval '24 hours'`)
	if version, p = call(r, "operator", "nodes/label", label("acme", n.ID, "3")); p != nil || version == 2 {
		t.Errorf("a day later: version %d, %+v", version, p)
	}
	again("the new one", r, label("acme", n.ID, "3"))

	// A secret is not kept; the repeat is told what the call made.
	issue := func(out any) *problem {
		return r.call("owner", "access/issueToken", issueIn("ci", "viewer"), out, "Idempotency-Key", "token")
	}
	var token fleet.ServiceTokenSecretOut
	if p := issue(&token); p != nil {
		t.Fatal(p)
	}
	a := r.post("access/issueToken", string(mustJSON(t, issueIn("ci", "viewer"))), "Idempotency-Key", "token")
	var made struct{ Reason, ID string }
	if err := json.Unmarshal(a.body, &made); err != nil || a.status != 409 || made.Reason != "answer-not-kept" || made.ID != token.ServiceToken.ID {
		t.Errorf("the repeat of a secret's answer: %d %s", a.status, a.body)
	}
	if n := r.count(`SELECT count(*) FROM idempotency_keys WHERE answer IS NOT NULL AND key = 'token'`) + r.count(`SELECT count(*) FROM idempotency_keys WHERE answer::text LIKE '%bcsvc_%'`); n != 0 {
		t.Error("the secret is kept")
	}
}

func mustJSON(t *testing.T, in any) []byte {
	t.Helper()
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What goes wrong of ours is told without what it was: it is in the log, under
// the request's id.
func TestNothingOfOursLeaves(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`ALTER TABLE pools RENAME COLUMN gpu_model TO elsewhere`)
	a := r.post("pools/list", `{"tenantId":"acme"}`)
	p := a.problem(t)
	if a.status != 500 || p.Code != fleet.CodeInternal {
		t.Fatalf("%d %s", a.status, a.body)
	}
	for _, ours := range []string{"gpu_model", "elsewhere", "SQLSTATE", "pgx", "pools p", "127.0.0.1", "goroutine", ".go:"} {
		if bytes.Contains(a.body, []byte(ours)) {
			t.Errorf("%q leaves: %s", ours, a.body)
		}
	}
	if log := r.log.String(); !strings.Contains(log, "gpu_model") || !strings.Contains(log, a.header.Get("X-Request-Id")) {
		t.Error("the cause is not in the log")
	}
}

// Without Postgres a call is UNAVAILABLE and says when to try again, and the
// process is not ready.
func TestWithoutPostgres(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	nowhere, err := pgxpool.New(t.Context(), "postgres://u:sesame@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nowhere.Close)
	away := *r
	away.store = store.New(nowhere, store.Options{})
	t.Cleanup(away.store.Close)
	away.url = away.serve(1e6)
	for method, body := range map[string]string{"nodes/list": `{"tenantId":"acme"}`, "nodes/cordon": string(nodeBody(absentNode))} {
		a := away.post(method, body)
		if p := a.problem(t); a.status != 503 || p.Reason != "database" || a.header.Get("Retry-After") == "" || bytes.Contains(a.body, []byte("sesame")) || bytes.Contains(a.body, []byte(":1")) {
			t.Errorf("%s: %d %s %s", method, a.status, a.body, a.header.Get("Retry-After"))
		}
	}
	for path, want := range map[string]int{"/readyz": 503, "/healthz": 200, "/openapi.json": 200, "/metrics": 200} {
		if status, body := away.get(path); status != want || bytes.Contains(body, []byte("sesame")) {
			t.Errorf("%s: %d, want %d", path, status, want)
		}
	}
	// A schema that this program does not know yet makes it not ready either.
	r.exec(`DELETE FROM goose_db_version WHERE version_id = (SELECT max(version_id) FROM goose_db_version)`)
	if status, body := r.get("/readyz"); status != 503 || !strings.Contains(string(body), "compute migrate") {
		t.Errorf("an older schema: %d %s", status, body)
	}
}

// A panic is an INTERNAL like every other, and takes nothing else down.
func TestPanic(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	policies, err := authz.New("")
	if err != nil {
		t.Fatal(err)
	}
	srv, err := api.New(api.Options{Store: store.New(nil, store.Options{}), Authz: policies, Log: r.logger, RequestKey: []byte("k"),
		Issuers: []api.Issuer{{Alias: "dev", URL: r.issuerURL, Audience: devidp.Audience}}})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(srv.Handler())
	t.Cleanup(web.Close)
	broken := r.at(web.URL)
	a := broken.post("nodes/list", `{"tenantId":"acme"}`)
	if p := a.problem(t); a.status != 500 || p.Code != fleet.CodeInternal || bytes.Contains(a.body, []byte("nil")) || bytes.Contains(a.body, []byte(".go")) {
		t.Errorf("%d %s", a.status, a.body)
	}
	if status, _ := broken.get("/healthz"); status != 200 {
		t.Errorf("healthz after it: %d", status)
	}
}

// A caller that goes away takes nothing back: what its call began is finished.
func TestCallerGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	gone := make(chan error, 1)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	err := r.store.InTx(t.Context(), func(inner context.Context, tx pgx.Tx) error {
		if err := store.LockNode(inner, tx, n.ID); err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/api/compute/nodes/cordon", bytes.NewReader(nodeBody(n.ID)))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+r.token("owner"))
		go func() {
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				_ = resp.Body.Close()
			}
			gone <- err
		}()
		r.lockWaits(1)
		leave()
		if err := <-gone; err == nil {
			t.Error("the call was answered before it could be")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); !r.nodeOf(n.ID).Cordoned; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("the cordon was lost with its caller")
		}
	}
	if diff := cmp.Diff("node.cordoned", r.events(n.ID)[len(r.events(n.ID))-1]); diff != "" {
		t.Error(diff)
	}
}
