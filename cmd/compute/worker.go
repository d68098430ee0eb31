package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/open"
	"github.com/bettercompute/compute/gate"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/telemetry"
	"github.com/bettercompute/compute/worker"
	"github.com/bettercompute/compute/workflows"
)

// workerConfig is what compute worker is told.
type workerConfig struct {
	stateConfig
	temporal                                 worker.Connection
	makeCurrent, unversioned, shortRetention bool
	powerEvery, sweepEvery, inventoryEvery   time.Duration
	readers                                  int
	// listen is where probes are answered; empty is nowhere.
	listen string
}

func newWorkerCmd() *cobra.Command {
	var c workerConfig
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run workflows, deliver to Temporal, sweep",
		Long: "Runs the workers of all workflows and activities, the dispatcher and the sweeps. Any number may run.\n\n" +
			"Workers of a new version get tasks only once it is made current (--make-current, after an upgrade with one of the\n" +
			"new workers): from then on the old ones get none. BMCs are the only machines it talks to.\n\n" +
			"It waits for Postgres, its schema, Temporal and its namespace, and says in its log what for. With --listen GET /healthz\n" +
			"and /readyz are answered there; /readyz is 503 with the cause while it waits, or while one of them does not answer.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := takeDuration(cmd, "sweep-every", "COMPUTE_SWEEP_EVERY"); err != nil {
				return err
			}
			return runWorker(cmd.Context(), c)
		},
	}
	c.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&c.temporal.Address, "temporal-address", os.Getenv("TEMPORAL_ADDRESS"), "host and port of Temporal (TEMPORAL_ADDRESS)")
	f.StringVar(&c.temporal.Namespace, "temporal-namespace", os.Getenv("TEMPORAL_NAMESPACE"), "namespace of Temporal (TEMPORAL_NAMESPACE)")
	f.StringVar(&c.listen, "listen", os.Getenv("COMPUTE_WORKER_LISTEN"), "address to answer /healthz and /readyz on; none when empty (COMPUTE_WORKER_LISTEN)")
	f.BoolVar(&c.makeCurrent, "make-current", false, "give new tasks to this version of the workers")
	f.BoolVar(&c.unversioned, "unversioned", false, "run without worker versioning, for servers that have none")
	f.BoolVar(&c.shortRetention, "allow-short-retention", false, "run although the namespace forgets closed workflows in less than 30 days")
	f.DurationVar(&c.powerEvery, "power-every", 10*time.Minute, "how often the power of a machine at rest is read")
	f.DurationVar(&c.inventoryEvery, "inventory-every", 6*time.Hour, "how often the hardware of a machine in use is read by its BMC")
	f.DurationVar(&c.sweepEvery, "sweep-every", time.Minute, "how often an open operation is compared with Temporal (COMPUTE_SWEEP_EVERY)")
	f.IntVar(&c.readers, "bmc-readers", 1, "how many may read one BMC at once beside the one that changes it")
	return cmd
}

// leastRequest keeps the bound on one request, and with it the leases, above
// what a busy machine can delay a process, however fast the rack's clock runs.
const leastRequest = 10 * time.Second

// scaled divides a spacing for a simulated rack.
func scaled(d time.Duration, scale float64) time.Duration {
	if scale <= 1 {
		return d
	}
	return max(time.Duration(float64(d)/scale), time.Minute)
}

// scaledWaits divides a driver's waits for a simulated rack.
func scaledWaits(scale float64) bmc.Waits {
	w := bmc.DefaultWaits
	if scale <= 1 {
		return w
	}
	for _, d := range []*time.Duration{&w.Request, &w.Poll, &w.Busy, &w.Change, &w.Post} {
		*d = time.Duration(float64(*d) / scale)
	}
	w.Request = max(w.Request, leastRequest)
	w.Scale = scale
	return w
}

func runWorker(ctx context.Context, c workerConfig) error {
	if c.sweepEvery <= 0 || c.powerEvery <= 0 || c.inventoryEvery <= 0 {
		return errors.New("--sweep-every, --power-every and --inventory-every are durations above 0")
	}
	log := newLog()
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	if s.Seal == nil {
		return errors.New("no keyset is configured: set COMPUTE_KEYSET or --keyset (compute keys init makes one)")
	}
	state := &worker.State{Log: log}
	if c.listen != "" {
		if err := serveWorkerHealth(ctx, c.listen, state); err != nil {
			return err
		}
	}
	if err := awaitSchema(ctx, s, state); err != nil {
		return err
	}
	build := ""
	if !c.unversioned {
		if build, err = worker.BuildID(); err != nil {
			return err
		}
	}
	stop, err := traced(ctx, "compute-worker")
	if err != nil {
		return err
	}
	defer stop()
	c.temporal.Log, c.temporal.State, c.temporal.Traced = log, state, telemetry.Enabled()
	client, namespace, err := worker.Connect(ctx, c.temporal)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := worker.CheckRetention(ctx, client, namespace, state); err != nil {
		if !c.shortRetention {
			return err
		}
		log.WarnContext(ctx, "retention", "error", err)
	}
	process, err := processName()
	if err != nil {
		return err
	}
	openBMC := func(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Client, error) {
		return open.Open(ctx, target, opts)
	}
	w := worker.Worker{Store: s, Client: client, Namespace: namespace, Log: log, State: state, Process: process, BuildID: build, MakeCurrent: c.makeCurrent,
		TaskQueue: workflows.TaskQueue, PowerEvery: c.powerEvery, InventoryEvery: scaled(c.inventoryEvery, c.timeScale), SweepEvery: c.sweepEvery,
		Gate: &gate.Gate{Store: s, Holder: process, OpenBMC: openBMC, Waits: scaledWaits(c.timeScale), Log: log, Reads: c.readers,
			IdleAfter: 2 * time.Minute}}
	return w.Run(ctx)
}

// awaitSchema returns once Postgres answers with a schema that this program
// knows, trying until the context ends: an outage at the start is waited out like
// any other, and so is a migration that somebody has still to run.
func awaitSchema(ctx context.Context, s *store.Store, state *worker.State) error {
	for {
		known, err := schemaKnown(ctx, s)
		why := "Postgres does not answer"
		switch {
		case err == nil && known:
			return nil
		case err == nil:
			why = "the database's schema is older than this program: run compute migrate"
		case !store.Away(err) && !errors.Is(err, context.DeadlineExceeded):
			why = "the database has no schema that can be read (compute migrate makes it)"
		}
		state.Waits(ctx, why, err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Second):
		}
	}
}

// schemaKnown asks Postgres, which may hang, for a few seconds.
func schemaKnown(ctx context.Context, s *store.Store) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return store.SchemaKnown(ctx, s.Pool())
}

// processName names this process among all there ever were.
func processName() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("read the host's name: %w", err)
	}
	b := make([]byte, 4)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("name this process: %w", err)
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), hex.EncodeToString(b)), nil
}
