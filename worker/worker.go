package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.temporal.io/sdk/client"
	sdk "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/gate"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/workflows"
)

var (
	_ activities.Operations = (*store.Store)(nil)
	_ activities.Nodes      = (*store.Store)(nil)
	_ activities.Machines   = (*store.Store)(nil)
	_ activities.SSHCerts   = (*store.Store)(nil)
	_ activities.Gate       = (*gate.Gate)(nil)
)

// Deployment is the name of our workers in Temporal's worker versioning.
const Deployment = "better-compute"

// Worker is one process of workers, dispatcher and sweeps.
type Worker struct {
	Store     *store.Store
	Client    client.Client
	Namespace string
	Gate      *gate.Gate
	Log       *slog.Logger
	// State is told of what the worker waits for; nil is one of Log.
	State *State
	// Process names this process in heartbeats.
	Process string
	// BuildID is the version of the workflows' code; "" runs unversioned.
	BuildID string
	// MakeCurrent makes new tasks go to this version.
	MakeCurrent bool
	// TaskQueue is workflows.TaskQueue in production.
	TaskQueue string
	// PowerEvery is the spacing of looks at a BMC at rest.
	PowerEvery time.Duration
	// InventoryEvery is the spacing of looks at the hardware of a machine in use.
	InventoryEvery time.Duration
	// SweepEvery is how often an open operation is compared with Temporal.
	SweepEvery time.Duration
}

// stopWithin is how long activities have to give back leases when the process
// stops.
const stopWithin = 20 * time.Second

// Run works until the context ends or Temporal refuses the worker. A Temporal
// that does not answer is waited for.
func (w *Worker) Run(ctx context.Context) error {
	if w.State == nil {
		w.State = &State{Log: w.Log}
	}
	fatal := make(chan error, 1)
	opts := sdk.Options{
		WorkerStopTimeout: stopWithin, DisableRegistrationAliasing: true,
		MaxConcurrentActivityExecutionSize: 1000, MaxConcurrentLocalActivityExecutionSize: 200,
		OnFatalError: func(err error) { fatal <- err },
	}
	if w.BuildID != "" {
		opts.DeploymentOptions = sdk.DeploymentOptions{UseVersioning: true, DefaultVersioningBehavior: workflow.VersioningBehaviorAutoUpgrade,
			Version: sdk.WorkerDeploymentVersion{DeploymentName: Deployment, BuildID: w.BuildID}}
	}
	tw, err := w.start(ctx, opts)
	if err != nil {
		return err
	}
	if w.MakeCurrent && w.BuildID != "" {
		if err := w.makeCurrent(ctx); err != nil {
			tw.Stop()
			return err
		}
	}
	w.State.works(w.check)
	w.Log.InfoContext(ctx, "worker runs", "taskQueue", w.TaskQueue, "build", w.BuildID)
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for _, run := range w.loops() {
		wg.Go(func() { run(inner) })
	}
	select {
	case <-ctx.Done():
	case err = <-fatal:
		err = fmt.Errorf("the Temporal worker ended: %w", err)
	}
	cancel()
	tw.Stop()
	wg.Wait()
	w.endSessions(ctx)
	return err
}

// start starts the SDK's worker, a new one at each attempt: one whose start
// failed is of no more use.
func (w *Worker) start(ctx context.Context, opts sdk.Options) (sdk.Worker, error) {
	var tw sdk.Worker
	err := insist(ctx, w.State, func(context.Context) error {
		tw = sdk.New(w.Client, w.TaskQueue, opts)
		workflows.Register(tw, &activities.Record{Ops: w.Store, Nodes: w.Store, Machines: w.Store},
			&activities.BMC{Gate: w.Gate, Ops: w.Store, Nodes: w.Store, Machines: w.Store}, &activities.CleanUp{SSHCerts: w.Store})
		return tw.Start() //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return nil, fmt.Errorf("start the Temporal worker: %w", err)
	}
	return tw, nil
}

// check says in words for a person what the worker needs and does not answer.
func (w *Worker) check(ctx context.Context) (string, error) {
	if _, err := store.SchemaKnown(ctx, w.Store.Pool()); err != nil {
		return "Postgres does not answer", err //nolint:wrapcheck // logged beside the words
	}
	if _, err := w.Client.CheckHealth(ctx, &client.CheckHealthRequest{}); err != nil {
		return "Temporal does not answer", err //nolint:wrapcheck // logged beside the words
	}
	return "", nil
}

// loops are what runs beside the workers.
func (w *Worker) loops() []func(context.Context) {
	d := &Dispatcher{Store: w.Store, Client: w.Client, Log: w.Log, TaskQueue: w.TaskQueue}
	loops := []func(context.Context){d.Run, w.beat}
	for _, c := range w.chores() {
		loops = append(loops, w.loop(c))
	}
	return loops
}

// makeCurrent makes new workflow tasks go to this build. The server knows a
// version only once its workers have polled.
func (w *Worker) makeCurrent(ctx context.Context) error {
	err := insist(ctx, w.State, func(ctx context.Context) error {
		_, err := w.Client.WorkerDeploymentClient().GetHandle(Deployment).
			SetCurrentVersion(ctx, client.WorkerDeploymentSetCurrentVersionOptions{BuildID: w.BuildID, IgnoreMissingTaskQueues: true})
		return err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return fmt.Errorf("make build %s the current one: %w", w.BuildID, err)
	}
	return nil
}

// How long Temporal may refuse what it is asked at the start of a worker, how
// long it may take to answer, and the pause between two asks.
const (
	refusedFor  = time.Minute
	answerIn    = 10 * time.Second
	insistEvery = 200 * time.Millisecond
)

// insist asks until it is granted, or Temporal refused it for a while. A Temporal
// that does not answer and a namespace that is not there yet are waited for.
func insist(ctx context.Context, state *State, ask func(ctx context.Context) error) error {
	for until := time.Now().Add(refusedFor); ; {
		once, cancel := context.WithTimeout(ctx, answerIn)
		err := ask(once)
		cancel()
		pause := insistEvery
		switch why := waitReason(err); {
		case err == nil:
			return nil
		case why != "":
			state.Waits(ctx, why, err)
			until, pause = time.Now().Add(refusedFor), reconnectEvery
		case time.Now().After(until):
			return err
		}
		if !sleep(ctx, pause) {
			return errors.Join(err, ctx.Err())
		}
	}
}

// beatEvery is the spacing of heartbeat rows.
const beatEvery = 5 * time.Second

// beat tells the API, through Postgres, that this process delivers and whether
// Temporal answers it.
func (w *Worker) beat(ctx context.Context) {
	for {
		state := "ok"
		check, cancel := context.WithTimeout(ctx, beatEvery)
		if _, err := w.Client.CheckHealth(check, &client.CheckHealthRequest{}); err != nil {
			state = "away"
		}
		cancel()
		if err := w.Store.Beat(ctx, w.Process, store.BeatDispatcher, map[string]any{"temporal": state, "build": w.BuildID}); err != nil && ctx.Err() == nil {
			w.Log.WarnContext(ctx, "write the heartbeat", "error", err)
		}
		if !sleep(ctx, beatEvery) {
			return
		}
	}
}

// endSessions logs out of the BMCs that this process spoke to last.
func (w *Worker) endSessions(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWithin/2)
	defer cancel()
	if err := w.Gate.EndAll(ctx); err != nil {
		w.Log.WarnContext(ctx, "log out of BMCs", "error", err)
	}
}
