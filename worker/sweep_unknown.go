package worker

import (
	"context"
	"fmt"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/converter"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

func execution(id, runID string) *commonpb.WorkflowExecution {
	return &commonpb.WorkflowExecution{WorkflowId: id, RunId: runID}
}

const (
	// listEvery is how often Temporal's workflows are listed; each round
	// overlaps the last by listOverlap, since visibility lags.
	listEvery   = time.Minute
	listOverlap = 10 * time.Minute
	listPage    = 500
)

// Alarm lists Temporal's workflows of late, closed ones too, and looks for ones
// that Postgres does not know: then the database was restored, and destructive
// verbs are refused until compute recover. A failover ends its own alarm with a
// listing of all that shows none.
func (s *OperationSweep) Alarm(ctx context.Context) error {
	epoch, err := s.Store.CheckEpoch(ctx)
	if err != nil {
		return err
	}
	claimed, upto, err := s.Store.ClaimSweep(ctx, "workflows", listEvery)
	if err != nil || !claimed {
		return err
	}
	began := time.Now()
	failover := epoch.RecoveryPending && epoch.Reason == store.RecoveryFailover
	query := ""
	if !epoch.RecoveryPending && !upto.IsZero() {
		since := upto.Add(-listOverlap).UTC().Format(time.RFC3339)
		query = fmt.Sprintf("StartTime >= '%s' OR CloseTime >= '%s'", since, since)
	}
	found, err := s.list(ctx, query, failover)
	if err != nil {
		return err
	}
	if failover && found == (listing{}) {
		if err := s.Store.EndFailover(ctx, epoch.Number); err != nil {
			return err
		}
		s.Log.InfoContext(ctx, "failover: Postgres and Temporal agree", "epoch", epoch.Number)
	}
	return s.Store.SweptUpTo(ctx, "workflows", began)
}

// listing counts disagreements: workflows that Postgres does not know, and
// closed ones whose operation it shows live.
type listing struct{ unknown, closedLive int }

func (s *OperationSweep) list(ctx context.Context, query string, failover bool) (listing, error) {
	var sum listing
	var token []byte
	for {
		resp, err := s.Client.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{Namespace: s.Namespace, PageSize: listPage,
			NextPageToken: token, Query: query})
		if err != nil {
			return sum, fmt.Errorf("list Temporal's workflows: %w", err)
		}
		page, err := s.compare(ctx, resp.GetExecutions(), failover)
		if err != nil {
			return sum, err
		}
		sum.unknown += page.unknown
		sum.closedLive += page.closedLive
		if token = resp.GetNextPageToken(); len(token) == 0 {
			return sum, nil
		}
	}
}

// compare looks a page of workflows up in Postgres and raises the alarm for
// those it does not know, and after a failover for those whose end Postgres
// lost.
func (s *OperationSweep) compare(ctx context.Context, page []*workflowpb.WorkflowExecutionInfo, failover bool) (listing, error) {
	var sum listing
	var ids []string
	infos := map[string]*workflowpb.WorkflowExecutionInfo{}
	for _, e := range page {
		if s.TaskQueue != "" && e.GetTaskQueue() != s.TaskQueue {
			continue // another installation's, in the same namespace
		}
		if op, ours := fleet.OperationOfWorkflow(e.GetExecution().GetWorkflowId()); ours {
			ids = append(ids, op)
			infos[op] = e
		}
	}
	known, err := s.Store.OperationsKnown(ctx, ids)
	if err != nil {
		return sum, err
	}
	for op, info := range infos {
		live, there := known[op]
		open := info.GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING
		switch {
		case there && live && !open && info.GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW:
			sum.closedLive++
			if failover {
				if err := s.Store.RaiseLost(ctx, op); err != nil {
					return sum, err
				}
				s.Log.ErrorContext(ctx, "the failover lost the end of an operation: run compute recover", "operation", op)
			}
		case !there:
			alarm, err := s.Store.RaiseAlarm(ctx, store.UnknownWorkflow{WorkflowID: info.GetExecution().GetWorkflowId(), Type: info.GetType().GetName(),
				NodeID: nodeOf(info), Open: open})
			if err != nil {
				return sum, err
			}
			if alarm != store.AlarmJudged {
				sum.unknown++
			}
			if alarm == store.AlarmRaised {
				s.Log.ErrorContext(ctx, "Temporal knows a workflow that Postgres does not: run compute recover", "workflow", info.GetExecution().GetWorkflowId())
			}
		}
	}
	return sum, nil
}

// nodeOf reads the node that a workflow was started for, "" when it does not
// say.
func nodeOf(info *workflowpb.WorkflowExecutionInfo) string {
	var id string
	if p := info.GetSearchAttributes().GetIndexedFields()["NodeId"]; p != nil {
		if converter.GetDefaultDataConverter().FromPayload(p, &id) != nil {
			return ""
		}
	}
	return id
}
