package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// request is a call that faults are put into.
type request struct {
	url, verb, contentType, token, key string
	in                                 obj
	padding                            int
}

// fault is something wrong with a call, and what the API says of it.
type fault struct {
	name   string
	put    func(q *request)
	status int
	reason string
}

// orderFaults are the faults of a call of metal/setCredentials in the order in
// which the API looks for them.
func orderFaults(r *rig) []fault {
	wrongState := r.enrolled("127.0.0.22", fleet.Retired).ID
	limited := r.serve(1e-9)
	for _, subject := range []string{"owner", "viewer"} {
		r.keyTaken(subject)
		q := request{url: limited, verb: http.MethodPost, contentType: "application/json", token: r.token(subject), in: obj{"tenantId": "acme", "nodeId": absentNode}}
		r.send(&q, "nodes/get") // the only call that the limited process lets through
	}
	return []fault{
		{"HTTP method", func(q *request) { q.verb = http.MethodPut }, 405, "wrong-http-method"},
		{"size", func(q *request) { q.padding = 1 << 20 }, 413, "too-large"},
		{"content type", func(q *request) { q.contentType = "text/plain" }, 415, "not-json"},
		{"token", func(q *request) { q.token = "no.such.token" }, 401, ""},
		{"input", func(q *request) { q.in["rotate"] = "yes" }, 400, ""},
		{"role in the tenant", func(q *request) { q.token = r.token("stranger") }, 403, "no-role"},
		{"rate", func(q *request) { q.url = limited }, 429, "rate"},
		{"Idempotency-Key", func(q *request) { q.key = "taken" }, 409, "key-reused"},
		{"visibility", func(q *request) { q.in["nodeId"] = absentNode }, 404, ""},
		{"permission", func(q *request) { q.token = r.token("viewer") }, 403, "not-permitted"},
		{"input that needs the row", func(q *request) { q.in["password"] = "longer than the 20 characters that IPMI takes" }, 400, ""},
		{"version", func(q *request) { q.in["version"] = 77 }, 409, "version"},
		{"state", func(q *request) { q.in["nodeId"] = wrongState }, 422, ""},
	}
}

// The API looks for faults in one order: of a call with two, it names the
// earlier.
func TestOrderOfChecks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	node := r.enrolled("127.0.0.21", fleet.Ready).ID
	faults := orderFaults(r)
	if _, err := r.store.Pool().Exec(t.Context(), `UPDATE bmcs SET driver = 'ipmi'`); err != nil {
		t.Fatal(err)
	}
	good := func() *request {
		return &request{url: r.url, verb: http.MethodPost, contentType: "application/json", token: r.token("owner"),
			in: obj{"tenantId": "acme", "nodeId": node, "username": "root", "password": "sesame"}}
	}
	for i, first := range faults {
		for _, second := range append([]fault{{name: "nothing else", put: func(*request) {}}}, faults[i+1:]...) {
			q := good()
			second.put(q)
			first.put(q)
			if status, p := r.send(q, "metal/setCredentials"); status != first.status || p.Reason != first.reason {
				t.Errorf("%s and %s: %d (%s) %s, want %d (%s)", first.name, second.name, status, p.Reason, p.Detail, first.status, first.reason)
			}
		}
	}
	if status, p := r.send(good(), "metal/setCredentials"); status != http.StatusOK {
		t.Errorf("no fault: %d (%s) %s", status, p.Reason, p.Detail)
	}
}

// keyTaken records that a subject used the key "taken" for some other call.
func (r *rig) keyTaken(subject string) {
	r.t.Helper()
	err := r.store.InTx(context.Background(), func(ctx context.Context, tx pgx.Tx) error {
		return store.KeepAnswer(ctx, tx, "acme", "dev:"+subject, "taken", store.Kept{Request: []byte("another call"), Answer: []byte("{}")})
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) send(q *request, method string) (int, problem) {
	r.t.Helper()
	body, err := json.Marshal(q.in)
	if err != nil {
		r.t.Fatal(err)
	}
	body = append(body, strings.Repeat(" ", q.padding)...)
	req, err := http.NewRequestWithContext(context.Background(), q.verb, q.url+"/api/compute/"+method, bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", q.contentType)
	req.Header.Set("Authorization", "Bearer "+q.token)
	if q.key != "" {
		req.Header.Set("Idempotency-Key", q.key)
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
	var p problem
	if err := json.Unmarshal(answer, &p); err != nil {
		r.t.Fatalf("%s answered %d %s: %v", method, resp.StatusCode, answer, err)
	}
	return resp.StatusCode, p
}
