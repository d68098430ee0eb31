package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// past is what a journal holds about the machines of a rack.
type past struct {
	rack     *rackRecord
	machines map[string]*pastMachine
}

type pastMachine struct {
	spec   specRecord
	state  *State
	faults []Rule
	boots  []Boot
	totals map[string]int
	log    []Request
	logEnd int // the log holds the entries up to here
	noted  int // the totals count the entries up to here
}

// openJournal reads the journal of an earlier run, takes its clock and port
// over, and opens a new series.
func (r *Rack) openJournal() (*past, error) {
	p := &past{machines: map[string]*pastMachine{}}
	if r.opts.StateDir == "" {
		return p, nil
	}
	if err := os.MkdirAll(r.opts.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	n, err := p.read(r.opts.StateDir)
	if err != nil {
		return nil, fmt.Errorf("reading the journal: %w", err)
	}
	if p.rack != nil {
		r.clock = resumedClock(p.rack.Wall, p.rack.Sim, p.rack.Factor, r.opts.TimeScale)
		r.port, r.ports, r.opts.Seed = p.rack.Port, p.rack.OwnPorts, p.rack.Seed
		if r.ca, err = newAuthority(r.opts.Seed); err != nil {
			return nil, err
		}
	}
	r.journal, err = openJournalFile(r.opts.StateDir, n+1, r.log)
	return p, err
}

// read reads every series from the newest snapshot on, and returns the number of
// the last one.
func (p *past) read(dir string) (int, error) {
	files, err := seriesIn(dir)
	if err != nil {
		return 0, err
	}
	from := 0
	for _, f := range files {
		if f.snapshot {
			from = f.n
		}
	}
	last := 0
	for _, f := range files {
		last = f.n
		if f.n < from {
			continue
		}
		if err := readRecords(filepath.Join(dir, f.name), p.take); err != nil {
			return 0, err
		}
	}
	return last, nil
}

// take adds one record to what is known.
func (p *past) take(rec record) error {
	if rec.Rack != nil {
		p.rack = rec.Rack
		return nil
	}
	if rec.Removed {
		delete(p.machines, rec.ID)
		return nil
	}
	m := p.machines[rec.ID]
	if rec.Spec != nil {
		if m == nil {
			m = &pastMachine{totals: map[string]int{}}
			p.machines[rec.ID] = m
		}
		m.spec = *rec.Spec
	}
	if m == nil {
		return fmt.Errorf("a record of machine %q comes before the machine", rec.ID)
	}
	if rec.Totals != nil {
		m.totals, m.noted, m.log, m.logEnd = rec.Totals.Requests, rec.Totals.Noted, nil, 0
	}
	if rec.State != nil {
		m.state = rec.State
	}
	if rec.Faults != nil {
		m.faults = *rec.Faults
	}
	if rec.Boot != nil && rec.BootN == len(m.boots) {
		m.boots = append(m.boots, *rec.Boot)
	}
	m.takeLog(rec)
	return nil
}

// takeLog adds the log entries that are new to the log, and counts those that
// are not in the totals yet: a snapshot's entries are.
func (m *pastMachine) takeLog(rec record) {
	first := rec.LogEnd - len(rec.Log)
	for i, e := range rec.Log {
		n := first + i
		if n >= m.logEnd {
			m.log = append(m.log, e)
			m.logEnd = n + 1
		}
		if n >= m.noted {
			m.totals[e.countedAs()]++
			m.noted = n + 1
		}
	}
}

// resume puts the machines of an earlier run back, and lets what fell due since
// then happen.
func (r *Rack) resume(p *past) error {
	ids := make([]string, 0, len(p.machines))
	for id := range p.machines {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	var errs []error
	for _, id := range ids {
		if err := r.resumeMachine(p.machines[id]); err != nil {
			errs = append(errs, fmt.Errorf("machine %s: %w", id, err))
		}
	}
	if err := errors.Join(errs...); err != nil || r.journal == nil {
		return err
	}
	if err := r.snapshot(r.journal.n); err != nil {
		return fmt.Errorf("writing the snapshot: %w", err)
	}
	for _, m := range r.Machines() {
		m.restart()
	}
	return nil
}

func (r *Rack) resumeMachine(p *pastMachine) error {
	m, err := newMachine(r, p.spec.Ordinal, p.spec.Spec)
	if err != nil {
		return err
	}
	m.ownPort = p.spec.OwnPort
	if p.state != nil {
		m.st = *p.state
	}
	m.st.Counts.Requests = p.totals
	if m.st.Counts.Resets == nil {
		m.st.Counts.Resets = map[string]int{}
	}
	m.faults.rules = p.faults
	m.bootLog = p.boots
	for _, e := range p.log {
		m.log.add(e, requestsKept)
	}
	m.log.total = p.noted
	r.ordinal = max(r.ordinal, m.ordinal)
	return r.place(m)
}

// restart takes up what the machine was doing: what runs our image runs it
// again, as a program that was started anew on a machine that stayed up, and so
// does the agent of an installed system.
func (m *Machine) restart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.st.Systems {
		if run := m.st.Systems[i].Running; run != nil && run.BootID != "" {
			if base, id, ok := bootImage(run.URL); ok {
				m.startImage(i, base, id)
			}
		}
		if run := m.st.Systems[i].Running; run != nil && run.Source == sourceDisk {
			m.startInstalled(i, 0)
		}
	}
	if m.advance(m.rack.clock.now()) {
		m.record()
	}
}
