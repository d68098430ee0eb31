package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// Options says how a rack is run.
type Options struct {
	// TimeScale divides every simulated duration; default 1.
	TimeScale float64
	// Seed decides the identities of the machines.
	Seed uint64
	// Port is the port of the machines' Redfish services, the same on every
	// machine's address; 0 picks a free one.
	Port int
	// OwnPorts gives every machine a port of its own on 127.0.0.1 instead of an
	// address of its own; chosen by itself where the system allows no other way.
	OwnPorts bool
	// Control is the address of the control API; empty = none.
	Control string
	// StateDir holds the journal; empty = nothing survives.
	StateDir string
	// Faults are put on every machine that is added.
	Faults *FaultFile
	// Booted is what a machine does that booted our image, until ctx ends because
	// the machine is reset or powered off. Nil runs the agent of package agent.
	Booted func(ctx context.Context, h *BootedMachine)
	// NoAgents leaves the agents of installed systems out: a session each is too
	// much for a rack of many thousands.
	NoAgents bool
	// HTTP fetches what machines fetch; default one with sensible limits.
	HTTP *http.Client
	// Log gets what a person who runs a rack wants to know; default discards.
	Log *slog.Logger
}

// Rack is a set of simulated machines behind one listener.
type Rack struct {
	opts    Options
	clock   *clock
	log     *slog.Logger
	http    *http.Client
	ctx     context.Context
	cancel  context.CancelFunc
	server  *http.Server
	control *http.Server
	ctlAddr string
	port    int
	ports   bool // machines have ports of their own
	ca      *authority
	journal *journal
	due     *agenda
	images  imageShelf
	// agents is the folder of what agents of installed systems keep.
	agents  string
	running sync.WaitGroup

	mu      sync.RWMutex
	byID    map[string]*Machine
	byAddr  map[string]*Machine // ip:port
	ordinal int
	size    atomic.Int64 // machines in byID
}

// NewRack starts a rack; with a StateDir that holds a journal, with the
// machines of that journal as they were.
func NewRack(opts Options) (*Rack, error) {
	if opts.TimeScale == 0 {
		opts.TimeScale = 1
	}
	if opts.TimeScale < 0 {
		return nil, fmt.Errorf("time scale %g is negative", opts.TimeScale)
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Booted == nil {
		opts.Booted = runAgent
	}
	if opts.HTTP == nil {
		opts.HTTP = &http.Client{Transport: &http.Transport{
			DialContext:     (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			IdleConnTimeout: 30 * time.Second, MaxIdleConnsPerHost: 4,
		}}
	}
	r := &Rack{opts: opts, log: opts.Log, http: opts.HTTP, clock: newClock(opts.TimeScale),
		byID: map[string]*Machine{}, byAddr: map[string]*Machine{}}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	ca, err := newAuthority(opts.Seed)
	if err != nil {
		return nil, err
	}
	r.ca = ca
	r.due = newAgenda(r)
	if err := r.start(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Rack) start() error {
	if err := r.openAgents(); err != nil {
		return err
	}
	past, err := r.openJournal()
	if err != nil {
		return err
	}
	if err := r.listen(); err != nil {
		return err
	}
	r.journal.write(record{Rack: r.rackRecord()})
	if err := r.resume(past); err != nil {
		return err
	}
	go r.due.run(r.ctx)
	if r.opts.Control != "" {
		return r.listenControl()
	}
	return nil
}

// openAgents makes the folder of the agents' identities, which survives where
// the rack's journal does.
func (r *Rack) openAgents() (err error) {
	if r.opts.StateDir != "" {
		r.agents = filepath.Join(r.opts.StateDir, "agents")
		return nil
	}
	if r.agents, err = os.MkdirTemp("", "bmcsim-agents-"); err != nil {
		return fmt.Errorf("folder of the agents: %w", err)
	}
	return nil
}

// Add puts one more machine into the rack.
func (r *Rack) Add(spec MachineSpec) (*Machine, error) {
	r.mu.Lock()
	r.ordinal++
	n := r.ordinal
	r.mu.Unlock()
	m, err := newMachine(r, n, spec)
	if err != nil {
		return nil, err
	}
	if r.opts.Faults != nil {
		m.faults.replace(r.opts.Faults.Faults)
	}
	if err := r.place(m); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recordSpec()
	m.record()
	return m, nil
}

// place gives the machine its address and makes it reachable.
func (r *Rack) place(m *Machine) error {
	addr, err := r.address(m)
	if err != nil {
		return err
	}
	m.addr = addr
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byID[m.id] = m
	r.byAddr[addr] = m
	r.size.Store(int64(len(r.byID)))
	return nil
}

// Remove takes a machine out of the rack.
func (r *Rack) Remove(id string) bool {
	r.mu.Lock()
	m, ok := r.byID[id]
	if ok {
		delete(r.byID, id)
		delete(r.byAddr, m.addr)
	}
	r.mu.Unlock()
	if !ok {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removed = true
	for i := range m.st.Systems {
		m.halt(i)
	}
	if m.listener != nil {
		_ = m.listener.Close() // nothing is owed to a machine that is gone
	}
	r.journal.remove(m.id)
	if err := os.RemoveAll(filepath.Join(r.agents, m.id)); err != nil {
		r.log.Warn("what the agent of a removed machine kept is still there", "machine", m.id, "error", err)
	}
	return true
}

// Machine finds a machine by its id; nil when there is none.
func (r *Rack) Machine(id string) *Machine {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byID[id]
}

// Machines lists the machines in the order they were added.
func (r *Rack) Machines() []*Machine {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]*Machine, 0, len(r.byID))
	for _, m := range r.byID {
		out = append(out, m)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].ordinal < out[j].ordinal })
	return out
}

func (r *Rack) at(addr net.Addr) *Machine {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byAddr[addr.String()]
}

// ControlURL is the base URL of the control API; empty when there is none.
func (r *Rack) ControlURL() string {
	if r.ctlAddr == "" {
		return ""
	}
	return "http://" + r.ctlAddr
}

// CA is the certificate, in PEM, of the authority that signs for machines whose
// TLS mode is ownCA.
func (r *Rack) CA() []byte { return r.ca.pem() }

// Now is the simulated time.
func (r *Rack) Now() time.Time { return r.clock.now() }

// Advance moves the simulated time forward at once, and returns when everything
// that was due until then has happened.
func (r *Rack) Advance(d time.Duration) {
	r.clock.skip(d)
	r.journal.write(record{Rack: r.rackRecord()})
	for _, m := range r.Machines() {
		m.wake()
	}
}

// Close stops the rack as a pulled plug would: what machines run ends, and the
// journal holds what was.
func (r *Rack) Close() error {
	r.cancel()
	var errs []error
	for _, s := range []*http.Server{r.control, r.server} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	r.running.Wait()
	for _, m := range r.Machines() {
		if m.listener != nil {
			_ = m.listener.Close() // closed with the server already
		}
	}
	if r.journal != nil {
		r.flush()
		errs = append(errs, r.journal.close())
	}
	if r.opts.StateDir == "" {
		errs = append(errs, os.RemoveAll(r.agents))
	}
	return errors.Join(errs...)
}
