package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// MachineView is a machine as the control API shows it: the true state, whatever
// its Redfish service says.
type MachineView struct {
	ID       string    `json:"id"`
	Profile  string    `json:"profile"`
	Model    string    `json:"model"`
	Seed     uint64    `json:"seed"`
	Address  string    `json:"address"`
	Username string    `json:"username"`
	Password string    `json:"password"`
	Power    string    `json:"power"`
	Override Override  `json:"override"`
	Media    []Medium  `json:"media"`
	Accounts []Account `json:"accounts"`
	// Members of /sim/machines/{id} only.
	Post    bool         `json:"post,omitempty"`
	Running *Running     `json:"running,omitempty"`
	Disks   []Disk       `json:"disks,omitempty"`
	MACs    []string     `json:"macs,omitempty"`
	UUID    string       `json:"uuid,omitempty"`
	Serial  string       `json:"serial,omitempty"`
	State   *State       `json:"state,omitempty"`
	Spec    *MachineSpec `json:"machine,omitempty"`
}

// View is the machine's true state, in full or in short.
func (m *Machine) View(full bool) MachineView {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.advance(m.rack.clock.now()) {
		m.record()
	}
	s := m.st.Systems[0]
	v := MachineView{ID: m.id, Profile: m.prof.Name, Model: m.hw.Model, Seed: m.spec.Seed, Address: m.Address(),
		Power: s.Power, Override: s.Override, Media: append([]Medium{}, s.Media...), Accounts: append([]Account{}, m.st.Accounts...)}
	for _, a := range m.st.Accounts {
		if a.Role == roleAdministrator && a.Enabled {
			v.Username, v.Password = a.Username, a.Password
			break
		}
	}
	if !full {
		return v
	}
	v.Post, v.UUID, v.Serial = !s.PostUntil.IsZero(), s.UUID, s.Serial
	v.Disks = append([]Disk{}, s.Disks...)
	if s.Running != nil {
		run := *s.Running
		v.Running = &run
	}
	for _, n := range m.nics(0) {
		v.MACs = append(v.MACs, n.MAC)
	}
	st := copied(m.st)
	st.Counts.Requests = nil // they are many; /counts has them
	spec := m.spec
	v.State, v.Spec = &st, &spec
	return v
}

// copied is a state that shares nothing with the one it was copied from.
func copied(st State) State {
	var out State
	// What was encoded from a State decodes into one.
	_ = json.Unmarshal(encoded(st), &out)
	return out
}

// SetFaults puts the rules of a fault file on the machine, in place of those it
// had; none of them has hits. A machine member changes the machine's ways.
func (m *Machine) SetFaults(f *FaultFile) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range f.Faults {
		if err := m.tryEffect(r.Effect); err != nil {
			return fmt.Errorf("rule %q: effect %w", r.Name, err)
		}
	}
	if f.Machine != nil {
		if err := m.respecify(*f.Machine); err != nil {
			return err
		}
	}
	m.faults.replace(f.Faults)
	m.record()
	return nil
}

// ClearFaults takes all rules off the machine.
func (m *Machine) ClearFaults() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.replace(nil)
	m.record()
}

// Faults is the machine's rules with their hits.
func (m *Machine) Faults() []Rule {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Rule{}, m.faults.rules...)
}

// Change puts values at pointers of the true state, as a rule's effect does:
// what somebody at the machine could do to it.
func (m *Machine) Change(values map[string]any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.effect(values); err != nil {
		return err
	}
	m.advance(m.rack.clock.now())
	m.record()
	return nil
}

func (r *Rack) listenControl() error {
	var lc net.ListenConfig
	l, err := lc.Listen(r.ctx, "tcp", r.opts.Control)
	if err != nil {
		return fmt.Errorf("listening for the control API: %w", err)
	}
	r.ctlAddr = l.Addr().String()
	r.control = &http.Server{Handler: r.ControlHandler(), ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return r.ctx }}
	r.running.Go(func() { _ = r.control.Serve(l) }) // ends with Close
	return nil
}

