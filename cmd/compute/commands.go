package main

import "github.com/spf13/cobra"

// commands are the subcommands of compute, a file each.
func commands() []*cobra.Command {
	return []*cobra.Command{
		newDevCmd(),
		newProjectionCmd(),
		newAdminCmd(),
		newAPICmd(),
		newWorkerCmd(),
		newMigrateCmd(),
		newRecoverCmd(),
		newKeysCmd(),
		newGatewayCmd(),
		newVersionCmd(),
	}
}
