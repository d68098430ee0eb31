package workflows_test

import (
	"log/slog"
	"testing"
	"time"

	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/workflows"
)

var sum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func deployInput(more func(*fleet.MetalDeployIn)) fleet.MetalDeployIn {
	in := fleet.MetalDeployIn{Image: fleet.ImageIn{URL: "http://images/os.raw", Checksum: "sha256:" + sum, Format: "raw"}}
	if more != nil {
		more(&in)
	}
	return in
}

// bench runs one workflow over a world in Temporal's test environment, whose
// clock skips to the next timer.
type bench struct {
	*world
	env *testsuite.TestWorkflowEnvironment
}

func newBench(t *testing.T, verb fleet.Verb, input any) *bench {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	b := &bench{world: newWorld(verb, input), env: suite.NewTestWorkflowEnvironment()}
	b.env.SetTestTimeout(30 * time.Second)
	workflows.Register(b.env, &activities.Record{Ops: b.world, Nodes: b.world, Machines: b.world},
		&activities.BMC{Gate: b.world, Ops: b.world, Nodes: b.world, Machines: b.world}, &activities.CleanUp{SSHCerts: noCerts{}})
	return b
}

// run runs the workflow to its end and returns its outcome.
func (b *bench) run(t *testing.T) (workflows.Outcome, error) {
	t.Helper()
	b.env.ExecuteWorkflow(fleet.WorkflowTypes[b.work.Verb], workflows.Input{OperationID: opID})
	if !b.env.IsWorkflowCompleted() {
		t.Fatal("the workflow did not end")
	}
	var out workflows.Outcome
	if err := b.env.GetWorkflowError(); err != nil {
		return out, err
	}
	if err := b.env.GetWorkflowResult(&out); err != nil {
		t.Fatal(err)
	}
	return out, nil
}

// succeeds runs the workflow and fails the test unless it ends well.
func (b *bench) succeeds(t *testing.T) {
	t.Helper()
	out, err := b.run(t)
	if err != nil || out.State != "succeeded" {
		t.Fatalf("outcome %+v, error %v, failure %+v; calls %v", out, err, b.failure, b.log)
	}
	for _, s := range b.steps {
		if s.State != fleet.StepDone && s.State != fleet.StepSkipped {
			t.Errorf("step %s is %s after a good end", s.Name, s.State)
		}
	}
	if b.sessions != 0 {
		t.Error("a BMC session is left")
	}
}

// after sends a signal at a time of the workflow's clock.
func (b *bench) after(d time.Duration, signal string, in any) {
	b.env.RegisterDelayedCallback(func() { b.env.SignalWorkflow(signal, in) }, d)
}

// progress asks the query.
func (b *bench) progress(t *testing.T) workflows.Progress {
	t.Helper()
	v, err := b.env.QueryWorkflow(fleet.QueryProgress)
	if err != nil {
		t.Fatal(err)
	}
	var p workflows.Progress
	if err := v.Get(&p); err != nil {
		t.Fatal(err)
	}
	return p
}

// clean fails the test unless nothing of ours is left on the machine.
func (b *bench) clean(t *testing.T) {
	t.Helper()
	if b.media != "" || (b.override.Target != "" && b.override.Target != "none") {
		t.Errorf("left on the machine: media %q, override %q", b.media, b.override.Target)
	}
	if b.sessions != 0 {
		t.Error("a BMC session is left")
	}
	for _, c := range b.commands {
		if c.State == "delivered" {
			t.Errorf("command %s still runs", c.Type)
		}
	}
}

// converterFrom reads the input of the run that continues.
func converterFrom(e *workflow.ContinueAsNewError, into any) error {
	return converter.GetDefaultDataConverter().FromPayloads(e.Input, into)
}
