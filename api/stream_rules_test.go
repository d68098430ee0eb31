package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bettercompute/compute/api"
	"github.com/bettercompute/compute/devidp"
	"github.com/bettercompute/compute/fleet"
)

// open opens a stream of acme that is read by the caller, who ends it.
func (r *rig) open(ctx context.Context, subject, query string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/api/compute/events/stream?tenantId=acme&"+query, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.token(subject))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		r.t.Fatalf("the stream: %d %s", resp.StatusCode, body)
	}
	return resp
}

// A stream is asked for in the words of the reference, by who may read the
// tenant's nodes; what is refused is audited.
func TestStreamRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	r.ok("owner", "access/grant", obj{"tenantId": "acme", "identity": "dev:one-node", "role": "viewer", "on": obj{"nodeId": n.ID}}, nil)
	r.ok("one-node", "nodes/get", on(n.ID), nil)
	for name, c := range map[string]struct {
		subject, query, last string
		status               int
		code                 fleet.Code
		field                string
	}{
		"no token":              {"", "tenantId=acme", "", 401, fleet.CodeUnauthenticated, ""},
		"no tenant":             {"owner", "", "", 400, fleet.CodeInvalidInput, "tenantId"},
		"no such tenant":        {"owner", "tenantId=a%20b", "", 400, fleet.CodeInvalidInput, "tenantId"},
		"a node that is none":   {"owner", "tenantId=acme&nodeId=n1", "", 400, fleet.CodeInvalidInput, "nodeId"},
		"a type that is none":   {"owner", "tenantId=acme&type=Node", "", 400, fleet.CodeInvalidInput, "type"},
		"a cursor that is none": {"owner", "tenantId=acme&cursor=1", "", 400, fleet.CodeInvalidInput, "cursor"},
		"a cursor past 64 bits": {"owner", "tenantId=acme&cursor=99999999999999999999:1", "", 400, fleet.CodeInvalidInput, "cursor"},
		"an id that is none":    {"owner", "tenantId=acme&cursor=1:1", "x", 400, fleet.CodeInvalidInput, "cursor"},
		"no role":               {"stranger", "tenantId=acme", "", 403, fleet.CodeAccessDenied, ""},
		"a role on a node":      {"one-node", "tenantId=acme", "", 403, fleet.CodeAccessDenied, ""},
	} {
		headers := []string{"Last-Event-ID", c.last}
		if c.subject != "" {
			headers = append(headers, "Authorization", "Bearer "+r.token(c.subject))
		}
		a := r.do(http.MethodGet, r.url+"/api/compute/events/stream?"+c.query, nil, headers...)
		p := a.problem(t)
		if a.status != c.status || p.Code != c.code || c.field != "" && (len(p.Fields) != 1 || p.Fields[0].Field != c.field) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if got := r.count(`SELECT count(*) FROM audit WHERE method = 'events/stream' AND outcome = 'ACCESS_DENIED'`); got != 2 {
		t.Errorf("%d refusals are audited, want 2", got)
	}
}

// A stream of one node, or of one type, tells nothing else.
func TestStreamFilters(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n, other := r.enrolled("127.0.0.9", fleet.Ready), r.enrolled("127.0.0.10", fleet.Ready)
	r.ok("owner", "nodes/cordon", on(other.ID), nil)
	r.ok("owner", "nodes/cordon", on(n.ID), nil)
	r.ok("owner", "nodes/uncordon", on(n.ID), nil)
	for query, bad := range map[string]string{"nodeId=" + n.ID: other.ID, "type=node.uncord": "node.cordoned"} {
		for _, m := range r.stream("viewer", "cursor=0:0&"+query, func(m sse) bool { return m.event == "node.uncordoned" }) {
			if strings.Contains(m.data, bad) {
				t.Errorf("%s tells %s", query, m.data)
			}
		}
	}
}

// What is written before a stream begins comes in as many pages as it takes, and
// all of it.
func TestStreamOfManyPages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	const many = 450
	r.exec(`INSERT INTO events (tx, type, node_id, tenant_id, audience, actor) SELECT 1, 'node.many', $1, 'acme', '{acme}', 'system' FROM generate_series(1, $2::int)`, n.ID, many)
	seen := 0
	r.stream("viewer", "cursor=0:0&type=node.many", func(sse) bool { seen++; return seen == many })
}

// A stream ends by itself: with its caller's session, when the right to it is
// taken away, and when the process is to end.
func TestStreamEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *rig, srv *api.Server){
		"with the session": func(*rig, *api.Server) {},
		"with the role":    func(r *rig, _ *api.Server) { r.exec(`DELETE FROM bindings WHERE identity = 'dev:viewer'`) },
		"with the process": func(_ *rig, srv *api.Server) { srv.EndStreams() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			srv, at := r.serveWith(api.Options{CallsPerSecond: 1e6})
			r = r.at(at)
			r.t = t
			ttl := time.Hour
			if name == "with the session" {
				ttl = 15 * time.Second
			}
			token, err := r.issuer.Mint(devidp.Token{Subject: "viewer", TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			r.as("viewer", token)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			resp := r.open(ctx, "viewer", "")
			defer resp.Body.Close()
			end(r, srv)
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Errorf("the stream did not end: %v", err)
			}
		})
	}
}

// While sixteen writers write, a client that is cut off again and again is told
// each event once, in order, and none is left out.
func TestTailWhileWriting(t *testing.T) {
	t.Parallel()
	const writers, rounds = 16, 6
	r := newRig(t)
	nodes := make([]string, writers)
	for i := range nodes {
		nodes[i] = r.enrolled(fmt.Sprintf("127.0.1.%d", i+1), fleet.Ready).ID
	}
	var wg sync.WaitGroup
	for _, id := range nodes {
		wg.Go(func() {
			for i := range rounds {
				method := []string{"nodes/cordon", "nodes/uncordon"}[i%2]
				if p := r.call("owner", method, on(id), nil); p != nil {
					t.Errorf("%s: %+v", method, *p)
				}
			}
		})
	}
	var told []string
	versions := map[string]int64{}
	last, seen := "0:0", 0
	for seen < writers*rounds {
		cut := 0
		for _, m := range r.streamOf("owner", "acme", "", last, func(m sse) bool {
			if strings.HasPrefix(m.event, "node.cordoned") || strings.HasPrefix(m.event, "node.uncordoned") {
				seen++
			}
			cut++
			return cut == 7 || seen == writers*rounds
		}) {
			told, last = append(told, m.id), m.id
			var e fleet.Event
			if err := json.Unmarshal([]byte(m.data), &e); err != nil {
				t.Fatal(err)
			}
			if e.NodeID != "" && e.Version < versions[e.NodeID] {
				t.Errorf("version %d of %s after %d", e.Version, e.NodeID, versions[e.NodeID])
			}
			versions[e.NodeID] = e.Version
		}
	}
	wg.Wait()
	cursor := func(id string) [2]uint64 {
		var c [2]uint64
		for i, part := range strings.Split(id, ":") {
			c[i], _ = strconv.ParseUint(part, 10, 64)
		}
		return c
	}
	if !slices.IsSortedFunc(told, func(a, b string) int { x, y := cursor(a), cursor(b); return slices.Compare(x[:], y[:]) }) || len(slices.Compact(slices.Clone(told))) != len(told) {
		t.Errorf("not each once and in order: %v", told)
	}
	if written := r.count(`SELECT count(*) FROM events WHERE (tx, seq) <= ($1::bigint, $2::bigint)`, cursor(last)[0], cursor(last)[1]); written != len(told) {
		t.Errorf("%d events were told, %d written", len(told), written)
	}
}
