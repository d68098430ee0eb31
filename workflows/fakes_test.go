package workflows_test

import (
	"context"
	"encoding/json"
	"fmt"
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

func (w *world) ArmBoot(_ context.Context, _ string, number int) (b activities.Boot, err error) {
	err = w.fenced(func() {
		w.boots = number
		url := fmt.Sprintf("http://boot/%d/compute.iso", number)
		b = activities.Boot{ID: fmt.Sprint(number), ISOURL: url, HTTPURL: url, Number: number}
	})
	return b, err
}

func (w *world) VoidBoots(context.Context, string) error {
	return w.fenced(func() { w.voided = w.boots })
}

func (w *world) Machine(context.Context, string) (activities.Machine, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.calledIn[w.boots]
	return activities.Machine{CalledIn: in, Reused: w.reused[w.boots], Present: in && w.power == fleet.PowerOn}, nil
}

func (w *world) SendCommand(_ context.Context, _ string, in activities.CommandIn) (id string, err error) {
	err = w.fenced(func() {
		key := fmt.Sprintf("%d/%s", w.boots, in.Key)
		if i := slices.IndexFunc(w.commands, func(c *command) bool { return c.key == key }); i >= 0 {
			id = w.commands[i].ID
			return
		}
		c := &command{key: key, boot: w.boots, in: in}
		c.ID, c.Type, c.State = fmt.Sprintf("cmd_%d", len(w.commands)+1), in.Type, "delivered"
		w.commands = append(w.commands, c)
		id = c.ID
		if answer := w.answers[in.Type]; answer != nil {
			answer(w, c)
		} else {
			succeed(w, c)
		}
	})
	return id, err
}

func (w *world) SendNodeCommand(ctx context.Context, op string, in activities.CommandIn) (string, error) {
	return w.SendCommand(ctx, op, in)
}

func (w *world) JoinFile(context.Context, string) (fleet.JoinFile, error) {
	return fleet.JoinFile{GatewayURL: "https://gateway", CAFingerprint: "sha256:f", Token: "bcdeploy_secret=1"}, nil
}

func (w *world) InSession(context.Context, string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.noAgent, nil
}

// acceptable are facts of a host that passes every check.
func (w *world) acceptable() fleet.AcceptanceFacts {
	off := 0.4
	return fleet.AcceptanceFacts{Inventory: w.inventory, DiskFreeBytes: 1 << 40, ClockOffsetSeconds: &off, Kernel: "6.12.0-amd64", Drivers: map[string]string{"": "nvidia 580.1"}}
}

// succeed is a machine that does what it is told.
func succeed(w *world, c *command) {
	c.State = "succeeded"
	switch c.Type {
	case activities.CommandWriteImage:
		c.Data = json.RawMessage(`{"disk":{"serial":"D1"},"sha256":"` + sum + `","bytes":4096}`)
	case activities.CommandInventory:
		c.Data = json.RawMessage(`{"disks":[{"serial":"D1"},{"serial":"D2"}]}`)
	case activities.CommandAccept:
		raw, err := json.Marshal(w.acceptable())
		if err != nil {
			panic(err)
		}
		c.Data = raw
	case activities.CommandErase:
		c.Data = json.RawMessage(`{"disks":[{"serial":"D1","method":"metadata","result":"done"},{"serial":"D2","method":"metadata","result":"done"}]}`)
	}
}

// say makes a machine that answers a command with a state and a message.
func say(state, message string) func(*world, *command) {
	return func(_ *world, c *command) { c.State, c.Error = state, message }
}

func (w *world) Command(_ context.Context, id string) (activities.Command, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.commands {
		if c.ID == id {
			return c.Command, nil
		}
	}
	return activities.Command{}, fleet.NotFound("command")
}

func (w *world) LastData(_ context.Context, _, kind string) (json.RawMessage, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range slices.Backward(w.commands) {
		if c.Type == kind && c.State == "succeeded" {
			return c.Data, nil
		}
	}
	return nil, nil
}

func (w *world) CancelCommands(context.Context, string) error {
	return w.fenced(func() {
		for _, c := range w.commands {
			if c.State == "delivered" || c.State == "pending" {
				c.State = "cancelled"
			}
		}
	})
}

func (w *world) ImageURL(context.Context, string) (string, error) {
	return "http://images/os.iso?secret=1", nil
}

func (w *world) ReportURL(context.Context, string) (string, error) {
	return "http://boot/report/r1", nil
}

func (w *world) Reported(context.Context, string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reported, nil
}

func (w *world) Open(_ context.Context, _, _ string, change bool) (bmc.Client, func(context.Context), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.fault("Open"); err != nil {
		return nil, nil, err
	}
	if change {
		if err := w.fence(); err != nil {
			return nil, nil, err
		}
	}
	w.sessions = 1
	return fakeBMC{w}, func(context.Context) {}, nil
}

func (w *world) OpenWith(ctx context.Context, _, _ string, which activities.Credentials) (bmc.Client, func(context.Context), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if which == activities.StagedCredentials && w.password != "new" {
		return nil, nil, &bmc.Error{Kind: bmc.KindAuth, Doing: "log in", Cause: "401"}
	}
	return fakeBMC{w}, func(context.Context) {}, w.fault("OpenWith")
}

func (w *world) EndSessions(context.Context, string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.fault("EndSessions"); err != nil {
		return err
	}
	w.sessions = 0
	return nil
}

func (w *world) Exchanges(string) []bmc.Exchange {
	return []bmc.Exchange{{Method: "GET", Path: "/redfish/v1"}}
}
