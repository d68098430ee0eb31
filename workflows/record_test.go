package workflows_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/temporalproto"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/localstack"
	"github.com/bettercompute/compute/workflows"
)

var recording = flag.Bool("record", false, "record histories against a real server; what is there is never overwritten")

// release names the histories of the workflow code as it is now. It is raised
// when a released version changes what runs record.
const release = "v1"

// recordings are the runs whose histories are replayed: each workflow's good
// end, and the ways an operation waits.
var recordings = []struct {
	name   string
	verb   fleet.Verb
	input  any
	set    func(w *world)
	signal string // sent once the operation failed, or at a step
	at     string
}{
	{name: "Enroll", verb: fleet.VerbEnroll, input: fleet.MetalEnrollIn{}},
	{name: "Inspect", verb: fleet.VerbInspect, input: fleet.MetalInspectIn{}},
	{name: "Inspect-both", verb: fleet.VerbInspect, input: fleet.MetalInspectIn{Mode: "both"}},
	{name: "Inspect-retried", verb: fleet.VerbInspect, input: fleet.MetalInspectIn{}, signal: fleet.SignalRetry, set: refuse("Inventory")},
	{name: "Commission", verb: fleet.VerbCommission, input: fleet.MetalCommissionIn{}},
	{name: "Commission-tests", verb: fleet.VerbCommission, input: fleet.MetalCommissionIn{Tests: []string{"memory"}}},
	{name: "Deploy", verb: fleet.VerbDeploy, input: deployInput(nil)},
	{name: "Deploy-session", verb: fleet.VerbDeploy, input: deployInput(func(in *fleet.MetalDeployIn) { in.Expect = "session" }), set: func(w *world) {
		w.work.Site.Boot = &fleet.BootSpec{InstallAgent: true}
	}},
	{name: "Deploy-iso", verb: fleet.VerbDeploy, input: deployInput(func(in *fleet.MetalDeployIn) { in.Image.Format = "iso" })},
	{name: "Deploy-retried", verb: fleet.VerbDeploy, input: deployInput(nil), signal: fleet.SignalRetry, set: refuse("SetPower on")},
	{name: "Deploy-aborted", verb: fleet.VerbDeploy, input: deployInput(nil), signal: fleet.SignalAbort, at: fleet.StepAwaitCallIn,
		set: func(w *world) { w.deaf = true }},
	{name: "Deploy-superseded", verb: fleet.VerbDeploy, input: deployInput(nil), signal: fleet.SignalEnd, at: fleet.StepAwaitCallIn,
		set: func(w *world) { w.deaf = true }},
	{name: "Rescue", verb: fleet.VerbRescue, input: fleet.MetalRescueIn{SSHKeys: []string{"ssh-ed25519 AAAA"}}},
	{name: "Unrescue", verb: fleet.VerbUnrescue, input: fleet.MetalVerbIn{}},
	{name: "Release", verb: fleet.VerbRelease, input: fleet.MetalReleaseIn{RotateCredentials: true}, set: func(w *world) { w.work.Erase = fleet.EraseMetadata }},
	{name: "Retire", verb: fleet.VerbRetire, input: fleet.MetalRetireIn{}, set: func(w *world) {
		w.work.Erase, w.work.Capabilities.SecureErase = fleet.EraseFull, true
	}},
	{name: "DrainNode", verb: fleet.VerbDrain, input: fleet.NodeChangeIn{}},
	{name: "DrainNode-woken", verb: fleet.VerbDrain, input: fleet.NodeChangeIn{}, signal: fleet.SignalWake,
		set: func(w *world) { w.held = true }},
	{name: "Power", verb: fleet.VerbPower, input: fleet.MetalPowerIn{Action: "cycle"}},
	{name: "Manage", verb: fleet.VerbManage, input: fleet.MetalManageIn{}, set: func(w *world) { w.joined = fleet.Hardware{UUID: machineUUID} }},
	{name: "Adopt", verb: fleet.VerbAdopt, input: struct{}{}},
	{name: "Adopt-superseded", verb: fleet.VerbAdopt, input: struct{}{}, signal: fleet.SignalEnd, at: fleet.StepAwaitSession,
		set: func(w *world) { w.noAgent = true }},
	{name: "SetCredentials", verb: fleet.VerbSetCredentials, input: fleet.MetalSetCredentialsIn{Username: "admin"}},
}

func refuse(method string) func(*world) {
	return func(w *world) {
		w.faults[method] = []error{&bmc.Error{Kind: bmc.KindRefused, Doing: "act", Cause: "not now"}}
	}
}

