package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/store"
)

func newMigrateCmd() *cobra.Command {
	var c stateConfig
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the database's schema up to date",
		Long: "Applies the migrations that this program holds and that the database lacks. They go forward only and are safe while\n" +
			"older processes run; any number of calls may run at once. It also records the cluster's identity.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.databaseURL == "" {
				return errors.New("no database is configured: set DATABASE_URL or --database-url")
			}
			if err := store.Migrate(cmd.Context(), c.databaseURL); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "the schema is at version %d\n", store.SchemaVersion)
			return nil
		},
	}
	c.flags(cmd)
	return cmd
}
