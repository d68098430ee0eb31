package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/seal"
	"github.com/bettercompute/compute/telemetry"
)

// stateConfig is what the processes that use the database are told, by flags
// or the environment.
type stateConfig struct {
	databaseURL, keyset, bootKey string
	gatewayURL, bootURL          string
	timeScale, waitScale         float64
}

// flags adds the configuration's flags, whose defaults are the environment's.
func (c *stateConfig) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.databaseURL, "database-url", os.Getenv("DATABASE_URL"), "Postgres connection URL (DATABASE_URL)")
	f.Lookup("database-url").DefValue = "" // it holds a password, which --help is not to show
	f.StringVar(&c.keyset, "keyset", os.Getenv("COMPUTE_KEYSET"), "file of the keyset that seals secrets (COMPUTE_KEYSET)")
	f.StringVar(&c.bootKey, "boot-key", os.Getenv("COMPUTE_BOOT_KEY"), "file of the key that boot ids are made with (COMPUTE_BOOT_KEY)")
	f.StringVar(&c.gatewayURL, "gateway-url", os.Getenv("COMPUTE_GATEWAY_URL"), "where machines reach the gateway's TLS listener (COMPUTE_GATEWAY_URL)")
	f.StringVar(&c.bootURL, "boot-url", os.Getenv("COMPUTE_BOOT_URL"), "where machines fetch boot files and report (COMPUTE_BOOT_URL)")
	f.Float64Var(&c.timeScale, "time-scale", scaleFrom("COMPUTE_TIME_SCALE", 1), "divides waiting times, for simulated racks (COMPUTE_TIME_SCALE)")
	f.Float64Var(&c.waitScale, "wait-scale", scaleFrom("COMPUTE_WAIT_SCALE", 0), "divides the bounds of operations' waits otherwise than --time-scale does; 0 as it (COMPUTE_WAIT_SCALE)")
}

// scaleFrom is a scale of the environment; what is none is as if it were not set.
func scaleFrom(name string, unset float64) float64 {
	if scale, err := strconv.ParseFloat(os.Getenv(name), 64); err == nil && scale > 0 {
		return scale
	}
	return unset
}

// open reads the keys and connects to the database.
func (c *stateConfig) open(ctx context.Context) (*store.Store, error) {
	if c.databaseURL == "" {
		return nil, errors.New("no database is configured: set DATABASE_URL or --database-url")
	}
	opts := store.Options{BootURL: c.bootURL, GatewayURL: c.gatewayURL, TimeScale: c.timeScale, WaitScale: c.waitScale}
	var err error
	if c.keyset != "" {
		if opts.Seal, err = seal.Load(c.keyset); err != nil {
			return nil, err
		}
	}
	if c.bootKey != "" {
		if opts.BootKey, err = store.LoadBootKey(c.bootKey); err != nil {
			return nil, err
		}
	}
	return store.Open(ctx, c.databaseURL, opts)
}

// newLog logs JSON lines to the standard error.
func newLog() *slog.Logger { return slog.New(telemetry.Logged(slog.NewJSONHandler(os.Stderr, nil))) }

// takeDuration sets a flag that was not given from the environment.
func takeDuration(cmd *cobra.Command, flag, env string) error {
	if v := os.Getenv(env); v != "" && !cmd.Flags().Changed(flag) {
		if err := cmd.Flags().Set(flag, v); err != nil {
			return fmt.Errorf("%s: %w", env, err)
		}
	}
	return nil
}

// traced begins sending traces, where the environment says so, until the
// returned function is called.
func traced(ctx context.Context, service string) (stop func(), err error) {
	end, err := telemetry.Start(ctx, service)
	if err != nil {
		return nil, err
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := end(ctx); err != nil {
			slog.WarnContext(ctx, "traces not sent", "error", err)
		}
	}, nil
}
