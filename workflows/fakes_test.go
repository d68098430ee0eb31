package workflows_test

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// world is one node with its operation, BMC and machine, kept in memory. It
// implements the ports of activities.
type world struct {
	mu sync.Mutex
	// wall guards against writes of a superseded operation.
	gone, superseded bool

	work    fleet.Work
	state   fleet.OperationState
	parked  bool
	failure *fleet.OperationFailure
	result  *fleet.OperationResult
	cause   string
	left    []string
	steps   []fleet.Step
	journal map[string]json.RawMessage
	waiting *fleet.WaitingFor
	shown   []fleet.WaitingFor
	refuse  string
	held    bool // by somebody, or for a drain by an allocation
	// looks counts a drain's; onHeld is called after one that found the node held.
	looks  int
	onHeld func()
	kinds  []string
	log    []string

	power      fleet.PowerState
	media      string
	override   bmc.BootOverride
	resets     map[string]int
	sessions   int
	identity   []bmc.Found
	inventory  fleet.Inventory
	erased     []fleet.DiskErase
	eraseOwed  bool
	maybeInUse *bool
	conditions map[string]fleet.ConditionStatus
	revoked    int
	staged     bool
	stored     int
	password   string
	image      *fleet.ImageView

	boots    int
	voided   int
	calledIn map[int]bool
	reused   map[int]bool
	commands []*command
	reported bool
	deaf     bool // the machine never calls in
	joined   fleet.Hardware
	noAgent  bool // the node's agent has no session
	// answers are what the machine does with a command; the default succeeds.
	answers map[string]func(w *world, c *command)
	// faults are errors of the BMC's methods, taken in order; onStep is called
	// when a step starts.
	faults map[string][]error
	onStep func(step string, attempt int)
	// onFail is called once the operation is recorded as failed.
	onFail func()
}

type command struct {
	activities.Command
	key  string
	boot int
	in   activities.CommandIn
}

const opID, nodeID = "op_01test", "node_01test"

// machineUUID is what the BMC says of the machine.
const machineUUID = "4c4c4544-0051-3910-8053-b4c04f4e3934"

func newWorld(verb fleet.Verb, input any) *world {
	raw, err := json.Marshal(input)
	if err != nil {
		panic(err)
	}
	inv := fleet.Inventory{Vendor: "Acme", Model: "X1", Health: "OK", MemoryMiB: 2048,
		Disks: []fleet.Disk{{Serial: "D1"}, {Serial: "D2"}, {Serial: "USB", Removable: true}},
		GPUs:  []fleet.Device{{Model: "NVIDIA H100 80GB HBM3"}, {Model: "NVIDIA H100 80GB HBM3"}}}
	return &world{
		work: fleet.Work{OperationID: opID, NodeID: nodeID, TenantID: "t1", SiteID: "site_1", NodeName: "n1", Verb: verb, Input: raw,
			RequestedBy: "dev:ann", ReturnTo: fleet.Ready, State: fleet.MovesTo[verb], Waits: fleet.DefaultWaits, BMCUsername: "admin",
			Capabilities: fleet.Capabilities{Driver: "redfish", BootOverride: true, VirtualMedia: true, SetPassword: true, BootTargets: []string{"Cd", "Pxe"}},
			Inventory:    &inv},
		state: fleet.OpPending, journal: map[string]json.RawMessage{}, power: fleet.PowerOn, resets: map[string]int{}, inventory: inv,
		conditions: map[string]fleet.ConditionStatus{}, calledIn: map[int]bool{}, reused: map[int]bool{}, reported: true,
		answers: map[string]func(*world, *command){}, faults: map[string][]error{}, password: "old",
	}
}

// fault takes the next error of a method, nil when there is none.
func (w *world) fault(method string) error {
	w.log = append(w.log, method)
	if q := w.faults[method]; len(q) > 0 {
		w.faults[method] = q[1:]
		return q[0]
	}
	return nil
}

func (w *world) fence() error {
	switch {
	case w.gone:
		return fleet.Errorf(fleet.CodeNotFound, "unknown-operation", "no such operation")
	case w.superseded:
		return fleet.Errorf(fleet.CodeConflict, "superseded", "another operation took its place")
	case !w.state.Live() && !w.parked:
		return fleet.Errorf(fleet.CodeConflict, "superseded", "it ended %s", w.state)
	}
	return nil
}

func (w *world) fenced(fn func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.fence(); err != nil {
		return err
	}
	fn()
	return nil
}

func (w *world) step(name string) *fleet.Step {
	i := slices.IndexFunc(w.steps, func(s fleet.Step) bool { return s.Name == name })
	if i < 0 {
		w.steps = append(w.steps, fleet.Step{Name: name, State: fleet.StepPending})
		i = len(w.steps) - 1
	}
	return &w.steps[i]
}

func (w *world) BeginOperation(_ context.Context, _, _ string) (activities.Work, error) {
	err := w.fenced(func() {
		if w.state == fleet.OpPending {
			w.state = fleet.OpRunning
		}
	})
	if err != nil {
		return activities.Work{}, err
	}
	return w.LoadWork(context.Background(), opID)
}

func (w *world) LoadWork(context.Context, string) (activities.Work, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	work := w.work
	work.Steps, work.EraseOwed, work.Boots = slices.Clone(w.steps), w.eraseOwed, w.boots
	return work, nil
}

func (w *world) PlanSteps(_ context.Context, _ string, names []string) error {
	return w.fenced(func() {
		for _, n := range names {
			w.step(n)
		}
	})
}

