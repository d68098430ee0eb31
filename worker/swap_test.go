package worker_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/gate"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/worker"
)

// runBuild runs a worker of a build, made the current one, until it is stopped.
func (b *bundle) runBuild(build string) (stop func()) {
	b.t.Helper()
	log := slog.New(slog.DiscardHandler)
	w := &worker.Worker{Store: b.Store, Client: b.client, Namespace: b.namespace, Log: log, Process: build, BuildID: build, MakeCurrent: true,
		TaskQueue: b.queue, PowerEvery: time.Hour, InventoryEvery: time.Hour, SweepEvery: time.Hour,
		Gate: &gate.Gate{Store: b.Store, Holder: build, Log: log, Waits: bmc.Waits{Request: time.Minute, Busy: time.Second},
			OpenBMC: func(context.Context, bmc.Target, bmc.Options) (bmc.Client, error) {
				return nil, errors.New("no BMC in this test")
			}}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			b.t.Errorf("worker of build %s: %v", build, err)
		}
	}
	return stop
}

// await polls an operation until it is as wanted.
func (b *bundle) await(op string, want func(fleet.Operation) bool) fleet.Operation {
	b.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * time.Minute); ; <-tick.C {
		o := b.operation(op)
		if want(o) {
			return o
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("operation %s stayed %s: %+v", op, o.State, o.Error)
		}
	}
}

// currentIs waits until tasks go to a build.
func (b *bundle) currentIs(build string) {
	b.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * time.Minute); ; <-tick.C {
		d, err := b.client.WorkerDeploymentClient().GetHandle(worker.Deployment).Describe(b.t.Context(), client.WorkerDeploymentDescribeOptions{})
		if err == nil && d.Info.RoutingConfig.CurrentVersion != nil && d.Info.RoutingConfig.CurrentVersion.BuildID == build {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("build %s did not become the current one: %v", build, err)
		}
	}
}

// An operation that is under way when a new version of the workers is made the
// current one goes on there and ends well, also while the old ones still run:
// they get none of its tasks.
func TestWorkerSwap(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	stopOld := b.runBuild("old-" + b.queue)
	b.currentIs("old-" + b.queue)
	op := b.begin() // its machine has no BMC: it fails and parks
	b.await(op, func(o fleet.Operation) bool { return o.State == fleet.OpFailed })
	stopNew := b.runBuild("new-" + b.queue)
	b.currentIs("new-" + b.queue)
	err := b.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		return store.AddDispatch(ctx, tx, store.DispatchIn{Kind: store.DispatchSignal, OperationID: op, Signal: fleet.SignalAbort, Payload: map[string]string{"actor": "dev:owner"}})
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Notify()
	b.await(op, func(o fleet.Operation) bool { return o.State == fleet.OpAborted })
	if err := b.client.GetWorkflow(t.Context(), fleet.WorkflowID(op), "").Get(t.Context(), nil); err != nil {
		t.Errorf("the workflow ended badly: %v", err)
	}
	stopNew()
	stopOld()
	last := ""
	history := b.client.GetWorkflowHistory(t.Context(), fleet.WorkflowID(op), "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for history.HasNext() {
		e, err := history.Next()
		if err != nil {
			t.Fatal(err)
		}
		if a := e.GetWorkflowTaskCompletedEventAttributes(); a != nil {
			last = a.GetDeploymentVersion().GetBuildId()
		}
		if a := e.GetWorkflowTaskFailedEventAttributes(); a != nil {
			t.Errorf("a workflow task failed: %s", a.GetFailure().GetMessage())
		}
	}
	if last != "new-"+b.queue {
		t.Errorf("the last task was done by build %q, want the new one", last)
	}
}
