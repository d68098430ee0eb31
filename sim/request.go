package sim

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// serviceRoot is where every Redfish service begins.
const serviceRoot = "/redfish/v1"

// maxBody bounds what a service reads of one request.
const maxBody = 1 << 20

// request is one request to a machine, read whole.
type request struct {
	method string
	path   string // without a slash at its end
	query  url.Values
	header http.Header
	body   map[string]any
	// badBody is set when there is a body that is no JSON object.
	badBody bool
	raw     []byte
	host    string
	now     time.Time
	// again is set when an act accepted earlier is carried out: no log-in, no
	// precondition and no task is asked for any more.
	again bool
	// What authentication found.
	auth    string
	user    string
	session string
}

// answer is what the machine says, and what it does when it is allowed to.
type answer struct {
	status int
	header map[string]string
	body   object
	// render, if set, makes the body after the act.
	render func() object
	raw    []byte
	// act changes the machine's state; nil = nothing to do.
	act func(now time.Time)
	// task is the task that does it, where the answer is 202.
	task *Task
	// bookkeeping is set on acts that are no changes of the machine: log-ins and log-outs.
	bookkeeping bool
}

func readRequest(r *http.Request, now time.Time) *request {
	req := &request{method: r.Method, path: cleanPath(r.URL.Path), query: r.URL.Query(), header: r.Header,
		host: r.Host, now: now, auth: "none"}
	if r.Body == nil {
		return req
	}
	// A body that ends early is judged as what has arrived of it.
	req.raw, _ = io.ReadAll(io.LimitReader(r.Body, maxBody))
	if len(strings.TrimSpace(string(req.raw))) > 0 {
		if json.Unmarshal(req.raw, &req.body) != nil || req.body == nil {
			req.badBody = true
		}
	}
	return req
}

func cleanPath(p string) string {
	if len(p) > 1 {
		p = strings.TrimRight(p, "/")
	}
	return p
}

// changes says whether the request is one that counts as a change of the
// machine: everything but reading, log-in and log-out.
func (r *request) changes() bool {
	if r.method == http.MethodGet || r.method == http.MethodHead {
		return false
	}
	return !strings.HasPrefix(r.path, serviceRoot+"/SessionService/Sessions")
}

// segments splits the path below the service root.
func (r *request) segments() ([]string, bool) {
	if r.path == serviceRoot {
		return nil, true
	}
	rest, ok := strings.CutPrefix(r.path, serviceRoot+"/")
	if !ok {
		return nil, false
	}
	return strings.Split(rest, "/"), true
}

// loggedBody is the body of a change as the request log keeps it.
func (r *request) loggedBody() string {
	if !r.changes() || len(r.raw) == 0 {
		return ""
	}
	if r.body == nil {
		return "(" + http.StatusText(http.StatusBadRequest) + ")"
	}
	shown := make(object, len(r.body))
	for k, v := range r.body {
		if slices.Contains([]string{"Password", "NewPassword"}, k) {
			v = "***"
		}
		shown[k] = v
	}
	b, err := json.Marshal(shown)
	if err != nil || len(b) > 1024 {
		return ""
	}
	return string(b)
}
