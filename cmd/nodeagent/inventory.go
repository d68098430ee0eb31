package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/agent/linux"
)

func inventoryCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "inventory",
		Short: "Print the hardware as the agent reads it, with what it could not read",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			inv, err := (&linux.Host{Root: "/"}).Inventory(cmd.Context())
			if err != nil {
				return err
			}
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			return e.Encode(inv)
		},
	}
}
