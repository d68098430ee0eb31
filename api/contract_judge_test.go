package api_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-cmp/cmp"
)

// judge compares what came of a call with what the case says.
func (r *contractRun) judge(at string, s contractStep, before standing, p *problem, answer any) {
	r.t.Helper()
	if s.Refused != "" {
		code, reason, _ := strings.Cut(s.Refused, " ")
		if p == nil || string(p.Code) != code || (reason != "" && p.Reason != reason) {
			r.t.Errorf("%s: %+v %v, want %s", at, p, answer, s.Refused)
			return
		}
		if s.Fields != nil {
			var names []string
			for _, f := range p.Fields {
				names = append(names, f.Field)
			}
			if !slices.Equal(names, s.Fields) {
				r.t.Errorf("%s: fields %v, want %v", at, names, s.Fields)
			}
		}
	} else if p != nil {
		r.t.Errorf("%s: %+v", at, *p)
		return
	}
	after := r.standing()
	r.judgeAnswer(at, s, before, answer)
	if s.Unchanged {
		none := 0
		s.Version, s.Publishes = &none, []string{}
	}
	if s.Version != nil && after.version-before.version != int64(*s.Version) {
		r.t.Errorf("%s: the version rose by %d, want %d", at, after.version-before.version, *s.Version)
	}
	r.judgeEvents(at, s, before)
	r.judgeRest(at, s)
}

func (r *contractRun) judgeAnswer(at string, s contractStep, before standing, answer any) {
	r.t.Helper()
	if s.Unchanged {
		if diff := cmp.Diff(before.node, member(answer, "node")); diff != "" {
			r.t.Errorf("%s: the node changed (-before +answer):\n%s", at, diff)
		}
	}
	if want := r.fill(s.Answers, before.version); s.Answers != nil && !within(want, answer) {
		r.t.Errorf("%s: the answer is\n%s\nwant in it\n%s", at, pretty(answer), pretty(want))
	}
	for _, path := range s.Without {
		if v := member(answer, path); v != nil {
			r.t.Errorf("%s: the answer has %s: %v", at, path, v)
		}
	}
	if s.Lists != nil {
		found := false
		for _, item := range member(answer, "items").([]any) {
			found = found || member(item, "id") == r.node
		}
		if found != *s.Lists {
			r.t.Errorf("%s: listed is %v, want %v", at, found, *s.Lists)
		}
	}
	if s.EventTypes != nil {
		types := []string{}
		for _, item := range member(answer, "items").([]any) {
			types = append(types, member(item, "type").(string))
		}
		if diff := cmp.Diff(s.EventTypes, types); diff != "" {
			r.t.Errorf("%s: events (-want +got):\n%s", at, diff)
		}
	}
	if s.Pages > 0 {
		r.judgePages(at, s.Pages, answer)
	}
}

// judgePages reads the list in pages and compares it with the whole.
func (r *contractRun) judgePages(at string, size int, whole any) {
	r.t.Helper()
	ids := func(page any) (out []string) {
		for _, item := range member(page, "items").([]any) {
			out = append(out, member(item, "id").(string))
		}
		return out
	}
	want := ids(whole)
	if !slices.IsSorted(want) || len(want) <= size {
		r.t.Errorf("%s: the list is %v, want more than a page in id order", at, want)
	}
	var got []string
	in := obj{"tenantId": "acme", "limit": size}
	for {
		var page any
		r.ok("owner", "nodes/list", in, &page)
		got = append(got, ids(page)...)
		next, more := member(page, "nextCursor").(string)
		if !more {
			break
		}
		r.cursor, in["cursor"] = next, next
	}
	if diff := cmp.Diff(want, got); diff != "" {
		r.t.Errorf("%s: the list in pages (-whole +pages):\n%s", at, diff)
	}
}

func (r *contractRun) judgeEvents(at string, s contractStep, before standing) {
	r.t.Helper()
	if s.Publishes == nil && s.Event == nil {
		return
	}
	rows, err := r.store.Pool().Query(r.t.Context(), `SELECT type, data FROM events WHERE node_id = $1 ORDER BY tx, seq OFFSET $2`, r.node, before.events)
	if err != nil {
		r.t.Fatal(err)
	}
	defer rows.Close()
	types := []string{}
	var data any
	for rows.Next() {
		var typ string
		var raw []byte
		if err := rows.Scan(&typ, &raw); err != nil {
			r.t.Fatal(err)
		}
		data = nil
		if err := json.Unmarshal(raw, &data); err != nil {
			r.t.Fatal(err)
		}
		types = append(types, typ)
	}
	if err := rows.Err(); err != nil {
		r.t.Fatal(err)
	}
	if s.Publishes != nil && !slices.Equal(s.Publishes, types) {
		r.t.Errorf("%s: published %v, want %v", at, types, s.Publishes)
	}
	if s.Event != nil && !within(s.Event, data) {
		r.t.Errorf("%s: the event's data is %s, want in it %s", at, pretty(data), pretty(s.Event))
	}
}

func (r *contractRun) judgeRest(at string, s contractStep) {
	r.t.Helper()
	counted := func(what string, want *int, sql string) {
		if want == nil {
			return
		}
		if got := r.count(sql, r.node); got != *want {
			r.t.Errorf("%s: %d %s, want %d", at, got, what, *want)
		}
	}
	if s.Reconciler != nil {
		want := int(b2i(*s.Reconciler))
		counted("reconciler queued", &want, `SELECT count(*) FROM reconcile_wanted WHERE node_id = $1`)
	}
	counted("live allocations", s.Allocations, `SELECT count(*) FROM allocations WHERE node_id = $1 AND state = 'active'`)
	counted("SSH certificates", s.Certificates, `SELECT count(*) FROM ssh_certs WHERE node_id = $1`)
	for reason, n := range s.Revoked {
		if got := r.count(`SELECT count(*) FROM certificates WHERE node_id = $1 AND revoked_at IS NOT NULL AND revoke_reason = $2`, r.node, reason); got != n {
			r.t.Errorf("%s: %d certificates revoked for %q, want %d", at, got, reason, n)
		}
	}
	if s.Drains != "" {
		if got := r.text(`SELECT state FROM operations WHERE node_id = $1 AND lane = 'drain' ORDER BY created_at DESC LIMIT 1`, r.node); got != s.Drains {
			r.t.Errorf("%s: the drain is %s, want %s", at, got, s.Drains)
		}
	}
	if s.Referenced {
		one := 1
		counted("audit rows of the delete", &one, `SELECT count(*) FROM audit WHERE node_id = $1 AND method = 'nodes/delete' AND outcome = 'OK'`)
		counted("past allocations", &one, `SELECT count(*) FROM allocations WHERE node_id = $1`)
	}
}

// member reads a member of an answer by its path.
func member(v any, path string) any {
	for name := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case obj:
			v = x[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

// within says whether got has all that want has: members of objects, and the
// items of a list one by one; an empty list wants an empty one.
func within(want, got any) bool {
	switch w := want.(type) {
	case obj:
		g, ok := got.(obj)
		for k, v := range w {
			ok = ok && within(v, g[k])
		}
		return ok
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) < len(w) || (len(w) == 0 && len(g) > 0) {
			return false
		}
		for i, v := range w {
			ok = ok && within(v, g[i])
		}
		return ok
	case int:
		return got == float64(w)
	case int64:
		return got == float64(w)
	}
	return reflect.DeepEqual(want, got)
}

func pretty(v any) string {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}
