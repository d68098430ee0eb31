package sim

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Defaults of simulated durations.
const (
	defaultPost           = 120 * time.Second
	defaultSettle         = 20 * time.Second
	defaultSessionTimeout = 30 * time.Minute
	shutdownTime          = 30 * time.Second // an operating system that was asked to stop
	osBootTime            = 60 * time.Second // from the boot loader to a system that reports
	bmcRestart            = 60 * time.Second
	nativeTaskTime        = 3 * time.Second // of a change that this service makes in a task
	eraseTaskTime         = 90 * time.Second
)

// sessionFloor is the wall time that a session lives at least, however fast the
// rack's time runs: a client cannot be faster than the network.
const sessionFloor = time.Minute

// Machine is one simulated machine. All of its methods are safe for concurrent use.
type Machine struct {
	rack     *Rack
	id       string
	ordinal  int
	spec     MachineSpec
	prof     *profile
	hw       *hardwareTemplate
	vary     variation
	addr     string
	ownPort  int
	listener net.Listener

	mu      sync.Mutex
	st      State
	faults  faultSet
	boots   map[int]context.CancelFunc // what runs on a system, by its index
	log     requestLog
	bootLog []Boot
	cert    *tls.Certificate
	certOf  TLSState
	flying  int // changing requests that are open
	unsaved int // newest entries of the request log that the journal lacks
	removed bool
}

func newMachine(r *Rack, ordinal int, spec MachineSpec) (*Machine, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	if spec.Profile == "" {
		spec.Profile = "generic"
	}
	if spec.Seed == 0 {
		spec.Seed = uint64(ordinal)
	}
	if spec.Systems == 0 {
		spec.Systems = 1
	}
	p, err := findProfile(spec.Profile)
	if err != nil {
		return nil, err
	}
	m := &Machine{rack: r, id: fmt.Sprintf("m%05d", ordinal), ordinal: ordinal, prof: p,
		vary: vary(p, spec.Seed), boots: map[int]context.CancelFunc{}}
	rnd := seeded("model", spec.Seed)
	m.hw = &p.Hardware[rnd.IntN(len(p.Hardware))]
	if spec.Model != "" {
		if m.hw, err = p.model(spec.Model); err != nil {
			return nil, err
		}
	}
	m.spec = m.complete(spec)
	m.st = m.firstState()
	return m, nil
}

// complete fills what the spec leaves out from profile and seed.
func (m *Machine) complete(s MachineSpec) MachineSpec {
	or := func(v *string, otherwise string) {
		if *v == "" {
			*v = otherwise
		}
	}
	or(&s.Model, m.hw.Model)
	or(&s.BootHome, m.vary.bootHome)
	or(&s.BootMode, m.prof.Boot.Mode)
	or(&s.BootMode, "UEFI")
	or(&s.ETag, m.vary.etag)
	or(&s.TaskRef, m.vary.taskRef)
	or(&s.MediaUnder, m.vary.mediaUnder)
	or(&s.ResetTypesFrom, m.vary.resetFrom)
	or(&s.GracefulShutdown, "obey")
	or(&s.Power, powerOff)
	or(&s.DiskContent, ContentEmpty)
	or(&s.Username, m.vary.adminUser)
	or(&s.Password, m.ident(0).serial("password", 0, 12))
	or(&s.TLS.Mode, tlsSelfSigned)
	if s.ResetTypes == nil {
		s.ResetTypes = m.prof.Reset.Types
	}
	if s.SessionLimit == 0 {
		s.SessionLimit = m.prof.Sessions.Limit
	}
	if s.SessionTimeout == 0 {
		s.SessionTimeout = Duration(defaultSessionTimeout)
	}
	if s.Post == nil {
		d := Duration(defaultPost)
		s.Post = &d
	}
	if s.PowerSettle == nil {
		d := Duration(defaultSettle)
		s.PowerSettle = &d
	}
	return s
}

func (m *Machine) firstState() State {
	st := State{TLS: TLSState{Mode: m.spec.TLS.Mode, Generation: 1}, Serial: 100,
		Manager: Manager{UUID: m.ident(0).uuid("manager")},
		Counts:  Counts{Requests: map[string]int{}, Resets: map[string]int{}}}
	for i := range m.spec.Systems {
		id := m.ident(i)
		s := System{ID: numbered(m.vary.system, i), Name: m.prof.Names.System, UUID: id.uuid("system"),
			Serial: id.serial("system", 0, 10), Model: m.hw.Model, Health: "OK", Power: m.spec.Power,
			Override: Override{Enabled: "Disabled", Target: "None", Mode: m.spec.BootMode},
			Media:    m.newMedia(), Disks: m.newDisks(i, m.spec.DiskContent)}
		if m.hw.NoUUID {
			s.UUID = ""
		}
		if s.Power == powerOn {
			s.Running = &Running{Source: sourceDisk, Since: m.rack.clock.now()}
		}
		st.Systems = append(st.Systems, s)
	}
	if b := m.prof.Baseboard; b != nil {
		id := m.ident(len(st.Systems))
		st.Systems = append(st.Systems, System{ID: b.ID, Name: b.ID, UUID: id.uuid("system"),
			Serial: id.digits("system", 0, 13), Model: b.Model, Health: "OK", Power: powerOn, Baseboard: true})
	}
	first := max(1, m.prof.Accounts.First)
	a := Account{ID: strconv.Itoa(first), Username: m.spec.Username, Password: m.spec.Password,
		Role: "Administrator", Enabled: true, MustChange: m.spec.MustChangePassword}
	if m.prof.Accounts.IDs == "name" {
		a.ID = a.Username
	}
	st.Accounts = []Account{a}
	return st
}

func (m *Machine) newMedia() []Medium {
	out := make([]Medium, 0, len(m.prof.Media.Slots))
	for _, s := range m.prof.Media.Slots {
		out = append(out, Medium{ID: s.ID, Types: s.Types, WriteProtected: true})
	}
	return out
}

// numbered is the id of the i-th system or chassis: Node0 counts up, Self gets a suffix.
func numbered(base string, i int) string {
	if i == 0 {
		return base
	}
	stem := strings.TrimRight(base, "0123456789")
	if n, err := strconv.Atoi(base[len(stem):]); err == nil {
		return stem + strconv.Itoa(n+i)
	}
	return base + strconv.Itoa(i+1)
}

// ID names the machine in the control API.
func (m *Machine) ID() string { return m.id }

// Address is the base URL of the machine's Redfish service.
func (m *Machine) Address() string { return "https://" + m.addr }

// Username and Password are the administrator's, as they are now.
func (m *Machine) Username() string { return m.admin().Username }

// Password is the administrator's password as it is now.
func (m *Machine) Password() string { return m.admin().Password }

func (m *Machine) admin() Account {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.st.Accounts {
		if a.Role == "Administrator" && a.Enabled {
			return a
		}
	}
	return Account{}
}

// wake does what has become due.
func (m *Machine) wake() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.removed {
		return
	}
	if m.advance(m.rack.clock.now()) {
		m.record()
	}
}

// settle is the time of one power change.
func (m *Machine) settle() time.Duration { return time.Duration(*m.spec.PowerSettle) }

// post is the time of the power-on self test.
func (m *Machine) post() time.Duration { return time.Duration(*m.spec.Post) }

// system finds a system by its id; -1 when there is none.
func (m *Machine) system(id string) int {
	for i := range m.st.Systems {
		if m.st.Systems[i].ID == id {
			return i
		}
	}
	return -1
}
