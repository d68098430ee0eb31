package sim

import (
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// outcome is an answer after the fault rules had their say.
type outcome struct {
	answer *answer
	rules  []string
	delay  time.Duration
	drop   string
	// hangUp ends the connection after the answer: the certificate it was made
	// with is not shown any more.
	hangUp bool
}

// serve takes one request through: count it, let the rules act, answer from the
// true state, do what was asked where the rules let it, and reply as they say.
func (m *Machine) serve(w http.ResponseWriter, r *http.Request) {
	req := readRequest(r, m.rack.clock.now())
	out, down := m.handle(req)
	defer m.finish(req)
	if down {
		drop()
	}
	if out.delay > 0 {
		m.rack.clock.sleep(r.Context(), out.delay)
	}
	switch out.drop {
	case dropBefore, dropAfter:
		drop()
	}
	m.write(w, r, out)
}

// handle judges the request under the machine's lock. It says true when the BMC
// is away and there is no answer at all.
func (m *Machine) handle(req *request) (outcome, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance(req.now)
	m.countRequest(req)
	if !m.st.Manager.DownUntil.IsZero() {
		m.note(Request{At: req.now, Method: req.method, Path: req.path, Auth: req.auth})
		return outcome{}, true
	}
	m.expireSessions(req.now)
	verdict := m.faults.judge(m, req)
	a := m.answer(req)
	out := m.carryOut(req, a, verdict)
	m.advance(req.now)
	m.countSessions()
	m.note(Request{At: req.now, Method: req.method, Path: req.path, Auth: req.auth, Status: out.answer.status,
		IfMatch: req.header.Get("If-Match"), Body: req.loggedBody(), Rules: out.rules})
	if req.method != http.MethodGet && req.method != http.MethodHead || len(out.rules) > 0 {
		m.record()
	}
	return out, false
}

// carryOut does the act of an answer as far as the rules allow, and shapes the
// answer as they say.
func (m *Machine) carryOut(req *request, a *answer, v verdict) outcome {
	out := outcome{answer: a, rules: v.names}
	acts := (a.act != nil || a.task != nil) && v.applies()
	if acts && !a.bookkeeping {
		m.st.LastChange = req.now
	}
	switch ruled := v.task(); {
	case ruled != nil:
		out.answer = m.ruledTask(req, ruled, acts, v.after())
	case a.task != nil && v.drop() != dropBefore:
		// The task that the answer names is there, even if it does nothing.
		task := *a.task
		task.For += v.after()
		if !acts {
			task.Act = nil
		}
		m.addTask(task)
	case acts && v.after() > 0:
		m.st.Deferred = append(m.st.Deferred, m.later(req, req.now.Add(v.after())))
	case acts:
		a.act(req.now)
	}
	out.hangUp = m.cert != nil && m.certOf != m.st.TLS
	if out.answer.render != nil {
		out.answer.body = out.answer.render()
	}
	v.patch(out.answer)
	if v.final != nil && v.final.Reply != nil {
		out.delay = time.Duration(v.final.Reply.Delay)
		out.drop = v.final.Reply.Drop
		v.final.Reply.shape(out.answer)
	}
	return out
}

// later is the request as an act to be carried out at another time.
func (m *Machine) later(req *request, at time.Time) Act {
	return Act{At: at, Method: req.method, Path: req.path, Body: req.body, Username: req.user}
}

// note writes a request down; the journal gets it with the next flush at latest.
func (m *Machine) note(r Request) {
	limit := m.rack.logLimit()
	m.log.add(r, limit)
	m.st.Counts.Requests[r.countedAs()]++
	m.unsaved++
	switch {
	case m.unsaved >= limit/2:
		m.recordLog()
	case m.unsaved == 1:
		m.rack.journal.owes(m)
	}
}

func (m *Machine) countRequest(req *request) {
	if req.method == http.MethodPost {
		switch {
		case strings.HasSuffix(req.path, "/Actions/ComputerSystem.Reset"):
			kind, ok := req.body["ResetType"].(string)
			if !ok {
				kind = "none"
			}
			m.st.Counts.Resets[kind]++
		case strings.HasSuffix(req.path, "/Actions/VirtualMedia.InsertMedia"):
			m.st.Counts.InsertMedia++
		}
	}
	if req.changes() {
		m.flying++
		m.st.Counts.ChangesInFlightMax = max(m.st.Counts.ChangesInFlightMax, m.flying)
	}
}

func (m *Machine) finish(req *request) {
	if !req.changes() {
		return
	}
	m.mu.Lock()
	m.flying--
	m.mu.Unlock()
}

func (m *Machine) countSessions() {
	c := &m.st.Counts
	c.SessionsOpen = len(m.st.Sessions)
	c.SessionsOpenMax = max(c.SessionsOpenMax, c.SessionsOpen)
}

// Counts is what the machine was asked to do and what it saw.
func (m *Machine) Counts() Counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireSessions(m.rack.clock.now())
	m.countSessions()
	c := m.st.Counts
	c.Requests, c.Resets = maps.Clone(c.Requests), maps.Clone(c.Resets)
	return c
}

// write sends the answer, or the half of it.
func (m *Machine) write(w http.ResponseWriter, r *http.Request, out outcome) {
	a := out.answer
	body := a.raw
	h := w.Header()
	h.Set("OData-Version", "4.0")
	h.Set("Cache-Control", "no-cache")
	if body == nil && a.body != nil {
		// A body of JSON values always encodes.
		body, _ = json.Marshal(a.body)
	}
	if body != nil && a.status != http.StatusNoContent {
		h.Set("Content-Type", "application/json;charset=utf-8")
	}
	for k, v := range a.header {
		h.Set(k, v)
	}
	if out.hangUp {
		h.Set("Connection", "close")
	}
	if a.status == http.StatusNoContent || a.status == http.StatusNotModified {
		body = nil
	} else {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	if out.drop == dropMidway {
		w.WriteHeader(a.status)
		_, _ = w.Write(body[:len(body)/2]) // the connection ends in any case
		_ = http.NewResponseController(w).Flush()
		drop()
	}
	w.WriteHeader(a.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // a client that went away is its own loss
	}
}
