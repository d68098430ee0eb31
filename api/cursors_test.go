package api_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
)

// pageOf reads one page of a list.
func (r *rig) pageOf(subject, method string, in obj) (items []string, next string) {
	r.t.Helper()
	var page struct {
		Items      []json.RawMessage
		NextCursor string
	}
	r.ok(subject, method, in, &page)
	for _, item := range page.Items {
		items = append(items, string(item))
	}
	return items, page.NextCursor
}

// listCase is a list with a filter that its items pass.
type listCase struct {
	method string
	more   obj
	filter obj
}

// lists fills every list of acme with three items at least, and globex with one
// of its own of each that it can have.
func (r *rig) lists() []listCase {
	r.t.Helper()
	pool := r.pool(r.site, "p")
	node := r.deployed(pool, 4)
	for i := range 3 {
		r.enrolled(fmt.Sprintf("127.0.0.%d", 9+i), fleet.Ready)
		r.ok("owner", "sites/create", obj{"tenantId": "acme", "name": fmt.Sprint("s", i)}, nil)
		r.pool(r.site, fmt.Sprint("q", i))
		r.mustTake("owner", take("acme", pool, 1, "ttlSeconds", 60))
		r.mustReserve("owner", reserve("acme", pool, 1, time.Hour, 2*time.Hour))
		r.ok("owner", "access/issueToken", issueIn(fmt.Sprint("t", i), "viewer"), nil)
		r.ok("owner", "joinTokens/create", obj{"tenantId": "acme", "siteId": r.site, "ttlSeconds": 600, "maxUses": 1}, nil)
		r.ok("owner", "access/grant", obj{"tenantId": "acme", "identity": "dev:one", "role": []string{"viewer", "operator", "owner"}[i], "on": obj{"tenantId": "acme"}}, nil)
		r.exec(`INSERT INTO ssh_certs (serial, node_id, tenant_id, principal, issued_by, key_hash, valid_after, valid_before)
			VALUES ($2::int, $1, 'acme', 'root@' || $1, 'dev:owner', 'h', now(), now() + interval '1 hour')`, node, i)
	}
	r.ok("owner2", "access/issueToken", obj{"tenantId": "globex", "name": "t", "role": "viewer", "on": obj{"tenantId": "globex"}, "ttlSeconds": 60}, nil)
	return []listCase{
		{"nodes/list", nil, obj{"siteId": r.site}}, {"metal/list", nil, obj{"siteId": r.site}}, {"operations/list", nil, obj{"siteId": r.site}},
		{"sites/list", nil, nil}, {"pools/list", nil, obj{"state": "active"}}, {"allocations/list", nil, obj{"poolId": pool}},
		{"reservations/list", nil, obj{"poolId": pool}}, {"joinTokens/list", nil, obj{"siteId": r.site}}, {"access/list", nil, obj{"identity": "dev:one"}},
		{"access/listTokens", nil, nil}, {"access/audit", nil, obj{"identity": "dev:owner"}}, {"nodes/listSshCerts", obj{"nodeId": node}, obj{"includeExpired": true}},
	}
}

func (c listCase) in(more ...obj) obj {
	in := obj{"tenantId": "acme"}
	for _, m := range append([]obj{c.more}, more...) {
		maps.Copy(in, m)
	}
	return in
}

// A list read in small pages is the list read whole. A cursor is good for the list
// that gave it alone: not with other filters, not for another tenant, not in
// another list, and not when it was made up.
func TestCursors(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lists := r.lists()
	r.grant("globex", "owner", fleet.RoleOwner)
	cursors := map[string]string{}
	for _, c := range lists {
		whole, next := r.pageOf("owner", c.method, c.in())
		if len(whole) < 3 || next != "" {
			t.Fatalf("%s: %d items, next %q", c.method, len(whole), next)
		}
		for _, limit := range []int{1, 2} {
			var all []string
			for cursor := ""; ; {
				in := c.in(obj{"limit": limit})
				if cursor != "" {
					in["cursor"] = cursor
				}
				page, next := r.pageOf("owner", c.method, in)
				if len(page) > limit {
					t.Fatalf("%s: a page of %d has %d items", c.method, limit, len(page))
				}
				all = append(all, page...)
				if cursor = next; cursor == "" {
					break
				}
				cursors[c.method] = cursor
			}
			if diff := cmp.Diff(whole, all); diff != "" {
				t.Errorf("%s by %d (-whole +pages):\n%s", c.method, limit, diff)
			}
		}
	}
	for _, c := range lists {
		wrong := func(what string, in obj) {
			t.Helper()
			p := r.call("owner", c.method, in, nil)
			if p == nil || p.Code != fleet.CodeInvalidInput || len(p.Fields) != 1 || p.Fields[0].Field != "cursor" {
				t.Errorf("%s, a cursor %s: %+v, want INVALID_INPUT that names it", c.method, what, p)
			}
		}
		own := cursors[c.method]
		r.ok("owner", c.method, c.in(obj{"cursor": own, "limit": 3}), nil) // a page of another size
		for other, cursor := range cursors {
			if other != c.method {
				wrong("of "+other, c.in(obj{"cursor": cursor}))
			}
		}
		if c.filter != nil {
			wrong("without the filter", c.in(c.filter, obj{"cursor": own}))
		}
		if c.method != "nodes/listSshCerts" {
			wrong("of another tenant", c.in(obj{"cursor": own, "tenantId": "globex"}))
		}
		wrong("that was made up", c.in(obj{"cursor": "a.b"}))
		wrong("cut", c.in(obj{"cursor": own[:len(own)-1]}))
		wrong("whose key was changed", c.in(obj{"cursor": "." + own}))
	}
}

// What one tenant lists is nothing of another's.
func TestListsAreTheTenants(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lists := r.lists()
	for _, c := range lists {
		if c.method == "nodes/listSshCerts" {
			continue // decided on the node, which globex does not see
		}
		mine, _ := r.pageOf("owner", c.method, c.in())
		theirs, _ := r.pageOf("owner2", c.method, obj{"tenantId": "globex"})
		for _, item := range theirs {
			if slices.Contains(mine, item) {
				t.Errorf("%s of globex shows %s", c.method, item)
			}
		}
		if want := map[string]int{"access/list": 2, "access/listTokens": 1, "access/audit": 2}[c.method]; len(theirs) != want {
			t.Errorf("%s of globex has %d items, want %d: %s", c.method, len(theirs), want, theirs)
		}
	}
}

// A page holds 50 items when nothing is said, a page of events 100.
func TestPagesByDefault(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	r.exec(`INSERT INTO operations (id, node_id, tenant_id, verb, lane, state, requested_by, epoch, ended_at)
		SELECT 'op_9' || lpad(i::text, 25, '0'), $1, 'acme', 'power', 'provision', 'succeeded', 'dev:owner', 1, now() FROM generate_series(1, 60) i`, n.ID)
	r.exec(`INSERT INTO events (tx, type, node_id, tenant_id, audience, actor) SELECT 1, 'node.test', $1, 'acme', '{acme}', 'system' FROM generate_series(1, 120)`, n.ID)
	for method, want := range map[string]int{"operations/list": 50, "nodes/events": 100} {
		in := obj{"tenantId": "acme", "nodeId": n.ID}
		if items, next := r.pageOf("owner", method, in); len(items) != want || next == "" {
			t.Errorf("%s: %d items, want %d; next %q", method, len(items), want, next)
		}
	}
}
