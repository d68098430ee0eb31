package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"golang.org/x/sync/errgroup"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// OperationSweep compares the operations that Postgres holds open with what
// Temporal knows of their workflows. It repeats no step of any: at most it asks
// again for a start that was never delivered.
type OperationSweep struct {
	Store     *store.Store
	Client    client.Client
	Namespace string
	// TaskQueue is that of this installation's workflows: those on others are
	// another's. "" takes all for its own.
	TaskQueue string
	Log       *slog.Logger
	// Every is how often an operation is looked at.
	Every time.Duration
}

const (
	sweepBatch  = 200
	sweepAtOnce = 8
	// failingAttempts is how often a workflow task must have failed before it is
	// shown: one failure may be a worker that was killed.
	failingAttempts = 3
)

// The codes of operations that a sweep ends.
const (
	codeClosed  = "workflow-closed"
	codeUnknown = "outcome-unknown"
)

// Round looks at the operations that are due.
func (s *OperationSweep) Round(ctx context.Context) error {
	for {
		list, err := s.Store.ClaimOpenOperations(ctx, s.Every, sweepBatch)
		if err != nil {
			return err
		}
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(sweepAtOnce)
		for _, o := range list {
			g.Go(func() error { return s.look(gctx, o) })
		}
		if err := g.Wait(); err != nil || len(list) < sweepBatch {
			return err
		}
	}
}

func (s *OperationSweep) look(ctx context.Context, o store.OpenOperation) error {
	id := fleet.WorkflowID(o.ID)
	described, err := s.Client.DescribeWorkflow(ctx, id, "")
	var unknown *serviceerror.NotFound
	switch {
	case errors.As(err, &unknown):
		return s.unknown(ctx, o)
	case err != nil:
		return fmt.Errorf("ask Temporal about workflow %s: %w", id, err)
	}
	d := described.RawResponse
	status := d.GetWorkflowExecutionInfo().GetStatus()
	if status != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING && status != enumspb.WORKFLOW_EXECUTION_STATUS_PAUSED {
		epoch, err := store.LoadEpoch(ctx, s.Store.Pool())
		if err != nil || epoch.RecoveryPending {
			return err // what it did may be what the database forgot: compute recover has it in hand
		}
		return s.end(ctx, o, codeClosed, fmt.Sprintf("Temporal closed the workflow (%s) without ending its operation", closedAs(status)))
	}
	what := ""
	if n := d.GetPendingWorkflowTask().GetAttempt(); n > failingAttempts {
		what = fmt.Sprintf("its workflow cannot go on (attempt %d): %s", n, s.taskFailure(ctx, id, d.GetWorkflowExecutionInfo().GetExecution().GetRunId()))
	}
	return s.Store.ShowFailingTask(ctx, o, what)
}

func closedAs(status enumspb.WorkflowExecutionStatus) string {
	words := map[enumspb.WorkflowExecutionStatus]string{
		enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED: "terminated", enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT: "timed out",
		enumspb.WORKFLOW_EXECUTION_STATUS_FAILED: "failed", enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED: "cancelled",
		enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED: "completed",
	}
	if w := words[status]; w != "" {
		return w
	}
	return status.String()
}

// unknown judges an operation whose workflow Temporal does not know. One that
// was never delivered is started, in the present epoch only; of any other the
// outcome is unknown.
func (s *OperationSweep) unknown(ctx context.Context, o store.OpenOperation) error {
	epoch, err := store.LoadEpoch(ctx, s.Store.Pool())
	switch {
	case err != nil:
		return err
	case epoch.RecoveryPending || o.Queued:
		return nil // compute recover, or the dispatcher, has it in hand
	case !o.Delivered && o.Present:
		s.Log.WarnContext(ctx, "sweep asks again for a start that was never delivered", "operation", o.ID)
		return s.Store.RestartLost(ctx, o.ID)
	default:
		return s.end(ctx, o, codeUnknown, "outcome unknown: Temporal does not know the operation's workflow")
	}
}

// end ends an operation, unless it ended by itself after it was listed.
func (s *OperationSweep) end(ctx context.Context, o store.OpenOperation, code, cause string) error {
	ended, err := s.Store.EndLost(ctx, o.ID, code, cause)
	if ended {
		s.Log.WarnContext(ctx, "sweep ended an operation", "operation", o.ID, "node", o.NodeID, "cause", cause)
	}
	return err
}

// taskFailure reads why a workflow's tasks fail from the end of its history.
func (s *OperationSweep) taskFailure(ctx context.Context, id, runID string) string {
	resp, err := s.Client.WorkflowService().GetWorkflowExecutionHistoryReverse(ctx, &workflowservice.GetWorkflowExecutionHistoryReverseRequest{
		Namespace: s.Namespace, Execution: execution(id, runID), MaximumPageSize: 10})
	if err != nil {
		return "see its history in Temporal"
	}
	for _, e := range resp.GetHistory().GetEvents() {
		if f := e.GetWorkflowTaskFailedEventAttributes(); f != nil {
			return firstLine(f.GetFailure().GetMessage())
		}
	}
	return "see its history in Temporal"
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return fleet.Text(line, 300)
}
