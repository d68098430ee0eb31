package sim

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// The journal is a series of files: snapshot-N holds everything as it was at
// some time after journal-N was begun, journal-N what happened since. A record
// holds the whole state of a machine, so that reading one twice, or an older
// one before a newer one, does no harm. Records are written whole, before the
// answer to the request that caused them; a kill of the process loses at most
// the reads of the last flush interval. (It does not survive a crash of the
// host: nothing is synced.)

// compactAbove is the size of a journal file above which a new series begins.
const compactAbove = 256 << 20

// journal writes records. A nil journal writes none.
type journal struct {
	dir  string
	log  *slog.Logger
	mu   sync.Mutex
	file *os.File
	n    int
	size int64
	owed map[*Machine]struct{}
}

// record is one line of the journal: something about the rack, or about one machine.
type record struct {
	Rack    *rackRecord   `json:"rack,omitempty"`
	ID      string        `json:"m,omitempty"`
	Spec    *specRecord   `json:"spec,omitempty"`
	State   *State        `json:"state,omitempty"`
	Faults  *[]Rule       `json:"faults,omitempty"`
	Boot    *Boot         `json:"boot,omitempty"`
	BootN   int           `json:"bootN,omitempty"`
	Log     []Request     `json:"log,omitempty"`
	LogEnd  int           `json:"logEnd,omitempty"`
	Totals  *totalsRecord `json:"totals,omitempty"`
	Removed bool          `json:"removed,omitempty"`
}

type rackRecord struct {
	Wall     time.Time `json:"wall"`
	Sim      time.Time `json:"sim"`
	Factor   float64   `json:"factor"`
	Port     int       `json:"port"`
	OwnPorts bool      `json:"ownPorts"`
	Seed     uint64    `json:"seed"`
}

type specRecord struct {
	Ordinal int         `json:"ordinal"`
	OwnPort int         `json:"ownPort,omitempty"`
	Spec    MachineSpec `json:"spec"`
}

// totalsRecord is the request counts that the log entries of a snapshot do not
// hold any more.
type totalsRecord struct {
	Requests map[string]int `json:"requests"`
	Noted    int            `json:"noted"`
}

func openJournalFile(dir string, n int, log *slog.Logger) (*journal, error) {
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("journal-%d", n)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &journal{dir: dir, file: f, n: n, log: log, owed: map[*Machine]struct{}{}}, nil
}

func (j *journal) write(r record) {
	if j == nil {
		return
	}
	b := append(encoded(r), '\n')
	j.mu.Lock()
	defer j.mu.Unlock()
	j.size += int64(len(b))
	if _, err := j.file.Write(b); err != nil && !errors.Is(err, os.ErrClosed) {
		j.log.Error("the journal cannot be written", "error", err)
	}
}

func (r *Rack) rackRecord() *rackRecord {
	wall, sim := r.clock.origin()
	return &rackRecord{wall, sim, r.clock.factor, r.port, r.ports, r.opts.Seed}
}

func (j *journal) remove(id string) { j.write(record{ID: id, Removed: true}) }

// owes notes that a machine's request log is ahead of the journal.
func (j *journal) owes(m *Machine) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.owed[m] = struct{}{}
}

func (j *journal) takeOwed() []*Machine {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := make([]*Machine, 0, len(j.owed))
	for m := range j.owed {
		out = append(out, m)
	}
	clear(j.owed)
	return out
}

func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.file.Close()
}

// recordSpec writes what the machine is; the caller holds its lock.
func (m *Machine) recordSpec() {
	m.rack.journal.write(record{ID: m.id, Spec: &specRecord{m.ordinal, m.ownPort, m.spec}})
}

// record writes the machine as it is; the caller holds its lock.
func (m *Machine) record() {
	j := m.rack.journal
	if j == nil {
		m.unsaved = 0
		return
	}
	j.write(m.stateRecord())
	m.unsaved = 0
}

