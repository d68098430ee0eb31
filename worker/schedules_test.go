package worker_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"go.temporal.io/sdk/client"
	sdk "go.temporal.io/sdk/worker"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/worker"
	"github.com/bettercompute/compute/workflows"
)

// The records of SSH certificates are removed by an hourly schedule once they
// have been kept for a day after the end; a schedule that differs is mended.
func TestSSHCertsCleanUp(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	s := workflows.Schedules[0]
	handle := b.client.ScheduleClient().GetHandle(t.Context(), s.ID)
	t.Cleanup(func() { // the namespace is used by others after
		if err := handle.Delete(context.Background()); err != nil {
			t.Error(err)
		}
	})
	tw := sdk.New(b.client, b.queue, sdk.Options{DisableRegistrationAliasing: true})
	workflows.Register(tw, &activities.Record{}, &activities.BMC{}, &activities.CleanUp{SSHCerts: b.Store})
	if err := tw.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tw.Stop)
	log := slog.New(slog.DiscardHandler)
	old := &worker.Worker{Store: b.Store, Client: b.client, Log: log, TaskQueue: "of an older release"}
	now := &worker.Worker{Store: b.Store, Client: b.client, Log: log, TaskQueue: b.queue}
	for _, w := range []*worker.Worker{old, now, now} {
		if err := w.KeepSchedules(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	d, err := handle.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	action, ok := d.Schedule.Action.(*client.ScheduleWorkflowAction)
	if !ok || action.TaskQueue != b.queue || action.Workflow != s.Workflow || d.Schedule.Spec.Intervals[0].Every != time.Hour {
		t.Errorf("schedule %+v, action %+v", d.Schedule.Spec, action)
	}
	b.exec(`INSERT INTO nodes (id, tenant_id, site_id, provision_state) VALUES ('node_x', 'acme', 'site_1', 'adopted')`)
	for serial, end := range map[int]string{1: "- interval '25 hours'", 2: "- interval '23 hours'", 3: "+ interval '1 hour'"} {
		b.exec(`INSERT INTO ssh_certs (serial, node_id, tenant_id, principal, issued_by, key_hash, valid_after, valid_before)
			VALUES ($1, 'node_x', 'acme', 'root@node_x', 'dev:oncall', 'h', now() - interval '26 hours', now() `+end+`)`, serial)
	}
	if err := handle.Trigger(t.Context(), client.ScheduleTriggerOptions{}); err != nil {
		t.Fatal(err)
	}
	var left []int
	tick, late := time.NewTicker(50*time.Millisecond), time.Now().Add(time.Minute)
	defer tick.Stop()
	for left = []int{1, 2, 3}; len(left) == 3 && time.Now().Before(late); <-tick.C {
		if err := b.pool.QueryRow(t.Context(), `SELECT array(SELECT serial::int FROM ssh_certs ORDER BY serial)`).Scan(&left); err != nil {
			t.Fatal(err)
		}
	}
	if len(left) != 2 || left[0] != 2 || left[1] != 3 {
		t.Errorf("left are %v, want 2 and 3", left)
	}
}
