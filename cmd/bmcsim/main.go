// Command bmcsim runs a rack of simulated machines with Redfish services, and
// the control API by which tests and people look at their true state.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/bettercompute/compute/sim"
	"github.com/bettercompute/compute/version"
	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}

type flags struct {
	opts    sim.Options
	nodes   int
	profile string
	faults  string
	verbose bool
}

func command() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use:     "bmcsim",
		Version: version.String(),
		Short:   "Run a rack of simulated machines, each with a Redfish service of its own",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			c.SilenceUsage = true
			return run(c.Context(), f)
		},
	}
	fl := c.Flags()
	fl.IntVar(&f.nodes, "nodes", 8, "number of machines; a rack taken up from --state is filled up to it")
	fl.StringVar(&f.opts.Control, "listen", "127.0.0.1:8090", "address of the control API")
	fl.IntVar(&f.opts.Port, "port", 0, "port of the machines' services, on an address each; 0 = a free one")
	fl.BoolVar(&f.opts.OwnPorts, "own-ports", false, "give every machine a port on 127.0.0.1 instead of an address")
	fl.StringVar(&f.opts.StateDir, "state", "", "directory of the journal; empty = nothing survives a restart")
	fl.StringVar(&f.faults, "faults", "", "fault file, or the name of one that is built in, for every new machine")
	fl.StringVar(&f.profile, "profile", "generic", "vendor profile, or a mix such as dell=3,hpe=1: "+strings.Join(sim.Profiles(), ", "))
	fl.Uint64Var(&f.opts.Seed, "seed", 1, "decides identities and what varies")
	fl.Float64Var(&f.opts.TimeScale, "time-scale", 1, "how much faster than real time all simulated time runs")
	fl.BoolVar(&f.opts.NoAgents, "no-agents", false, "do not run the agents of installed systems, which keep a session each")
	fl.BoolVar(&f.verbose, "verbose", false, "log boots and connection errors")
	return c
}

func run(ctx context.Context, f flags) error {
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	f.opts.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	mix, err := parseMix(f.profile)
	if err != nil {
		return err
	}
	spec := sim.MachineSpec{}
	if f.faults != "" {
		if f.opts.Faults, err = loadFaults(f.faults); err != nil {
			return err
		}
		if f.opts.Faults.Machine != nil {
			spec = *f.opts.Faults.Machine
		}
	}
	rack, err := sim.NewRack(f.opts)
	if err != nil {
		return err
	}
	for n := len(rack.Machines()); n < f.nodes; n++ {
		s := spec
		if s.Profile == "" {
			s.Profile = mix[n%len(mix)]
		}
		s.Seed = f.opts.Seed*1_000_003 + uint64(n) + 1
		if _, err := rack.Add(s); err != nil {
			return fmt.Errorf("machine %d: %w", n+1, err)
		}
	}
	// One line that a program can read says that the rack is up, and where.
	ready := map[string]any{"ready": true, "control": rack.ControlURL(), "machines": len(rack.Machines())}
	if err := json.NewEncoder(os.Stdout).Encode(ready); err != nil {
		return err
	}
	<-ctx.Done()
	return rack.Close()
}

func loadFaults(name string) (*sim.FaultFile, error) {
	b, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		return sim.NamedFaults(name)
	}
	if err != nil {
		return nil, err
	}
	return sim.ParseFaults(b)
}

// parseMix turns dell=3,hpe=1 into the profiles of consecutive machines.
func parseMix(s string) ([]string, error) {
	var out []string
	for _, part := range strings.Split(s, ",") {
		name, count, found := strings.Cut(strings.TrimSpace(part), "=")
		n := 1
		if found {
			var err error
			if n, err = strconv.Atoi(count); err != nil || n < 1 {
				return nil, fmt.Errorf("profile mix %q: %q is no number of machines", s, count)
			}
		}
		for range n {
			out = append(out, name)
		}
	}
	return out, nil
}