func (w *world) StartStep(_ context.Context, _, step string, _ int) (json.RawMessage, error) {
	attempt := 0
	err := w.fenced(func() {
		s := w.step(step)
		s.State = fleet.StepRunning
		s.Attempts++
		attempt = s.Attempts
		w.state, w.waiting = fleet.OpRunning, nil
	})
	if err == nil && w.onStep != nil {
		w.onStep(step, attempt)
	}
	return nil, err
}

func (w *world) Journal(_ context.Context, _, step string) (json.RawMessage, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.journal[step], nil
}

func (w *world) SaveJournal(_ context.Context, _, step string, entry any) error {
	raw, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	return w.fenced(func() { w.journal[step] = raw })
}

func (w *world) NoteStep(_ context.Context, _, step, detail string) error {
	return w.fenced(func() { w.step(step).Detail = detail })
}

func (w *world) EndStep(_ context.Context, _, step string, state fleet.StepState, detail string) error {
	return w.fenced(func() { s := w.step(step); s.State, s.Detail = state, detail })
}

func (w *world) CheckSafePoint(_ context.Context, _, kind string) (p activities.SafePoint, err error) {
	err = w.fenced(func() {
		w.kinds = append(w.kinds, kind)
		p.Go = !w.held
		if w.held {
			p.WaitingFor = &fleet.WaitingFor{Actor: "dev:bob", What: "the node is held"}
		}
	})
	return p, err
}

func (w *world) SetWaiting(_ context.Context, _ string, for_ *fleet.WaitingFor) error {
	return w.fenced(func() {
		w.waiting = for_
		if for_ != nil {
			w.state = fleet.OpWaiting
			w.shown = append(w.shown, *for_)
		} else if w.state == fleet.OpWaiting {
			w.state = fleet.OpRunning
		}
	})
}

func (w *world) SucceedOperation(_ context.Context, _ string, r activities.Result) error {
	return w.fenced(func() { w.state, w.result = fleet.OpSucceeded, &r })
}

func (w *world) SaveEvidence(context.Context, string, []bmc.Exchange) error { return nil }

func (w *world) FailOperation(_ context.Context, _ string, f activities.Failure) error {
	err := w.fenced(func() { w.state, w.failure, w.parked, w.left = fleet.OpFailed, &f, f.Park, f.LeftBehind })
	if err == nil && w.onFail != nil {
		w.onFail()
	}
	return err
}

func (w *world) AbortOperation(_ context.Context, _, cause string, left []string) error {
	return w.fenced(func() { w.state, w.cause, w.left, w.parked = fleet.OpAborted, cause, left, false })
}

func (w *world) RetryOperation(_ context.Context, _, actor string) (refused string, err error) {
	err = w.fenced(func() {
		w.log = append(w.log, "retry by "+actor)
		refused = w.refuse
		if refused == "" && w.parked {
			w.parked, w.state, w.failure = false, fleet.OpPending, nil
		}
	})
	return refused, err
}

func (w *world) RecordFound(_ context.Context, _ string, f bmc.Found, _ string) error {
	if err := w.fault("RecordFound"); err != nil {
		return err
	}
	return w.fenced(func() { w.identity = append(w.identity[:0], f); w.work.Capabilities = f.Capabilities })
}

func (w *world) JoinedHardware(context.Context, string) (fleet.Hardware, error) { return w.joined, nil }

func (w *world) RecordMaybeInUse(_ context.Context, _ string, inUse bool) error {
	return w.fenced(func() { w.maybeInUse = &inUse })
}

func (w *world) RecordInventory(_ context.Context, _ string, inv fleet.Inventory) error {
	return w.fenced(func() { w.work.Inventory = &inv })
}

func (w *world) RecordPower(_ context.Context, _, _ string, _ bmc.PowerState, _ time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fault("RecordPower")
}

func (w *world) CertificateChanged(ctx context.Context, nodeID, _, message string) error {
	return w.SetCondition(ctx, nodeID, fleet.Condition{Type: "BmcTrusted", Status: fleet.ConditionFalse, Reason: "certificate-changed", Message: message})
}

func (w *world) MachineChanged(context.Context, string, fleet.BMCIdentity, string) error { return nil }

func (w *world) SetCondition(_ context.Context, _ string, c fleet.Condition) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conditions[c.Type] = c.Status
	return nil
}

func (w *world) RevokeIdentity(context.Context, string, string) error {
	return w.fenced(func() { w.revoked = 1 })
}

func (w *world) RecordEraseOwed(context.Context, string) error {
	return w.fenced(func() { w.eraseOwed = true })
}

func (w *world) RecordImage(_ context.Context, _ string, img fleet.ImageView, _ bool) error {
	return w.fenced(func() { w.image = &img })
}

func (w *world) RecordErase(_ context.Context, _, _ string, disks []fleet.DiskErase) error {
	return w.fenced(func() {
		for _, d := range disks {
			if !slices.Contains(w.erased, d) {
				w.erased = append(w.erased, d)
			}
		}
	})
}

func (w *world) StoreCredentials(context.Context, string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.fault("StoreCredentials"); err != nil {
		return err
	}
	w.stored, w.staged = 1, false
	return w.fence()
}

func (w *world) StageCredentials(context.Context, string) error {
	return w.fenced(func() { w.staged = true })
}

func (w *world) StagedPassword(context.Context, string) (string, error) { return "new", nil }
