package worker

import (
	"context"
	"errors"
	"time"

	"github.com/bettercompute/compute/store"
)

// chore is something done again and again beside the workers. Who does it when
// several run is claimed in Postgres by the chore itself, unless it is exclusive.
type chore struct {
	name  string
	every time.Duration
	// exclusive chores are done by one process at a time.
	exclusive bool
	do        func(context.Context) error
}

// chores are the sweeps and the upkeep.
func (w *Worker) chores() []chore {
	ops := &OperationSweep{Store: w.Store, Client: w.Client, Namespace: w.Namespace, TaskQueue: w.TaskQueue, Log: w.Log, Every: w.SweepEvery}
	bmcs := &BMCSweep{Store: w.Store, Gate: w.Gate, Log: w.Log, Every: w.PowerEvery}
	parts := &InventorySweep{Store: w.Store, Gate: w.Gate, Log: w.Log, Every: w.InventoryEvery, RestEvery: 2 * time.Second}
	return []chore{
		{name: "operations", every: min(10*time.Second, w.SweepEvery), do: ops.Round},
		{name: "alarm", every: 15 * time.Second, do: ops.Alarm},
		{name: "bmcs", every: 5 * time.Second, do: bmcs.Round},
		{name: "inventories", every: min(30*time.Second, w.InventoryEvery), do: parts.Round},
		{name: "idle-sessions", every: 30 * time.Second, exclusive: true, do: w.endBMCSessions},
		{name: "holds", every: 5 * time.Second, exclusive: true, do: func(ctx context.Context) error { _, err := w.Store.EndHolds(ctx); return err }},
		{name: "reconcile", every: 2 * time.Second, exclusive: true, do: func(ctx context.Context) error { _, err := w.Store.Reconcile(ctx); return err }},
		{name: "ssh", every: 5 * time.Second, exclusive: true, do: func(ctx context.Context) error { _, err := w.Store.SyncSSH(ctx); return err }},
		{name: "schedules", every: time.Minute, do: w.KeepSchedules},
		{name: "sessions", every: 10 * time.Second, exclusive: true, do: w.loseSessions},
		{name: "identities", every: 10 * time.Second, exclusive: true, do: func(ctx context.Context) error { _, err := w.Store.SettleIdentities(ctx); return err }},
		{name: "capacity", every: 2 * time.Second, exclusive: true, do: w.Store.SweepCapacity},
		{name: "forget", every: time.Hour, exclusive: true, do: w.Store.ForgetOld},
	}
}

// loop does a chore until the context ends. A round that fails is logged, not
// fatal: Postgres or Temporal may be away for a while.
func (w *Worker) loop(c chore) func(context.Context) {
	return func(ctx context.Context) {
		for sleep(ctx, min(c.every, time.Minute)) {
			if c.exclusive {
				claimed, _, err := w.Store.ClaimSweep(ctx, c.name, c.every-c.every/10)
				if err != nil || !claimed {
					w.report(ctx, c, err)
					continue
				}
			}
			w.report(ctx, c, c.do(ctx))
		}
	}
}

// endBMCSessions ends the sessions on BMCs that nobody uses any more.
func (w *Worker) endBMCSessions(ctx context.Context) error {
	_, idle := w.Gate.EndIdle(ctx)
	_, left := w.Gate.EndLeft(ctx)
	return errors.Join(idle, left)
}

// loseSessions marks nodes whose agents fell silent.
func (w *Worker) loseSessions(ctx context.Context) error {
	lost, err := w.Store.LoseSessions(ctx)
	if lost > 0 {
		w.Log.WarnContext(ctx, "agents fell silent", "nodes", lost)
	}
	return err
}

func (w *Worker) report(ctx context.Context, c chore, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	if store.Away(err) {
		w.Log.WarnContext(ctx, "sweep put off: Postgres does not answer", "sweep", c.name)
		return
	}
	w.Log.WarnContext(ctx, "sweep failed", "sweep", c.name, "error", err)
}
