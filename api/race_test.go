package api_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
)

// at calls another process of the API on the same database.
func (r *rig) at(url string) *rig {
	other := *r
	other.url = url
	return &other
}

// Two processes and fifty clients change one node at once: each change that is
// answered has a version of its own and one event with it, none is lost and the
// events are in the order of the versions.
func TestFiftyClientsOnOneNode(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	before := r.count(`SELECT count(*) FROM events WHERE node_id = $1`, n.ID)
	engines := []*rig{r, r.at(r.serve(1e6))}
	var mu sync.Mutex
	seen := map[int64]string{}
	var wg sync.WaitGroup
	for client := range 50 {
		wg.Go(func() {
			via := engines[client%2]
			for round := range 3 {
				method, in := "nodes/cordon", on(n.ID)
				switch (client + round) % 4 {
				case 1:
					method = "nodes/uncordon"
				case 2:
					method, in = "nodes/label", on(n.ID, "set", obj{fmt.Sprintf("client-%d", client): fmt.Sprint(round)})
				case 3:
					method, in = "nodes/taint", on(n.ID, "add", []string{fmt.Sprintf("taint-%d-%d", client, round)})
				}
				var out fleet.NodeOut
				if p := via.call("operator", method, in, &out); p != nil {
					t.Errorf("%s: %+v", method, *p)
					return
				}
				if method != "nodes/label" && method != "nodes/taint" {
					continue // those can come to nothing
				}
				mu.Lock()
				if other, twice := seen[out.Node.Version]; twice {
					t.Errorf("version %d was answered to %s and to %s", out.Node.Version, other, method)
				}
				seen[out.Node.Version] = method
				mu.Unlock()
			}
		})
	}
	wg.Wait()

	rows := r.text(`SELECT string_agg(version || ' ' || type, ',' ORDER BY tx, seq) FROM (SELECT * FROM events WHERE node_id = $1 ORDER BY tx, seq OFFSET $2) e`, n.ID, before)
	version, cordoned := n.Version, false
	for row := range strings.SplitSeq(rows, ",") {
		version++
		var v int64
		var typ string
		if _, err := fmt.Sscan(row, &v, &typ); err != nil || v != version {
			t.Fatalf("after version %d came the event %q of\n%s", version-1, row, r.text(`SELECT string_agg(version || ' ' || type || ' ' || tx || ' ' || seq || ' ' || at, chr(10) ORDER BY tx, seq) FROM events WHERE node_id = $1`, n.ID))
		}
		if method, ok := seen[v]; ok && typ != map[string]string{"nodes/label": "node.labeled", "nodes/taint": "node.tainted"}[method] {
			t.Errorf("version %d was answered to %s, its event is %s", v, method, typ)
		}
		delete(seen, v)
		switch typ {
		case "node.cordoned", "node.uncordoned":
			if cordoned == (typ == "node.cordoned") {
				t.Errorf("%s at version %d changes nothing", typ, v)
			}
			cordoned = typ == "node.cordoned"
		}
	}
	if len(seen) != 0 {
		t.Errorf("answered and without an event: %v", seen)
	}
	now := r.nodeOf(n.ID)
	if now.Version != version || now.Cordoned != cordoned {
		t.Errorf("the node is at version %d, cordoned %v; its events say %d, %v", now.Version, now.Cordoned, version, cordoned)
	}
	taints := 0
	for client := range 50 {
		for round := range 3 {
			if (client+round)%4 == 3 {
				taints++
				if !slices.Contains(now.NoScheduleReasons, fmt.Sprintf("taint:taint-%d-%d", client, round)) {
					t.Errorf("the taint of client %d, round %d is lost", client, round)
				}
			}
		}
	}
	if len(now.NoScheduleReasons) != taints {
		t.Errorf("%d reasons, want %d", len(now.NoScheduleReasons), taints)
	}
}

