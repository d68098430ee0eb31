package sim

import (
	"strings"
	"time"
	"unique"
)

// The request log of one machine keeps requestsKept entries, fewer in a rack
// that would keep more than requestsKeptAll together, but requestsKeptLeast.
const (
	requestsKept      = 2048
	requestsKeptLeast = 128
	requestsKeptAll   = 2 << 20
)

// logLimit is what a machine's request log keeps in a rack of this size.
func (r *Rack) logLimit() int {
	return min(requestsKept, max(requestsKeptLeast, requestsKeptAll/max(1, int(r.size.Load()))))
}

// Request is one entry of a machine's request log, on the simulated clock.
type Request struct {
	At     time.Time `json:"at"`
	Method string    `json:"method"`
	Path   string    `json:"path"`
	Status int       `json:"status"`
	// Auth is session, basic or none.
	Auth string `json:"auth"`
	// IfMatch is the header of that name.
	IfMatch string `json:"ifMatch,omitempty"`
	// Body is the body of a change, passwords masked.
	Body string `json:"body,omitempty"`
	// Rules are the fault rules that acted on it.
	Rules []string `json:"rules,omitempty"`
}

// requestLog keeps the last requests, packed: a rack of 10,000 machines keeps
// hundreds of each.
type requestLog struct {
	entries []packedRequest
	first   int
	total   int // requests ever noted
}

type packedRequest struct {
	at     int64
	what   unique.Handle[requestKind]
	extra  *requestExtra
	status uint16
}

type requestKind struct{ method, path, auth string }

type requestExtra struct {
	ifMatch, body string
	rules         []string
}

// add notes a request, and forgets the oldest above the limit.
func (l *requestLog) add(r Request, limit int) {
	l.total++
	p := packedRequest{at: r.At.UnixNano(), what: unique.Make(requestKind{r.Method, r.Path, r.Auth}), status: uint16(r.Status)}
	if r.IfMatch != "" || r.Body != "" || len(r.Rules) > 0 {
		p.extra = &requestExtra{r.IfMatch, r.Body, r.Rules}
	}
	if len(l.entries) > limit {
		kept := append(append([]packedRequest{}, l.entries[l.first:]...), l.entries[:l.first]...)
		l.entries, l.first = kept[len(kept)-limit:], 0
	}
	if len(l.entries) < limit {
		l.entries = append(l.entries, p)
		return
	}
	l.entries[l.first] = p
	l.first = (l.first + 1) % limit
}

func (l *requestLog) all() []Request { return l.last(len(l.entries)) }

// last is the newest n entries, oldest first.
func (l *requestLog) last(n int) []Request {
	n = min(n, len(l.entries))
	out := make([]Request, 0, n)
	for i := len(l.entries) - n; i < len(l.entries); i++ {
		p := l.entries[(l.first+i)%len(l.entries)]
		k := p.what.Value()
		r := Request{At: time.Unix(0, p.at).UTC(), Method: k.method, Path: k.path, Auth: k.auth, Status: int(p.status)}
		if p.extra != nil {
			r.IfMatch, r.Body, r.Rules = p.extra.ifMatch, p.extra.body, p.extra.rules
		}
		out = append(out, r)
	}
	return out
}

// Requests is the machine's request log, oldest first: the last 2048 requests,
// fewer in a rack of more than a thousand machines.
func (m *Machine) Requests() []Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.log.all()
}

// numbered collections whose members come and go: their paths are counted as one.
var passing = []string{sessionsPath + "/", tasksPath + "/", monitorsPath + "/"}

// countedAs is the key of a request in Counts.Requests.
func (r Request) countedAs() string {
	for _, p := range passing {
		if strings.HasPrefix(r.Path, p) {
			return r.Method + " " + p + "{id}"
		}
	}
	return r.Method + " " + r.Path
}
