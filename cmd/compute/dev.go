package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/devidp"
	"github.com/bettercompute/compute/localstack"
)

// devOptions size and place the local stack.
type devOptions struct {
	state     string
	nodes     int
	profile   string
	timeScale float64
	wipe      bool
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

// devPorts are the loopback ports of a stack, kept over restarts.
type devPorts struct {
	API, Gateway, Boot, Sim, Machines, Issuer, Postgres, Temporal, TemporalUI int
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
	namespace        string
}

func runDev(ctx context.Context, o devOptions, out io.Writer) error {
	began := time.Now()
	d, unlock, err := newDevStack(ctx, o, out)
	if err != nil {
		return err
	}
	defer unlock()
	failed := make(chan error, 1)
	defer d.stop()
	if err := d.startAll(ctx, failed); err != nil {
		if ctx.Err() != nil {
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
	if err := os.MkdirAll(filepath.Join(state, "log"), 0o755); err != nil {
		return nil, nil, fmt.Errorf("make the state folder: %w", err)
	}
	unlock, err := lockState(state)
	if err != nil {
		return nil, nil, err
	}
	d := &devStack{devOptions: o, root: root, state: state, bin: filepath.Join(state, "bin"), out: out}
	if err := localstack.EndLeftovers(ctx, d.path("pids")); err != nil {
		unlock()
		return nil, nil, err
	}
	if err := d.choosePorts(); err != nil {
		unlock()
		return nil, nil, err
	}
	d.children = &localstack.Group{LogDir: d.path("log"), PIDFile: d.path("pids"),
		Say: func(line string) { fmt.Fprintln(out, line) }}
	return d, unlock, nil
}

func lockState(state string) (func(), error) {
	f, err := os.OpenFile(filepath.Join(state, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the stack's lock: %w", err)
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
	if err := localstack.EndLeftovers(ctx, filepath.Join(state, "pids")); err != nil {
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

// choosePorts keeps the ports of the run before where they are free, else takes
// the usual ones, else free ones.
func (d *devStack) choosePorts() error {
	d.ports = devPorts{API: 7780, Gateway: 7781, Boot: 7782, Sim: 7783, Machines: 7786, Issuer: 7784, Postgres: 7785, Temporal: 7233, TemporalUI: 8233}
	if b, err := os.ReadFile(d.path("ports.json")); err == nil {
		if err := json.Unmarshal(b, &d.ports); err != nil {
			return fmt.Errorf("read the stack's ports: %w", err)
		}
	}
	taken := []int{}
	for _, p := range []*int{&d.ports.API, &d.ports.Gateway, &d.ports.Boot, &d.ports.Sim, &d.ports.Machines, &d.ports.Issuer, &d.ports.Postgres, &d.ports.Temporal, &d.ports.TemporalUI} {
		for !free(*p) || slices.Contains(taken, *p) {
			port, err := localstack.FreePort()
			if err != nil {
				return err
			}
			*p = port
		}
		taken = append(taken, *p)
	}
	b, err := json.MarshalIndent(d.ports, "", "  ")
	if err != nil {
		return fmt.Errorf("write the stack's ports: %w", err)
	}
	if err := os.WriteFile(d.path("ports.json"), b, 0o644); err != nil {
		return fmt.Errorf("write the stack's ports: %w", err)
	}
	return nil
}

func free(port int) bool {
	l, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func httpURL(port int) string { return "http://" + loopback(port) }

// startAll brings everything up in the order of need, side by side where there
// is none.
func (d *devStack) startAll(ctx context.Context, failed chan<- error) error {
	config, err := d.readTemporal()
	if err != nil {
		return err
	}
	d.namespace = config.Namespace
	temporalUp := make(chan error, 1)
	go func() { temporalUp <- d.startTemporal(ctx, config) }()
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
	if err := <-temporalUp; err != nil {
		return err
	}
	if err := d.children.Start(d.worker()); err != nil {
		return err
	}
	go d.watchEngines(ctx, failed)
	for name, url := range map[string]string{"api": httpURL(d.ports.API) + "/readyz", "gateway": httpURL(d.ports.Boot) + "/healthz",
		"bmcsim": httpURL(d.ports.Sim) + "/sim/machines"} {
		if err := d.waitHTTP(ctx, name, url); err != nil {
			return err
		}
	}
	return d.seed(ctx)
}

// watchEngines ends the stack when Postgres or Temporal ends by itself: they
// hold the state, and starting them again is the next run's business.
func (d *devStack) watchEngines(ctx context.Context, failed chan<- error) {
	select {
	case <-ctx.Done():
	case <-d.pg.Exited():
		failed <- fmt.Errorf("postgres ended by itself; see %s", d.path("log", "postgres.log"))
	case <-d.temporal.Exited():
		failed <- fmt.Errorf("temporal ended by itself; see %s", d.path("log", "temporal.log"))
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

func (d *devStack) log(name string) (*os.File, error) {
	f, err := os.OpenFile(d.path("log", name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	return f, nil
}

func (d *devStack) startPostgres(ctx context.Context) error {
	log, err := d.log("postgres")
	if err != nil {
		return err
	}
	if d.pg, err = localstack.StartPostgres(ctx, localstack.PostgresOptions{Dir: d.path("pg"), Port: d.ports.Postgres, Log: log}); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, d.pg.URL)
	if err != nil {
		return fmt.Errorf("connect to the stack's Postgres: %w", err)
	}
	defer conn.Close(ctx)
	var there bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = 'compute')").Scan(&there); err != nil {
		return fmt.Errorf("look for the stack's database: %w", err)
	}
	if there {
		return nil
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE compute"); err != nil {
		return fmt.Errorf("create the stack's database: %w", err)
	}
	return nil
}

// readTemporal reads the dev server's configuration.
func (d *devStack) readTemporal() (localstack.TemporalConfig, error) {
	f, err := os.Open(filepath.Join(d.root, "temporal-dev.yaml"))
	if err != nil {
		return localstack.TemporalConfig{}, fmt.Errorf("open the dev server's configuration: %w", err)
	}
	defer f.Close()
	c, err := localstack.ReadTemporalConfig(f)
	c.Port, c.UIPort = d.ports.Temporal, d.ports.TemporalUI
	return c, err
}

func (d *devStack) startTemporal(ctx context.Context, c localstack.TemporalConfig) error {
	fmt.Fprintln(d.out, "temporal: looking for the dev server (its first build takes a few minutes)")
	binary, err := localstack.TemporalBinary(ctx, d.root)
	if err != nil {
		return err
	}
	if err := link(binary, filepath.Join(d.bin, "temporal")); err != nil {
		return err
	}
	log, err := d.log("temporal")
	if err != nil {
		return err
	}
	if d.temporal, err = localstack.StartTemporal(ctx, binary, d.path("temporal"), c, log, false); err != nil {
		return err
	}
	return localstack.RecordPID(d.path("pids"), d.temporal.PID)
}

// link puts a program beside ours, so that .dev/env's PATH finds it.
func link(target, name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("replace %s: %w", name, err)
	}
	if err := os.Symlink(target, name); err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	return nil
}

func (d *devStack) startIssuer(failed chan<- error) error {
	var err error
	if d.issuer, err = devidp.New(httpURL(d.ports.Issuer), d.path("issuer.pem")); err != nil {
		return err
	}
	l, err := net.Listen("tcp", loopback(d.ports.Issuer))
	if err != nil {
		return fmt.Errorf("listen for the local issuer: %w", err)
	}
	srv := &http.Server{Handler: d.issuer.Handler(), ReadHeaderTimeout: 5 * time.Second}
	go func() {
		failed <- fmt.Errorf("the local issuer ended: %w", srv.Serve(l))
	}()
	return nil
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
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not become ready; see %s", name, d.path("log", name+".log"))
		case <-tick.C:
		}
	}
}