// Fifty clients over two processes with one key make one change and get one
// answer.
func TestFiftyClientsWithOneKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	engines := []*rig{r, r.at(r.serve(1e6))}
	var mu sync.Mutex
	answers := map[int64]int{}
	var wg sync.WaitGroup
	for client := range 50 {
		wg.Go(func() {
			deadline := time.Now().Add(5 * time.Minute)
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for {
				var out fleet.NodeOut
				p := engines[client%2].call("operator", "nodes/label", on(n.ID, "set", obj{"a": "1"}), &out, "Idempotency-Key", "one")
				if p == nil {
					mu.Lock()
					answers[out.Node.Version]++
					mu.Unlock()
					return
				}
				if p.Code != fleet.CodeConflict || p.Reason != "key-in-use" || time.Now().After(deadline) {
					t.Errorf("%+v", *p)
					return
				}
				<-tick.C
			}
		})
	}
	wg.Wait()
	if diff := cmp.Diff(map[int64]int{n.Version + 1: 50}, answers); diff != "" {
		t.Errorf("answers by version (-want +got):\n%s", diff)
	}
	if got := r.count(`SELECT count(*) FROM events WHERE node_id = $1 AND type = 'node.labeled'`, n.ID); got != 1 {
		t.Errorf("%d changes, want 1", got)
	}
	if got := r.count(`SELECT count(*) FROM audit WHERE node_id = $1 AND method = 'nodes/label' AND outcome = 'OK'`, n.ID); got != 1 {
		t.Errorf("%d audit rows, want 1", got)
	}
}

// Rows of one moment are on one page or another, each once, whatever begins and
// ends between the pages (C24).
func TestPagesOfOneMoment(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	r.exec(`DELETE FROM operations WHERE node_id = $1`, n.ID)
	add := func(prefix string, count int, at string) {
		r.exec(`INSERT INTO operations (id, node_id, tenant_id, verb, lane, state, requested_by, epoch, created_at, ended_at)
			SELECT $1 || lpad(i::text, 25, '0'), $2, 'acme', 'power', 'provision', 'succeeded', 'dev:owner', 1, $4::timestamptz, now() FROM generate_series(1, $3::int) i`, prefix, n.ID, count, at)
	}
	add("op_1", 25, "2026-01-02 03:04:05.123456Z")
	want := map[string]int{}
	for i := range 25 {
		want[fmt.Sprintf("op_1%025d", i+1)] = 1
	}
	got, cursor := map[string]int{}, ""
	for page := 0; ; page++ {
		in := on(n.ID, "limit", 10)
		if cursor != "" {
			in["cursor"] = cursor
		}
		var out fleet.OperationsPage
		r.ok("owner", "operations/list", in, &out)
		for _, o := range out.Items {
			if strings.HasPrefix(o.ID, "op_1") {
				got[o.ID]++
			}
		}
		if cursor = out.NextCursor; cursor == "" {
			break
		}
		// Later and earlier ones come, and one that was seen goes.
		add(fmt.Sprintf("op_2%d", page), 1, "2026-02-02 03:04:05Z")
		add(fmt.Sprintf("op_3%d", page), 1, "2025-02-02 03:04:05Z")
		r.exec(`DELETE FROM operations WHERE id = $1`, out.Items[0].ID)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("operations by how often they were listed (-want +got):\n%s", diff)
	}
}

// Refused calls are audited, at most so many a second of an identity; what is
// beyond is counted in the next row.
func TestDeniedCallsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	const calls = 300
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range calls / 10 {
				if p := r.call("viewer", "nodes/cordon", on(n.ID), nil); p == nil || p.Code != fleet.CodeAccessDenied {
					t.Errorf("%+v, want ACCESS_DENIED", p)
				}
			}
		})
	}
	wg.Wait()
	// The next second's row says how many were not written.
	deadline := time.Now().Add(5 * time.Minute)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	extra, rows, told := 0, 0, 0
	for told < calls+extra && time.Now().Before(deadline) {
		<-tick.C
		r.call("viewer", "nodes/cordon", on(n.ID), nil)
		extra++
		rows = r.count(`SELECT count(*) FROM audit WHERE identity = 'dev:viewer' AND outcome = 'ACCESS_DENIED' AND reason = 'not-permitted' AND method = 'nodes/cordon'`)
		told = rows + r.count(`SELECT sum(suppressed) FROM audit WHERE identity = 'dev:viewer'`)
	}
	if rows >= calls || told != calls+extra {
		t.Errorf("%d rows tell of %d calls, made were %d and %d", rows, told, calls, extra)
	}
	// Somebody else's refusals have a bound of their own.
	r.refused("operator", "nodes/delete", on(n.ID), fleet.CodeAccessDenied, "not-permitted")
	if r.count(`SELECT count(*) FROM audit WHERE identity = 'dev:operator' AND outcome = 'ACCESS_DENIED'`) != 1 {
		t.Error("another identity's refusal was not audited")
	}
}
