// Command nodeagent is the control plane's agent on a machine.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/agent/linux"
	"github.com/bettercompute/compute/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{Use: "nodeagent", Short: "The control plane's agent on a machine", SilenceUsage: true, SilenceErrors: true, Version: version.String()}
	root.AddCommand(bootCmd(), inventoryCmd(), joinCmd(), runCmd(), statusCmd(), leaveCmd(), unitCmd())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, explain(err))
		stop()
		os.Exit(1)
	}
}

// explain says an error for a person.
func explain(err error) string {
	text := "nodeagent: " + err.Error()
	if errors.Is(err, fs.ErrPermission) {
		text += "\n  it runs as root, or with --state in a folder of its own"
	}
	return text
}

func bootCmd() *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:   "boot",
		Short: "Call in from the boot image and run the control plane's commands",
		Long: "Fetches this power-on's config, calls in with its one-time token and runs commands until the control plane has finished\n" +
			"with the machine. When a command fails it stays up for the next. This agent reads the inventory and runs the tests cpu,\n" +
			"nic and clock; writing images, config drives, erasing and the rescue system it refuses, saying so.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return boot(cmd.Context(), config) },
	}
	cmd.Flags().StringVar(&config, "config-url", "", "URL of the boot config, as the kernel's command line names it (compute.boot=)")
	if err := cmd.MarkFlagRequired("config-url"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

func boot(ctx context.Context, config string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	host := &linux.Host{Root: "/", Reference: func(ctx context.Context) (time.Time, error) { return serverTime(ctx, config) }}
	err := agent.Run(ctx, agent.Config{BootConfigURL: config, Log: log}, host)
	switch {
	case ctx.Err() != nil:
		//lint:ignore nilerr told to stop, it stopped
		return nil
	case errors.Is(err, agent.ErrBootEnded):
		log.Info("the control plane is done with this power-on")
		return nil
	}
	return err
}

// serverTime is the time of the server that gave the boot config.
func serverTime(ctx context.Context, config string) (time.Time, error) {
	u, err := url.Parse(config)
	if err != nil {
		return time.Time{}, errors.New("the boot config's URL is none")
	}
	u.Path, u.RawQuery = "/healthz", ""
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, u.String(), nil)
	if err != nil {
		return time.Time{}, errors.New("the boot config's URL is none")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return time.Time{}, err
	}
	defer resp.Body.Close()
	at, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return time.Time{}, fmt.Errorf("the server tells no time: %w", err)
	}
	return at, nil
}
