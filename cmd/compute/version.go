package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/version"
	"github.com/bettercompute/compute/worker"
)

func newVersionCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say what this program was built from, its schema, and its build as a worker",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			build, err := worker.BuildID()
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "compute %s\nschema %d\nworker build %s\n", version.String(), store.SchemaVersion, build)
			return nil
		},
	}
}
