package sim

import (
	"slices"
	"time"
)

// tasksKept bounds the finished tasks that a service remembers.
const tasksKept = 32

// advance does, in order of time, everything about the machine that has become
// due, and says whether there was anything. The caller holds the lock.
func (m *Machine) advance(now time.Time) bool {
	changed := false
	for {
		at, do := m.nextDue()
		if do == nil || at.After(now) {
			if do != nil {
				m.rack.due.add(m, at)
			}
			return changed
		}
		do(at)
		changed = true
	}
}

// nextDue finds what happens next; nil when nothing is going to.
func (m *Machine) nextDue() (time.Time, func(time.Time)) {
	var first time.Time
	var do func(time.Time)
	offer := func(at time.Time, f func(time.Time)) {
		if do == nil || at.Before(first) {
			first, do = at, f
		}
	}
	for i := range m.st.Systems {
		s := &m.st.Systems[i]
		if s.Transition != nil {
			offer(s.Transition.At, func(at time.Time) { m.arrive(i, at) })
		}
		if !s.PostUntil.IsZero() {
			offer(s.PostUntil, func(at time.Time) { m.boot(i, at) })
		}
		if s.Running != nil && !s.Running.ReportAt.IsZero() {
			offer(s.Running.ReportAt, func(at time.Time) { m.report(i, at) })
		}
	}
	for i := range m.st.Tasks {
		t := &m.st.Tasks[i]
		if t.Act != nil && !t.Done {
			offer(t.Start.Add(t.For), func(at time.Time) {
				t.Done = true
				m.perform(*t.Act, at)
			})
		}
	}
	for i := range m.st.Deferred {
		offer(m.st.Deferred[i].At, func(at time.Time) {
			act := m.st.Deferred[i]
			m.st.Deferred = slices.Delete(m.st.Deferred, i, i+1)
			m.perform(act, at)
		})
	}
	if d := m.st.Manager.DownUntil; !d.IsZero() {
		offer(d, func(time.Time) { m.st.Manager.DownUntil = time.Time{} })
	}
	return first, do
}

// perform carries out a change that was accepted earlier, if it can still be
// carried out.
func (m *Machine) perform(act Act, at time.Time) {
	req := &request{method: act.Method, path: act.Path, body: act.Body, again: true, now: at,
		user: act.Username}
	if a := m.answer(req); a.act != nil {
		a.act(at)
	}
}
