package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"github.com/bettercompute/compute/workflows"
)

// scheduleCatchUp is how far back a run that was missed is made up for.
const scheduleCatchUp = 10 * time.Minute

// KeepSchedules makes the schedules that are missing and mends those that differ,
// as they are after an upgrade.
func (w *Worker) KeepSchedules(ctx context.Context) error {
	for _, s := range workflows.Schedules {
		if err := w.keepSchedule(ctx, s); err != nil {
			return fmt.Errorf("keep the schedule %s: %w", s.ID, err)
		}
	}
	return nil
}

func (w *Worker) keepSchedule(ctx context.Context, s workflows.Schedule) error {
	handle := w.Client.ScheduleClient().GetHandle(ctx, s.ID)
	known, err := handle.Describe(ctx)
	var missing *serviceerror.NotFound
	if errors.As(err, &missing) {
		_, err := w.Client.ScheduleClient().Create(ctx, client.ScheduleOptions{ID: s.ID, Spec: w.scheduleSpec(s), Action: w.scheduleAction(s),
			Overlap: enumspb.SCHEDULE_OVERLAP_POLICY_SKIP, CatchupWindow: scheduleCatchUp,
			Note: "made by compute worker; pause it rather than delete it"})
		var made *serviceerror.WorkflowExecutionAlreadyStarted
		if errors.As(err, &made) {
			return nil // another process was quicker
		}
		return err
	}
	if err != nil {
		return err
	}
	action, ok := known.Schedule.Action.(*client.ScheduleWorkflowAction)
	if ok && action.Workflow == s.Workflow && action.TaskQueue == w.TaskQueue && len(known.Schedule.Spec.Intervals) == 1 && known.Schedule.Spec.Intervals[0].Every == s.Every {
		return nil
	}
	return handle.Update(ctx, client.ScheduleUpdateOptions{DoUpdate: func(in client.ScheduleUpdateInput) (*client.ScheduleUpdate, error) {
		schedule := in.Description.Schedule
		spec := w.scheduleSpec(s)
		schedule.Spec, schedule.Action = &spec, w.scheduleAction(s)
		return &client.ScheduleUpdate{Schedule: &schedule}, nil
	}})
}

func (w *Worker) scheduleSpec(s workflows.Schedule) client.ScheduleSpec {
	return client.ScheduleSpec{Intervals: []client.ScheduleIntervalSpec{{Every: s.Every}}}
}

func (w *Worker) scheduleAction(s workflows.Schedule) *client.ScheduleWorkflowAction {
	return &client.ScheduleWorkflowAction{ID: s.ID, Workflow: s.Workflow, TaskQueue: w.TaskQueue}
}
