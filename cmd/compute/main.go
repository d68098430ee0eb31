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

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal asks to stop; the second one ends at once.
	context.AfterFunc(ctx, stop)
	if err := rootCmd().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "compute:", err)
		stop()
		os.Exit(1)
	}
}

func rootCmd() *cobra.Command {
	root := &cobra.Command{Use: "compute", Short: "The control plane of bare-metal GPU fleets",
		SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(commands()...)
	return root
}
