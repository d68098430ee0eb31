package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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
// the usual ones, else free ones.
func (d *devStack) choosePorts() error {
	d.ports = devPorts{API: 7780, Gateway: 7781, Boot: 7782, Sim: 7783, Machines: 7786, Issuer: 7784, Postgres: 7785}
	if b, err := os.ReadFile(d.path("ports.json")); err == nil {
		if err := json.Unmarshal(b, &d.ports); err != nil {
			return fmt.Errorf("read the stack's ports: %w", err)
		}
	}
	// A changed temporal-dev.yaml counts more than what was chosen before.
	asked := [2]int{d.config.Port, d.config.UIPort}
	if d.ports.Temporal == 0 || d.ports.Asked != [2]int{} && d.ports.Asked != asked {
		d.ports.Temporal, d.ports.TemporalUI = asked[0], asked[1]
	}
	d.ports.Asked = asked
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
