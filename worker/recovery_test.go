package worker_test

import (
	"context"
	"testing"
	"time"

	"go.temporal.io/api/workflowservice/v1"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// until runs rounds of the alarm until the epoch is as wanted: what Temporal
// lists lags behind what it knows.
func (b *bundle) until(want func(store.Epoch) bool) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		b.exec(`DELETE FROM sweeps`)
		if err := b.sweep.Alarm(ctx); err != nil {
			b.t.Fatal(err)
		}
		e, err := store.LoadEpoch(ctx, b.pool)
		if err != nil {
			b.t.Fatal(err)
		}
		if want(e) {
			return
		}
		<-tick.C
	}
}

// judgeAll makes what others left in the namespace known and judged, which is no
// disagreement from then on.
func (b *bundle) judgeAll() {
	b.t.Helper()
	if err := b.sweep.Alarm(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.Judged(b.t.Context(), ""); err != nil {
		b.t.Fatal(err)
	}
}

// A failover that lost nothing is a new epoch by itself, once a listing begun
// after it shows no disagreement: rows that were held are delivered then.
func TestFailover(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	op := b.begin()
	b.judgeAll()
	b.exec(`UPDATE cluster_epoch SET timeline = timeline - 1`)
	before, err := b.CheckEpoch(t.Context())
	if err != nil || before.Reason != store.RecoveryFailover {
		t.Fatalf("epoch = %+v (%v)", before, err)
	}
	if n, err := b.Deliver(t.Context(), 10, func(context.Context, store.Dispatch) error { return nil }); err != nil || n != 0 {
		t.Fatalf("delivered %d rows (%v) while a failover is judged", n, err)
	}
	b.round() // neither is anything started or ended meanwhile
	b.until(func(e store.Epoch) bool { return !e.RecoveryPending })
	b.dispatch()
	if _, err := b.client.DescribeWorkflow(t.Context(), fleet.WorkflowID(op), ""); err != nil {
		t.Errorf("the operation that was held was not started: %v", err)
	}
}

// A failover that lost the end of an operation is not over by itself, and the
// sweep makes nothing of the workflow that is closed; after compute recover it
// ends the operation as any whose workflow is gone.
func TestFailoverLostEnd(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	op := b.begin()
	b.dispatch()
	if err := b.client.TerminateWorkflow(t.Context(), fleet.WorkflowID(op), "", "ended where the database forgot it"); err != nil {
		t.Fatal(err)
	}
	b.closedIsListed(op)
	b.judgeAll()
	b.exec(`UPDATE cluster_epoch SET timeline = timeline - 1`)
	b.until(func(e store.Epoch) bool { return e.Reason == store.RecoveryLost })
	b.round()
	if o := b.operation(op); o.State != fleet.OpPending {
		t.Errorf("the sweep made the operation %s while recovery is pending", o.State)
	}
	if done, err := b.Judged(t.Context(), ""); err != nil || !done {
		t.Fatalf("judged: %v, %v", done, err)
	}
	b.round()
	if o := b.operation(op); o.State != fleet.OpFailed || o.Error == nil || o.Error.Code != "workflow-closed" {
		t.Errorf("after the judgement the operation is %s, %+v; want failed, workflow-closed", o.State, o.Error)
	}
}

// closedIsListed waits until Temporal lists a workflow as closed.
func (b *bundle) closedIsListed(op string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*time.Minute)
	defer cancel()
	for {
		n, err := b.client.CountWorkflow(ctx, countClosed(b.namespace, fleet.WorkflowID(op)))
		if err != nil {
			b.t.Fatal(err)
		}
		if n.GetCount() > 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func countClosed(namespace, workflowID string) *workflowservice.CountWorkflowExecutionsRequest {
	return &workflowservice.CountWorkflowExecutionsRequest{Namespace: namespace, Query: "WorkflowId = '" + workflowID + "' AND ExecutionStatus = 'Terminated'"}
}
