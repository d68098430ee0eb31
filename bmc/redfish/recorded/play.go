package recorded

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Played is a recorded service that also acts: a Reset changes the power state
// it shows, a PATCH the members that it names, InsertMedia and EjectMedia the
// slot. What it was sent is kept.
type Played struct {
	*httptest.Server
	t    testing.TB
	mu   sync.Mutex
	tree map[string]map[string]any
	sent []string
}

// Play serves a recorded tree as Serve does, and acts on changes.
func Play(t testing.TB, name string) *Played {
	t.Helper()
	p := &Played{t: t, tree: map[string]map[string]any{}}
	for path, raw := range Load(t, name) {
		var r map[string]any
		if err := json.Unmarshal(raw, &r); err != nil {
			t.Fatalf("%s %s: %v", name, path, err)
		}
		p.tree[path] = r
	}
	p.Server = httptest.NewTLSServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	return p
}

// Sent are the changes since the last call: method, path and body with sorted
// members.
func (p *Played) Sent() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.sent
	p.sent = nil
	return out
}

func (p *Played) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	path := strings.ToLower(strings.TrimRight(r.URL.Path, "/"))
	if strings.HasPrefix(path, "/redfish/v1/sessionservice/sessions") && r.Method != http.MethodGet {
		w.Header().Set("X-Auth-Token", "recorded")
		w.Header().Set("Location", "/redfish/v1/SessionService/Sessions/1")
		w.WriteHeader(map[string]int{http.MethodPost: http.StatusCreated, http.MethodDelete: http.StatusNoContent}[r.Method])
		return
	}
	if r.Method == http.MethodGet {
		resource, ok := p.tree[path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(resource)
		return
	}
	body := map[string]any{}
	raw, err := io.ReadAll(r.Body)
	if err != nil || len(raw) > 0 && json.Unmarshal(raw, &body) != nil {
		p.t.Errorf("%s %s: the body %q is no object (%v)", r.Method, r.URL.Path, raw, err)
	}
	sorted, _ := json.Marshal(body) // came from JSON
	p.sent = append(p.sent, fmt.Sprintf("%s %s %s", r.Method, r.URL.Path, sorted))
	if !p.act(r.Method, path, body) {
		p.t.Errorf("%s %s: the service has nothing there", r.Method, r.URL.Path)
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// act does what a change asks for, false for one that nothing takes.
func (p *Played) act(method, path string, body map[string]any) bool {
	if method == http.MethodPatch {
		merge(p.tree[path], body)
		return p.tree[path] != nil
	}
	for _, r := range p.tree {
		actions, _ := r["Actions"].(map[string]any)
		for name, a := range actions {
			action, _ := a.(map[string]any)
			target, _ := action["target"].(string)
			if strings.ToLower(strings.TrimRight(target, "/")) != path {
				continue
			}
			switch name {
			case "#ComputerSystem.Reset":
				on := map[any]string{"On": "On", "ForceOn": "On", "ForceOff": "Off", "GracefulShutdown": "Off", "Off": "Off"}
				if state, ok := on[body["ResetType"]]; ok {
					r["PowerState"] = state
				}
			case "#VirtualMedia.InsertMedia":
				r["Image"], r["Inserted"] = body["Image"], true
			case "#VirtualMedia.EjectMedia":
				r["Image"], r["Inserted"] = nil, false
			default:
				return false
			}
			return true
		}
	}
	return false
}

// merge is a JSON merge patch.
func merge(into, patch map[string]any) {
	for k, v := range patch {
		inner, object := v.(map[string]any)
		if had, ok := into[k].(map[string]any); object && ok {
			merge(had, inner)
			continue
		}
		if into != nil {
			into[k] = v
		}
	}
}