// recordLog writes the newest entries of the request log alone.
func (m *Machine) recordLog() {
	m.rack.journal.write(record{ID: m.id, Log: m.log.last(m.unsaved), LogEnd: m.log.total})
	m.unsaved = 0
}

func (m *Machine) stateRecord() record {
	st := m.st
	st.Counts.Requests = nil
	rules := m.faults.rules
	return record{ID: m.id, State: &st, Faults: &rules, Log: m.log.last(m.unsaved), LogEnd: m.log.total}
}

// flush writes the reads that the journal lacks, and begins a new series when
// the present one has grown large.
func (r *Rack) flush() {
	j := r.journal
	if j == nil {
		return
	}
	for _, m := range j.takeOwed() {
		m.mu.Lock()
		if m.unsaved > 0 && !m.removed {
			m.recordLog()
		}
		m.mu.Unlock()
	}
	j.mu.Lock()
	large := j.size > compactAbove
	j.mu.Unlock()
	if large {
		if err := r.compact(); err != nil {
			r.log.Error("the journal cannot be compacted", "error", err)
		}
	}
}

// compact begins a new series: new records go to its journal from now on, then
// the snapshot is written and the old series removed.
func (r *Rack) compact() error {
	j := r.journal
	next, err := openJournalFile(j.dir, j.n+1, j.log)
	if err != nil {
		return err
	}
	j.mu.Lock()
	old := j.file
	j.file, j.n, j.size = next.file, next.n, 0
	j.mu.Unlock()
	if err := old.Close(); err != nil {
		return err
	}
	return r.snapshot(j.n)
}

func (r *Rack) snapshot(n int) error {
	dir := r.journal.dir
	temp := filepath.Join(dir, "snapshot.new")
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	put := func(rec record) { _, _ = w.Write(append(encoded(rec), '\n')) } // told by Flush
	put(record{Rack: r.rackRecord()})
	for _, m := range r.Machines() {
		m.mu.Lock()
		put(record{ID: m.id, Spec: &specRecord{m.ordinal, m.ownPort, m.spec}})
		put(record{ID: m.id, Totals: &totalsRecord{m.st.Counts.Requests, m.log.total}})
		rec := m.stateRecord()
		rec.Log = m.log.all()
		put(rec)
		for i := range m.bootLog {
			put(record{ID: m.id, Boot: &m.bootLog[i], BootN: i})
		}
		m.mu.Unlock()
	}
	if err := errors.Join(w.Flush(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(dir, fmt.Sprintf("snapshot-%d", n))); err != nil {
		return err
	}
	return removeOlder(dir, n)
}

func removeOlder(dir string, n int) error {
	files, err := seriesIn(dir)
	if err != nil {
		return err
	}
	for _, s := range files {
		if s.n < n {
			err = errors.Join(err, os.Remove(filepath.Join(dir, s.name)))
		}
	}
	return err
}

type seriesFile struct {
	name     string
	n        int
	snapshot bool
}

// seriesIn lists the journal's files in the order in which they are read.
func seriesIn(dir string) ([]seriesFile, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []seriesFile
	for _, e := range entries {
		kind, number, ok := strings.Cut(e.Name(), "-")
		var n int
		if _, err := fmt.Sscanf(number, "%d", &n); !ok || err != nil || kind != "snapshot" && kind != "journal" {
			continue
		}
		out = append(out, seriesFile{e.Name(), n, kind == "snapshot"})
	}
	slices.SortFunc(out, func(a, b seriesFile) int {
		if a.n != b.n {
			return a.n - b.n
		}
		if a.snapshot {
			return -1
		}
		return 1
	})
	return out, nil
}

// readRecords calls f with each whole record of a file. A last line that was
// not written to its end is what a kill leaves, and is passed over.
func readRecords(name string, f func(record) error) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	in := bufio.NewReaderSize(file, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var rec record
		if err := json.Unmarshal(line, &rec); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := f(rec); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

func (j *journal) writeBoot(id string, n int, b Boot) {
	j.write(record{ID: id, Boot: &b, BootN: n})
}
