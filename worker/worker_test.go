package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.temporal.io/sdk/client"
	sdk "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/localstack/temporaltest"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/storetest"
	"github.com/bettercompute/compute/worker"
	"github.com/bettercompute/compute/workflows"
)

// bundle is a database and a Temporal namespace that a dispatcher and sweeps
// join.
type bundle struct {
	*store.Store
	t         *testing.T
	pool      *pgxpool.Pool
	client    client.Client
	namespace string
	queue     string
	sweep     *worker.OperationSweep
}

func newBundle(t *testing.T) *bundle { return newBundleOn(t, worker.Connection{}) }

func newBundleOn(t *testing.T, conn worker.Connection) *bundle {
	t.Helper()
	address, namespace := temporaltest.Server(t)
	log := slog.New(slog.DiscardHandler)
	conn.Address, conn.Namespace, conn.Log = address, namespace, log
	c, _, err := worker.Connect(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	pool := storetest.New(t)
	b := &bundle{Store: store.New(pool, store.Options{}), t: t, pool: pool, client: c, namespace: namespace, queue: store.NewID("queue")}
	b.sweep = &worker.OperationSweep{Store: b.Store, Client: c, Namespace: namespace, Log: log}
	b.exec(`INSERT INTO tenants (id) VALUES ('acme')`)
	b.exec(`INSERT INTO sites (id, tenant_id, name, spec) VALUES ('site_1', 'acme', 'one', '{"name": "one"}')`)
	return b
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.pool.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

// begin makes a node and a live deploy on it.
func (b *bundle) begin() (operationID string) { return b.beginIn(b.t.Context()) }

func (b *bundle) beginIn(ctx context.Context) (operationID string) {
	b.t.Helper()
	node, op := store.NewID(fleet.KindNode), store.NewID(fleet.KindOperation)
	err := b.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO nodes (id, tenant_id, site_id, provision_state) VALUES ($1, 'acme', 'site_1', 'deploying')`, node); err != nil {
			return err
		}
		return b.InsertOperation(ctx, tx, store.NewOperation{ID: op, NodeID: node, TenantID: "acme", Verb: fleet.VerbDeploy, Lane: store.LaneProvision,
			Input: map[string]any{}, RequestedBy: "dev:owner"})
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.exec(`UPDATE operations SET created_at = now() - interval '1 hour' WHERE id = $1`, op)
	return op
}

// dispatch runs a dispatcher until nothing is left to deliver.
func (b *bundle) dispatch() {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	d := &worker.Dispatcher{Store: b.Store, Client: b.client, Log: slog.New(slog.DiscardHandler), TaskQueue: b.queue}
	done := make(chan struct{})
	go func() { defer close(done); d.Run(ctx) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		_, rows, err := store.DispatchLag(ctx, b.pool)
		if err != nil {
			b.t.Fatal(err)
		}
		if rows == 0 {
			break
		}
		<-tick.C
	}
	cancel()
	<-done
}

func (b *bundle) operation(id string) fleet.Operation {
	b.t.Helper()
	o, err := store.LoadOperation(b.t.Context(), b.pool, id)
	if err != nil {
		b.t.Fatal(err)
	}
	return o
}

func (b *bundle) round() {
	b.t.Helper()
	b.exec(`UPDATE operations SET swept_at = NULL`)
	if err := b.sweep.Round(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

// A start that is delivered twice begins one run, named and tagged for the
// operation; signals carry their row's id, and one to a closed workflow is
// dropped.
func TestDispatcher(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	op := b.begin()
	b.dispatch()
	first, err := b.client.DescribeWorkflow(t.Context(), fleet.WorkflowID(op), "")
	if err != nil {
		t.Fatal(err)
	}
	info := first.RawResponse.GetWorkflowExecutionInfo()
	if info.GetType().GetName() != "Deploy" || info.GetSearchAttributes().GetIndexedFields()["NodeId"] == nil {
		t.Errorf("started %s with %v, want Deploy tagged with its node", info.GetType().GetName(), info.GetSearchAttributes())
	}
	add := func(rows ...store.DispatchIn) {
		t.Helper()
		if err := b.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { return store.AddDispatch(ctx, tx, rows...) }); err != nil {
			t.Fatal(err)
		}
	}
	// As after a dispatcher that died between Temporal's answer and its commit.
	add(store.DispatchIn{Kind: store.DispatchStart, OperationID: op, WorkflowType: "Deploy"},
		store.DispatchIn{Kind: store.DispatchSignal, OperationID: op, Signal: fleet.SignalRetry, Payload: map[string]string{"actor": "dev:owner"}})
	b.dispatch()
	again, err := b.client.DescribeWorkflow(t.Context(), fleet.WorkflowID(op), "")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := again.RawResponse.GetWorkflowExecutionInfo().GetExecution().GetRunId(), info.GetExecution().GetRunId(); got != want {
		t.Errorf("a repeated start made run %s beside %s", got, want)
	}
	got := b.runEcho(op)
	if got.Actor != "dev:owner" || got.DispatchID == 0 {
		t.Errorf("signal input = %+v, want the actor and the row's id", got)
	}
	add(store.DispatchIn{Kind: store.DispatchSignal, OperationID: op, Signal: fleet.SignalWake})
	b.dispatch() // hangs if the row is not dropped
}

// runEcho serves the workflow with one that returns its retry signal's input.
func (b *bundle) runEcho(op string) workflows.SignalInput {
	b.t.Helper()
	w := sdk.New(b.client, b.queue, sdk.Options{})
	w.RegisterWorkflowWithOptions(func(ctx workflow.Context, _ workflows.Input) (workflows.SignalInput, error) {
		var in workflows.SignalInput
		workflow.GetSignalChannel(ctx, fleet.SignalRetry).Receive(ctx, &in)
		return in, nil
	}, workflow.RegisterOptions{Name: "Deploy"})
	if err := w.Start(); err != nil {
		b.t.Fatal(err)
	}
	defer w.Stop()
	var in workflows.SignalInput
	if err := b.client.GetWorkflow(b.t.Context(), fleet.WorkflowID(op), "").Get(b.t.Context(), &in); err != nil {
		b.t.Fatal(err)
	}
	return in
}

// The sweep leaves a running workflow alone and ends the operation of one that
// Temporal closed, with that as the cause and nothing parked.
func TestSweepClosed(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	op := b.begin()
	b.dispatch()
	b.round()
	if o := b.operation(op); o.State != fleet.OpPending {
		t.Fatalf("the operation of a running workflow is %s after the sweep", o.State)
	}
	if err := b.client.TerminateWorkflow(t.Context(), fleet.WorkflowID(op), "", "by hand"); err != nil {
		t.Fatal(err)
	}
	b.round()
	o := b.operation(op)
	if o.State != fleet.OpFailed || o.Error == nil || o.Error.Code != "workflow-closed" || o.EndedAt == nil {
		t.Errorf("operation = %s, error %+v; want failed, workflow-closed, ended", o.State, o.Error)
	}
	if n, err := store.LoadNode(t.Context(), b.pool, o.NodeID); err != nil || n.ProvisionState != fleet.Failed || n.Operations != nil {
		t.Errorf("node = %+v (%v), want failed with nothing parked", n, err)
	}
}

// An operation that was delivered and that Temporal does not know ends with its
// outcome unknown; one that never was is started.
func TestSweepUnknown(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	delivered, never := b.begin(), b.begin()
	b.exec(`DELETE FROM dispatch`)
	b.exec(`UPDATE operations SET delivered_at = now() WHERE id = $1`, delivered)
	b.round()
	if o := b.operation(delivered); o.State != fleet.OpFailed || o.Error == nil || o.Error.Code != "outcome-unknown" {
		t.Errorf("operation = %s, error %+v; want failed, outcome-unknown", o.State, o.Error)
	}
	b.dispatch()
	if _, err := b.client.DescribeWorkflow(t.Context(), fleet.WorkflowID(never), ""); err != nil {
		t.Errorf("the operation that was never delivered was not started: %v", err)
	}
	if o := b.operation(never); o.State != fleet.OpPending {
		t.Errorf("the operation that was never delivered is %s", o.State)
	}
}

// A workflow of an operation that Postgres forgot raises the alarm: destructive
// verbs are refused from then on.
func TestAlarm(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	op := b.begin()
	b.dispatch()
	b.exec(`UPDATE nodes SET provision_op = NULL`)
	b.exec(`DELETE FROM operations WHERE id = $1`, op)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for { // visibility lags
		b.exec(`DELETE FROM sweeps`)
		if err := b.sweep.Alarm(ctx); err != nil {
			t.Fatal(err)
		}
		d, err := b.LoadDisagreements(ctx)
		if err != nil {
			t.Fatal(err)
		}
		known := false
		for _, w := range d.Unknown {
			known = known || w.WorkflowID == fleet.WorkflowID(op) && w.Type == "Deploy" && w.NodeID != ""
		}
		if known {
			break
		}
	}
	if err := store.RefuseWhileRecovering(ctx, b.pool); fleet.ReasonOf(err) != "recovery-pending" {
		t.Errorf("err = %v, want recovery-pending", err)
	}
}

// A workflow whose tasks fail is shown on its operation with why.
func TestSweepFailingTask(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	op := b.begin()
	b.dispatch()
	w := sdk.New(b.client, b.queue, sdk.Options{})
	w.RegisterWorkflowWithOptions(func(workflow.Context, workflows.Input) error { panic("cannot replay") }, workflow.RegisterOptions{Name: "Deploy"})
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		b.round()
		if f := b.operation(op).WaitingFor; f != nil {
			if f.Actor != "worker" || f.What == "" {
				t.Errorf("waitingFor = %+v, want the worker and why", f)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(fmt.Errorf("the failing tasks of %s were never shown", op))
		}
	}
}
