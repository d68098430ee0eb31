// Command compute is the control plane: the API, the worker, the gateway, the
// commands of an operator with access to the database, and the whole of it on
// one machine for trying (compute dev).
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/version"
)

// sameWish is how soon after a signal another one says nothing new.
const sameWish = time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal asks to stop; the second one ends at once. One that comes
	// right after the first is the same wish, told to the group and by its leader,
	// as make and timeout do.
	context.AfterFunc(ctx, func() {
		time.Sleep(sameWish)
		stop()
	})
	if err := rootCmd().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "compute:", err)
		stop()
		os.Exit(1)
	}
}

func rootCmd() *cobra.Command {
	root := &cobra.Command{Use: "compute", Short: "The control plane of bare-metal GPU fleets",
		SilenceUsage: true, SilenceErrors: true, Version: version.String()}
	root.AddCommand(commands()...)
	sayUsage(root)
	return root
}

// sayUsage lets every command answer a wrong command line with the right one.
func sayUsage(cmd *cobra.Command) {
	told := func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w\n  usage: %s (--help says more)", err, cmd.UseLine())
	}
	cmd.SetFlagErrorFunc(told)
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return told(cmd, err)
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		sayUsage(sub)
	}
}
