package sim

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"
)

// matches says whether a rule is for this request to this machine as it is now.
func (r *Match) matches(m *Machine, req *request) bool {
	if r.Method != "" && !slices.Contains(strings.Split(strings.ToUpper(r.Method), "|"), req.method) {
		return false
	}
	if r.Path != "" && !glob(r.Path, req.path) {
		return false
	}
	for name, want := range r.Headers {
		if !one(req.header.Values(name), want) {
			return false
		}
	}
	for name, want := range r.Query {
		if !one(req.query[name], want) {
			return false
		}
	}
	if r.Body != nil && !subset(r.Body, req.body) {
		return false
	}
	for _, p := range r.BodyHas {
		if _, ok := lookUp(req.body, p); !ok {
			return false
		}
	}
	for _, p := range r.BodyLacks {
		if _, ok := lookUp(req.body, p); ok {
			return false
		}
	}
	return r.State.holds(m, req) && r.recent(m, req.now)
}

// glob matches a path with or without its leading slash.
func glob(pattern, path string) bool {
	ok, err := doublestar.Match(strings.TrimPrefix(pattern, "/"), strings.TrimPrefix(path, "/"))
	return ok && err == nil
}

// one judges the values of a header or query parameter.
func one(values []string, want string) bool {
	switch want {
	case absent:
		return len(values) == 0
	case present:
		return len(values) > 0
	}
	for _, v := range values {
		if v == want {
			return true
		}
		if ok, err := doublestar.Match(want, v); ok && err == nil {
			return true
		}
	}
	return false
}

// subset says whether all of want is in have, objects member by member.
func subset(want, have any) bool {
	switch w := want.(type) {
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok {
			return false
		}
		for k, v := range w {
			inner, there := h[k]
			if !there || !subset(v, inner) {
				return false
			}
		}
		return true
	case []any:
		h, ok := have.([]any)
		if !ok || len(h) != len(w) {
			return false
		}
		for i := range w {
			if !subset(w[i], h[i]) {
				return false
			}
		}
		return true
	}
	return want == have
}

func (s *StateMatch) holds(m *Machine, req *request) bool {
	i := m.addressed(req)
	sys := &m.st.Systems[i]
	if s.Power != "" && s.Power != sys.Power {
		return false
	}
	if s.Post != nil && *s.Post == sys.PostUntil.IsZero() {
		return false
	}
	if s.Media != "" && (s.Media == "inserted") != (m.insertedImage(i) != "") {
		return false
	}
	if s.Busy != nil && *s.Busy != m.busy() {
		return false
	}
	return holds(s.Sessions, len(m.st.Sessions), strconv.Atoi)
}

// busy says whether a change that was accepted is still to be made.
func (m *Machine) busy() bool {
	return len(m.st.Deferred) > 0 || slices.ContainsFunc(m.st.Tasks, func(t Task) bool { return t.Act != nil && !t.Done })
}

// addressed is the system that the path names, else the first.
func (m *Machine) addressed(req *request) int {
	if segments, ok := req.segments(); ok && len(segments) > 1 && segments[0] == "Systems" {
		return max(0, m.system(segments[1]))
	}
	return 0
}

// recent judges sinceChange. A machine that was never changed was last changed
// longest ago.
func (r *Match) recent(m *Machine, now time.Time) bool {
	since := time.Duration(1<<63 - 1)
	if !m.st.LastChange.IsZero() {
		since = now.Sub(m.st.LastChange)
	}
	return holds(r.SinceChange, since, time.ParseDuration)
}

// faultSet is the rules of a machine.
type faultSet struct {
	rules []Rule
}

// replace puts other rules in place, none of which has acted.
func (f *faultSet) replace(rules []Rule) {
	f.rules = slices.Clone(rules)
	for i := range f.rules {
		f.rules[i].Hits, f.rules[i].Seen = 0, 0
	}
}

// verdict is what the rules say about one request.
type verdict struct {
	names   []string
	patches []*Rule
	final   *Rule
}

// judge tries the rules in order, makes their effects, and gathers the rest.
func (f *faultSet) judge(m *Machine, req *request) verdict {
	var v verdict
	for i := range f.rules {
		r := &f.rules[i]
		if !r.Match.matches(m, req) || !r.turn() {
			continue
		}
		r.Hits++
		v.names = append(v.names, r.Name)
		if r.Effect != nil {
			if err := m.effect(r.Effect); err != nil {
				m.rack.log.Warn("fault rule has no such effect", "machine", m.id, "rule", r.Name, "error", err)
			}
		}
		if r.Patch != nil || r.Set != nil {
			v.patches = append(v.patches, r)
		}
		if r.Reply != nil || r.Apply != nil || r.After != nil {
			v.final = r
			break
		}
	}
	return v
}

// turn counts a match and says whether the rule acts on it.
func (r *Rule) turn() bool {
	r.Seen++
	n := r.Seen - r.Match.Skip
	if n <= 0 || r.Match.Times > 0 && r.Hits >= r.Match.Times {
		return false
	}
	return r.Match.Every <= 1 || (n-1)%r.Match.Every == 0
}

func (v verdict) applies() bool {
	if v.final == nil {
		return true
	}
	return v.drop() != dropBefore && (v.final.Apply == nil || *v.final.Apply)
}

func (v verdict) drop() string {
	if v.final == nil || v.final.Reply == nil {
		return ""
	}
	return v.final.Reply.Drop
}

func (v verdict) after() time.Duration {
	if v.final == nil || v.final.After == nil {
		return 0
	}
	return time.Duration(*v.final.After)
}

func (v verdict) task() *TaskReply {
	if v.final == nil || v.final.Reply == nil {
		return nil
	}
	return v.final.Reply.Task
}

// patch changes the true answer as the rules on the way say.
func (v verdict) patch(a *answer) {
	for _, r := range v.patches {
		if a.body == nil {
			return
		}
		if r.Patch != nil {
			a.body = mergePatch(a.body, r.Patch)
		}
		for _, p := range keys(r.Set) {
			a.body, _ = setAt(a.body, p, r.Set[p]).(object)
		}
	}
}

// shape puts the members of a reply in place of the answer's.
func (r *Reply) shape(a *answer) {
	if r.Status != 0 {
		if a.status == http.StatusAccepted && r.Status != a.status {
			delete(a.header, "Location")
			delete(a.header, "Link")
		}
		a.status = r.Status
	}
	if r.Body != nil {
		a.raw = encoded(r.Body)
	}
	if r.Raw != nil {
		a.raw = []byte(*r.Raw)
	}
	if len(r.Headers) > 0 {
		if a.header == nil {
			a.header = map[string]string{}
		}
		for k, v := range r.Headers {
			a.header[http.CanonicalHeaderKey(k)] = v
		}
	}
}
