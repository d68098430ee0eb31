package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// sse is one message of a stream.
type sse struct{ id, event, data string }

// stream reads messages from a cursor on until enough says so.
func (r *rig) stream(subject, query string, enough func(sse) bool) []sse {
	r.t.Helper()
	return r.streamOf(subject, "acme", query, "", enough)
}

// streamOf reads the stream of a tenant, from Last-Event-ID on when it is given.
func (r *rig) streamOf(subject, tenant, query, last string, enough func(sse) bool) []sse {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/api/compute/events/stream?tenantId="+tenant+"&"+query, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.token(subject))
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	var out []sse
	var m sse
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			m.id = value
		case "event":
			m.event = value
		case "data":
			m.data = value
		case "":
			if m.event == "" {
				continue
			}
			out = append(out, m)
			if enough(m) {
				return out
			}
			m = sse{}
		}
	}
	r.t.Fatalf("the stream ended after %v", out)
	return nil
}

// A stream goes on from the cursor it is given, and delivers what happens later.
func TestStream(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("https://127.0.0.9", fleet.Ready)
	r.ok("owner", "nodes/cordon", obj{"tenantId": "acme", "nodeId": n.ID}, nil)
	first := r.stream("owner", "cursor=0:0&nodeId="+n.ID, func(m sse) bool { return m.event == "node.cordoned" })
	last := first[len(first)-1]
	r.ok("owner", "nodes/uncordon", obj{"tenantId": "acme", "nodeId": n.ID}, nil)
	next := r.stream("owner", "cursor="+last.id, func(m sse) bool { return m.event == "node.uncordoned" })
	if len(next) != 1 {
		t.Errorf("after %s came %v, want the one event since", last.id, next)
	}
}

// A stream is resumed by Last-Event-ID, which wins over the cursor, and delivers
// that a node was deleted to all who saw it; what the node's own tenant alone
// may know, and who acted and why, is not in another's.
func TestStreamResumed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("https://127.0.0.9", fleet.Retired)
	r.offeredPool(n.ID)
	r.ok("owner", "nodes/cordon", on(n.ID, "reason", "fan"), nil)
	r.ok("owner", "nodes/revokeIdentity", on(n.ID), nil)
	r.ok("owner", "nodes/delete", on(n.ID, "reason", "scrap"), nil)
	types := func(list []sse) (out []string) {
		for _, m := range list {
			out = append(out, m.event)
		}
		return out
	}
	deleted := func(m sse) bool { return m.event == "node.deleted" }
	all := r.stream("owner", "cursor=0:0&type=node.&nodeId="+n.ID, deleted)
	resumed := r.streamOf("owner", "acme", "cursor=0:0&nodeId="+n.ID, all[len(all)-2].id, deleted)
	if got := types(resumed); !slices.Equal(got, []string{"security.node.identity-revoked", "node.deleted"}) {
		t.Errorf("resumed after %s: %v", all[len(all)-2].event, got)
	}
	if !strings.Contains(resumed[1].data, "scrap") || !strings.Contains(resumed[1].data, "dev:owner") {
		t.Errorf("the owner's node.deleted is %s", resumed[1].data)
	}
	others := r.streamOf("owner2", "globex", "cursor=0:0&nodeId="+n.ID, "", deleted)
	if got := types(others); !slices.Equal(got, []string{"node.cordoned", "node.deleted"}) {
		t.Errorf("another tenant's stream: %v", got)
	}
	for _, m := range others {
		if strings.Contains(m.data, "dev:owner") || strings.Contains(m.data, "scrap") || strings.Contains(m.data, "fan") {
			t.Errorf("another tenant is told %s", m.data)
		}
	}
}

// Whoever asks from a cursor past retention is told that events are gone, and
// once: the message has the cursor that all is kept after.
func TestGap(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("https://127.0.0.9", fleet.Ready)
	r.exec(`INSERT INTO events (tx, type, node_id, tenant_id, audience, actor, at) VALUES (1, 'node.old', $1, 'acme', '{acme}', 'system', now() - interval '200 days')`, n.ID)
	page := func(cursor string) fleet.EventsPage {
		t.Helper()
		var out fleet.EventsPage
		r.ok("owner", "nodes/events", obj{"tenantId": "acme", "nodeId": n.ID, "cursor": cursor}, &out)
		return out
	}
	if out := page("0:0"); out.Gap || out.Items[0].Type != "node.old" {
		t.Errorf("before retention: gap %v, first %s", out.Gap, out.Items[0].Type)
	}
	r.events(n.ID) // all of them are readable
	if err := r.store.KeepPartitions(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := page("0:0"); !out.Gap || len(out.Items) == 0 || out.Items[0].Type == "node.old" {
		t.Errorf("after retention: gap %v and %d items", out.Gap, len(out.Items))
	}
	var all fleet.EventsPage
	r.ok("owner", "nodes/events", obj{"tenantId": "acme", "nodeId": n.ID}, &all)
	if all.Gap {
		t.Error("a call without a cursor has nothing to miss")
	}
	any := func(sse) bool { return true }
	gap := r.stream("owner", "cursor=0:0", any)[0]
	var data struct{ Cursor, Detail string }
	if err := json.Unmarshal([]byte(gap.data), &data); err != nil || gap.event != "gap" || data.Cursor != gap.id || data.Detail == "" {
		t.Fatalf("first message = %+v (%v), want a gap", gap, err)
	}
	if next := r.stream("owner", "cursor="+gap.id, any)[0]; next.event == "gap" {
		t.Errorf("the gap is told again from its own cursor")
	}
}