// ControlHandler is the control API and the demo images.
func (r *Rack) ControlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sim/machines", r.listMachines)
	mux.HandleFunc("POST /sim/machines", r.addMachine)
	mux.HandleFunc("GET /sim/machines/{id}", r.one(func(w http.ResponseWriter, _ *http.Request, m *Machine) {
		reply(w, http.StatusOK, m.View(true))
	}))
	mux.HandleFunc("PATCH /sim/machines/{id}", r.one(changeMachine))
	mux.HandleFunc("DELETE /sim/machines/{id}", r.one(func(w http.ResponseWriter, _ *http.Request, m *Machine) {
		r.Remove(m.id)
		w.WriteHeader(http.StatusNoContent)
	}))
	mux.HandleFunc("GET /sim/machines/{id}/bootlog", r.one(func(w http.ResponseWriter, _ *http.Request, m *Machine) {
		reply(w, http.StatusOK, map[string]any{"items": m.BootLog()})
	}))
	mux.HandleFunc("GET /sim/machines/{id}/counts", r.one(func(w http.ResponseWriter, _ *http.Request, m *Machine) {
		reply(w, http.StatusOK, m.Counts())
	}))
	mux.HandleFunc("GET /sim/machines/{id}/requests", r.one(func(w http.ResponseWriter, _ *http.Request, m *Machine) {
		reply(w, http.StatusOK, map[string]any{"items": m.Requests()})
	}))
	mux.HandleFunc("GET /sim/machines/{id}/faults", r.one(func(w http.ResponseWriter, _ *http.Request, m *Machine) {
		reply(w, http.StatusOK, map[string]any{"faults": m.Faults()})
	}))
	mux.HandleFunc("PUT /sim/machines/{id}/faults", r.one(putFaults))
	mux.HandleFunc("DELETE /sim/machines/{id}/faults", r.one(func(w http.ResponseWriter, _ *http.Request, m *Machine) {
		m.ClearFaults()
		w.WriteHeader(http.StatusNoContent)
	}))
	mux.HandleFunc("POST /sim/machines/{id}/restart", r.one(func(w http.ResponseWriter, _ *http.Request, m *Machine) {
		if !m.Restart() {
			refuse(w, http.StatusConflict, errors.New("the machine is off"))
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	mux.HandleFunc("GET /sim/clock", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]any{"now": r.Now(), "timeScale": r.clock.factor})
	})
	mux.HandleFunc("POST /sim/clock", r.advanceClock)
	mux.HandleFunc("GET /sim/ca", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-pem-file")
		_, _ = w.Write(r.ca.pem()) // a client that went away is its own loss
	})
	mux.HandleFunc("GET /sim/profiles", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]any{"items": Profiles()})
	})
	mux.HandleFunc("GET /sim/faults", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]any{"items": FaultNames()})
	})
	mux.HandleFunc("GET /images/{name}", r.images.serve)
	return mux
}

func (r *Rack) one(h func(http.ResponseWriter, *http.Request, *Machine)) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		m := r.Machine(req.PathValue("id"))
		if m == nil {
			refuse(w, http.StatusNotFound, errors.New("no such machine"))
			return
		}
		h(w, req, m)
	}
}

func (r *Rack) listMachines(w http.ResponseWriter, _ *http.Request) {
	items := []MachineView{}
	for _, m := range r.Machines() {
		items = append(items, m.View(false))
	}
	reply(w, http.StatusOK, map[string]any{"items": items})
}

func (r *Rack) addMachine(w http.ResponseWriter, req *http.Request) {
	var spec MachineSpec
	b, err := readAll(req)
	if err == nil {
		err = decodeYAML(b, &spec)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	m, err := r.Add(spec)
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	reply(w, http.StatusCreated, m.View(true))
}

// advanceClock takes {"advance": "90s"}: the simulated time moves on at once.
func (r *Rack) advanceClock(w http.ResponseWriter, req *http.Request) {
	var in struct {
		Advance Duration `yaml:"advance"`
	}
	b, err := readAll(req)
	if err == nil {
		err = decodeYAML(b, &in)
	}
	if err == nil && in.Advance <= 0 {
		err = errors.New("advance: a positive duration is wanted")
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	r.Advance(time.Duration(in.Advance))
	reply(w, http.StatusOK, map[string]any{"now": r.Now(), "timeScale": r.clock.factor})
}

func changeMachine(w http.ResponseWriter, req *http.Request, m *Machine) {
	var values map[string]any
	b, err := readAll(req)
	if err == nil {
		err = json.Unmarshal(b, &values)
	}
	if err == nil {
		err = m.Change(values)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	reply(w, http.StatusOK, m.View(true))
}

// putFaults takes a fault file in the body, or with ?name= one of those built in.
func putFaults(w http.ResponseWriter, req *http.Request, m *Machine) {
	b, err := readAll(req)
	var f *FaultFile
	if name := req.URL.Query().Get("name"); err == nil && name != "" {
		f, err = NamedFaults(name)
	} else if err == nil {
		f, err = ParseFaults(b)
	}
	if err == nil {
		err = m.SetFaults(f)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	reply(w, http.StatusOK, map[string]any{"faults": m.Faults()})
}

func readAll(req *http.Request) ([]byte, error) {
	return io.ReadAll(io.LimitReader(req.Body, maxBody))
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that went away is its own loss
}

func refuse(w http.ResponseWriter, status int, err error) {
	reply(w, status, map[string]any{"error": err.Error()})
}