// TestMain records instead of testing when asked to (make histories).
func TestMain(m *testing.M) {
	flag.Parse()
	if !*recording {
		os.Exit(m.Run())
	}
	if err := recordAll(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func recordAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	address, err := localstack.SharedTemporal(ctx)
	if err != nil {
		return err
	}
	namespace, release, err := localstack.TakeNamespace()
	if err != nil {
		return err
	}
	defer release()
	c, err := client.DialContext(ctx, client.Options{HostPort: address, Namespace: namespace, Identity: "recorder",
		Logger: log.NewStructuredLogger(slog.New(slog.DiscardHandler))})
	if err != nil {
		return fmt.Errorf("dial Temporal at %s: %w", address, err)
	}
	defer c.Close()
	for i := range recordings {
		if err := recordOne(ctx, c, i); err != nil {
			return fmt.Errorf("record %s: %w", recordings[i].name, err)
		}
	}
	for _, s := range workflows.Schedules {
		if err := recordSchedule(ctx, c, s); err != nil {
			return fmt.Errorf("record %s: %w", s.Workflow, err)
		}
	}
	return nil
}

// noCerts are the records of SSH certificates, of which none is old.
type noCerts struct{}

func (noCerts) ForgetSSHCerts(context.Context) (int, error) { return 0, nil }

// recordSchedule records one run of a schedule's workflow.
func recordSchedule(ctx context.Context, c client.Client, s workflows.Schedule) error {
	if _, err := os.Stat(historyFile(s.Workflow)); err == nil {
		return nil
	}
	wk := worker.New(c, s.ID, worker.Options{DisableRegistrationAliasing: true})
	workflows.Register(wk, &activities.Record{}, &activities.BMC{}, &activities.CleanUp{SSHCerts: noCerts{}})
	if err := wk.Start(); err != nil {
		return err
	}
	defer wk.Stop()
	run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: s.ID, TaskQueue: s.ID}, s.Workflow)
	if err != nil {
		return err
	}
	if err := run.Get(ctx, nil); err != nil {
		return err
	}
	return saveHistory(ctx, c, run, historyFile(s.Workflow))
}

func historyFile(name string) string {
	return filepath.Join("testdata", "histories", name+"."+release+".json")
}

func recordOne(ctx context.Context, c client.Client, i int) error {
	r := recordings[i]
	if _, err := os.Stat(historyFile(r.name)); err == nil {
		return nil // a recorded history is what a released version did
	}
	w := newWorld(r.verb, r.input)
	if r.set != nil {
		r.set(w)
	}
	queue := strings.ToLower(r.name)
	id := fleet.WorkflowID(opID + "-" + queue)
	signal := func() {
		if err := c.SignalWorkflow(ctx, id, "", r.signal, workflows.SignalInput{DispatchID: 1}); err != nil {
			fmt.Fprintln(os.Stderr, "signal:", err)
		}
	}
	switch {
	case r.at != "":
		w.onStep = func(step string, _ int) {
			if step == r.at {
				signal()
			}
		}
	case r.signal == fleet.SignalWake:
		w.onHeld = func() {
			w.release()
			signal()
		}
	case r.signal != "":
		w.onFail = signal
	}
	wk := worker.New(c, queue, worker.Options{DisableRegistrationAliasing: true})
	workflows.Register(wk, &activities.Record{Ops: w, Nodes: w, Machines: w}, &activities.BMC{Gate: w, Ops: w, Nodes: w, Machines: w}, &activities.CleanUp{SSHCerts: noCerts{}})
	if err := wk.Start(); err != nil {
		return err
	}
	defer wk.Stop()
	run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: id, TaskQueue: queue}, fleet.WorkflowTypes[r.verb],
		workflows.Input{OperationID: opID})
	if err != nil {
		return err
	}
	if err := run.Get(ctx, nil); err != nil {
		return err
	}
	return saveHistory(ctx, c, run, historyFile(r.name))
}

func saveHistory(ctx context.Context, c client.Client, run client.WorkflowRun, file string) error {
	var h historypb.History
	it := c.GetWorkflowHistory(ctx, run.GetID(), run.GetRunID(), false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for it.HasNext() {
		e, err := it.Next()
		if err != nil {
			return err
		}
		// The names of sticky queues are of the machine that recorded.
		if q := e.GetWorkflowTaskScheduledEventAttributes().GetTaskQueue(); q.GetKind() == enumspb.TASK_QUEUE_KIND_STICKY {
			q.Name = "sticky"
		}
		h.Events = append(h.Events, e)
	}
	b, err := temporalproto.CustomJSONMarshalOptions{Indent: " "}.Marshal(&h)
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}
