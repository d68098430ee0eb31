package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bettercompute/compute/devidp"
	"github.com/bettercompute/compute/localstack"
)

// devPorts are the loopback ports of a stack, kept over restarts.
type devPorts struct {
	API, Gateway, Boot, Sim, Machines, Issuer, Postgres, Temporal, TemporalUI int
	// Asked are the ports that temporal-dev.yaml named when Temporal's were
	// chosen.
	Asked [2]int
}

// choosePorts keeps the ports of the run before where they are free, else takes
// the usual ones, else free ones, and says which it could not keep. The port of
// the rack's BMCs is part of the addresses under which machines are enrolled: a
// stack with machines does not move it.
func (d *devStack) choosePorts() error {
	d.ports = devPorts{API: 7780, Gateway: 7781, Boot: 7782, Sim: 7783, Machines: 7786, Issuer: 7784, Postgres: 7785}
	b, err := os.ReadFile(d.path("ports.json"))
	again := err == nil
	if again {
		if err := json.Unmarshal(b, &d.ports); err != nil {
			return fmt.Errorf("read the stack's ports in %s: %w", d.path("ports.json"), err)
		}
	}
	if again && d.hasRack() && !freeFor(d.ports.Machines, anyLoopback) {
		return fmt.Errorf("port %d is taken, and the machines of this stack are enrolled under it: end what listens there "+
			"(ss -ltnp 'sport = :%d' shows it; another stack?), or begin anew with make dev-reset", d.ports.Machines, d.ports.Machines)
	}
	// A changed temporal-dev.yaml counts more than what was chosen before.
	asked := [2]int{d.config.Port, d.config.UIPort}
	if d.ports.Temporal == 0 || d.ports.Asked != [2]int{} && d.ports.Asked != asked {
		d.ports.Temporal, d.ports.TemporalUI = asked[0], asked[1]
	}
	d.ports.Asked = asked
	if err := d.moveTaken(again); err != nil {
		return err
	}
	b, err = json.MarshalIndent(d.ports, "", "  ")
	if err != nil {
		return fmt.Errorf("write the stack's ports: %w", err)
	}
	if err := os.WriteFile(d.path("ports.json"), b, 0o644); err != nil {
		return fmt.Errorf("write the stack's ports: %w", err)
	}
	return nil
}

// hasRack says whether a run before made machines.
func (d *devStack) hasRack() bool {
	entries, err := os.ReadDir(d.path("rack"))
	return err == nil && len(entries) > 0
}

// moveTaken takes free ports in place of those that something else has.
func (d *devStack) moveTaken(again bool) error {
	p := &d.ports
	var used []int
	var moved []string
	for _, of := range []struct {
		name string
		port *int
		host string
	}{
		{"API", &p.API, localhost}, {"gateway", &p.Gateway, localhost}, {"boot files", &p.Boot, localhost}, {"bmcsim", &p.Sim, localhost}, {"BMCs", &p.Machines, anyLoopback},
		{"issuer", &p.Issuer, localhost}, {"Postgres", &p.Postgres, localhost}, {"Temporal", &p.Temporal, localhost}, {"Temporal UI", &p.TemporalUI, localhost},
	} {
		wanted := *of.port
		for !freeFor(*of.port, of.host) || slices.Contains(used, *of.port) {
			port, err := localstack.FreePort()
			if err != nil {
				return err
			}
			*of.port = port
		}
		if *of.port != wanted {
			moved = append(moved, fmt.Sprintf("%s %d instead of %d", of.name, *of.port, wanted))
		}
		used = append(used, *of.port)
	}
	if len(moved) > 0 {
		fmt.Fprintf(d.out, "ports that something else has were replaced: %s\n", strings.Join(moved, ", "))
		if again {
			fmt.Fprintf(d.out, "shells that sourced the env file before need it again: . %s\n", d.envFile())
		}
	}
	return nil
}

// localhost is where our services listen; the rack listens on all addresses of
// the loopback device.
const localhost, anyLoopback = "127.0.0.1", "0.0.0.0"

// freeFor says whether a port can be listened on.
func freeFor(port int, host string) bool {
	l, err := net.Listen("tcp4", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func httpURL(port int) string { return "http://" + loopback(port) }

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
	defer log.Close()
	if d.pg, err = localstack.StartPostgres(ctx, localstack.PostgresOptions{Dir: d.path("pg"), Port: d.ports.Postgres, Log: log}); err != nil {
		return err
	}
	d.database, err = d.pg.CreateDatabase(ctx, "compute")
	return err
}

// readTemporal reads the dev server's configuration.
func (d *devStack) readTemporal() error {
	f, err := os.Open(filepath.Join(d.root, "temporal-dev.yaml"))
	if err != nil {
		return fmt.Errorf("open the dev server's configuration: %w", err)
	}
	defer f.Close()
	d.config, err = localstack.ReadTemporalConfig(f)
	return err
}

func (d *devStack) startTemporal(ctx context.Context) error {
	binary, err := localstack.TemporalBinary(ctx, d.root, func() {
		fmt.Fprintln(d.out, "building the Temporal dev server; only the first start does, and it takes some minutes")
	})
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
	defer log.Close()
	c := d.config
	c.Port, c.UIPort = d.ports.Temporal, d.ports.TemporalUI
	d.temporal, err = localstack.StartTemporal(ctx, binary, d.path("temporal"), c, log, false)
	return err
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
