package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/bettercompute/compute/devidp"
	"github.com/bettercompute/compute/localstack"
)

// devOptions size and place the local stack.
type devOptions struct {
	state     string
	nodes     int
	profile   string
	timeScale float64
	// waitScale is the services' --wait-scale; 0 leaves it to them.
	waitScale float64
	wipe      bool
	// programs is the folder that our programs are linked from; empty is this
	// one's own.
	programs string
	// settings are told to the services beside what the stack tells them.
	settings []string
}

func newDevCmd() *cobra.Command {
	var o devOptions
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything on this machine, on loopback, with a simulated rack",
		Long: "Starts Postgres, Temporal, a simulated rack, an OIDC issuer and all our services, seeds a tenant with a site and a pool,\n" +
			"and writes .dev/env. State survives a restart and a kill; --wipe removes it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.nodes < 0 || o.timeScale <= 0 {
				return fmt.Errorf("--nodes is 0 or more and --time-scale more than 0, not %d and %g", o.nodes, o.timeScale)
			}
			if o.wipe {
				return wipeDev(cmd.Context(), o.state)
			}
			return runDev(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.state, "state", ".dev", "folder of the stack's state")
	f.IntVar(&o.nodes, "nodes", 8, "machines in the simulated rack")
	f.StringVar(&o.profile, "profile", "", "vendor profile of the machines; a mix when empty")
	f.Float64Var(&o.timeScale, "time-scale", 30, "how much faster than real hardware the simulated rack runs")
	f.BoolVar(&o.wipe, "wipe", false, "remove the stack's state and end")
	return cmd
}

// devStack is a local stack while it starts and runs.
type devStack struct {
	devOptions
	root, state, bin string
	ports            devPorts
	out              io.Writer
	pg               *localstack.Postgres
	temporal         *localstack.Temporal
	children         *localstack.Group
	issuer           *devidp.Issuer
	owner            string // a token of the tenant's owner
	seeded           devSeed
	config           localstack.TemporalConfig
	database         string // connection URL
}

func runDev(ctx context.Context, o devOptions, out io.Writer) error {
	began := time.Now()
	d, unlock, err := newDevStack(ctx, o, out)
	if err != nil {
		return err
	}
	defer unlock()
	defer d.stop()
	failed := make(chan error, 1)
	if err := d.startAll(ctx, failed); err != nil {
		if ctx.Err() != nil {
			fmt.Fprintln(out, "\nstopping before it was ready")
			return nil
		}
		return err
	}
	d.announce(time.Since(began))
	select {
	case <-ctx.Done():
		fmt.Fprintln(out, "\nstopping")
		return nil
	case err := <-failed:
		return err
	}
}

// newDevStack prepares the state folder, takes its lock and ends what a killed
// run left behind.
func newDevStack(ctx context.Context, o devOptions, out io.Writer) (*devStack, func(), error) {
	root, err := localstack.ModuleRoot()
	if err != nil {
		return nil, nil, err
	}
	state, err := filepath.Abs(o.state)
	if err != nil {
		return nil, nil, fmt.Errorf("state folder: %w", err)
	}
	if err := makeState(state); err != nil {
		return nil, nil, err
	}
	unlock, err := lockState(state)
	if err != nil {
		return nil, nil, err
	}
	d := &devStack{devOptions: o, root: root, state: state, bin: filepath.Join(state, "bin"), out: out}
	if err := endLeftovers(ctx, state); err != nil {
		unlock()
		return nil, nil, err
	}
	if err := placePrograms(d.bin, d.programs); err != nil {
		unlock()
		return nil, nil, err
	}
	if err := errors.Join(d.readTemporal(), d.choosePorts()); err != nil {
		unlock()
		return nil, nil, err
	}
	d.children = &localstack.Group{LogDir: d.path("log"), PIDFile: d.path("pids"),
		Say: func(line string) { fmt.Fprintln(out, line) }}
	return d, unlock, nil
}

// endLeftovers ends what a killed run of the stack in state left behind, so
// that its ports are free again: services, then engines.
func endLeftovers(ctx context.Context, state string) error {
	if err := localstack.EndLeftovers(ctx, filepath.Join(state, "pids")); err != nil {
		return err
	}
	if err := localstack.StopTemporal(ctx, filepath.Join(state, "temporal")); err != nil {
		return err
	}
	return localstack.StopCluster(ctx, filepath.Join(state, "pg"))
}

func lockState(state string) (func(), error) {
	f, err := os.OpenFile(filepath.Join(state, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the stack's folder %s cannot be written (--state names another): %w", state, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("a stack already runs in %s; stop it first (Ctrl-C where it runs)", state)
	}
	return func() { f.Close() }, nil
}

func wipeDev(ctx context.Context, dir string) error {
	state, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("state folder: %w", err)
	}
	if _, err := os.Stat(state); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	unlock, err := lockState(state)
	if err != nil {
		return err
	}
	defer unlock()
	if err := endLeftovers(ctx, state); err != nil {
		return err
	}
	if err := localstack.RemoveCluster(ctx, filepath.Join(state, "pg")); err != nil {
		return err
	}
	if err := os.RemoveAll(state); err != nil {
		return fmt.Errorf("remove the stack's state: %w", err)
	}
	return nil
}

func (d *devStack) path(parts ...string) string {
	return filepath.Join(append([]string{d.state}, parts...)...)
}

// startAll brings everything up in the order of need, side by side where there
// is none.
func (d *devStack) startAll(ctx context.Context, failed chan<- error) error {
	// What fails on one side ends the other, and both have ended when this
	// returns: nothing starts any more while the stack is being stopped.
	g, ctx := errgroup.WithContext(ctx)
	temporalUp := make(chan struct{})
	g.Go(func() error {
		defer close(temporalUp)
		return d.startTemporal(ctx)
	})
	g.Go(func() error {
		if err := d.startServices(ctx, failed); err != nil {
			return err
		}
		<-temporalUp
		if d.temporal == nil {
			return nil // the other side says why
		}
		if err := d.children.Start(d.worker()); err != nil {
			return err
		}
		return d.seed(ctx)
	})
	if err := g.Wait(); err != nil {
		return err
	}
	go d.watchEngines(failed)
	return nil
}

// startServices starts what does without Temporal.
func (d *devStack) startServices(ctx context.Context, failed chan<- error) error {
	if err := d.startIssuer(failed); err != nil {
		return err
	}
	if err := d.children.Start(d.bmcsim()); err != nil {
		return err
	}
	if err := d.startPostgres(ctx); err != nil {
		return err
	}
	if err := d.keysAndSchema(ctx); err != nil {
		return err
	}
	for _, c := range []localstack.Child{d.api(), d.gateway()} {
		if err := d.children.Start(c); err != nil {
			return err
		}
	}
	for _, w := range []struct{ name, url string }{
		{"bmcsim", httpURL(d.ports.Sim) + "/sim/clock"},
		{"api", httpURL(d.ports.API) + "/readyz"},
		{"gateway", httpURL(d.ports.Boot) + "/healthz"},
	} {
		if err := d.waitHTTP(ctx, w.name, w.url); err != nil {
			return err
		}
	}
	return nil
}

// watchEngines ends the stack when Postgres or Temporal ends by itself: they
// hold the state, and starting them again is the next run's business.
func (d *devStack) watchEngines(failed chan<- error) {
	select {
	case <-d.pg.Exited():
		failed <- fmt.Errorf("postgres ended by itself; see %s, then start again", d.path("log", "postgres.log"))
	case <-d.temporal.Exited():
		failed <- fmt.Errorf("temporal ended by itself; see %s, then start again", d.path("log", "temporal.log"))
	}
}

func (d *devStack) stop() {
	d.children.Stop(20 * time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if d.temporal != nil {
		if err := d.temporal.Stop(ctx); err != nil {
			fmt.Fprintln(d.out, err)
		}
	}
	if d.pg != nil {
		if err := d.pg.Stop(ctx); err != nil {
			fmt.Fprintln(d.out, err)
		}
	}
}

// waitHTTP waits until a URL answers 200.
func (d *devStack) waitHTTP(ctx context.Context, name, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return fmt.Errorf("wait for %s: %w", name, err)
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		if d.children != nil {
			if why := d.children.Hopeless(name); why != "" {
				return fmt.Errorf("%s ends again and again (%s); its log: %s", name, why, d.path("log", name+".log"))
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not become ready; see %s", name, d.path("log", name+".log"))
		case <-tick.C:
		}
	}
}
