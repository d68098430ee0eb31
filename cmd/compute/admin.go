package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// newAdminCmd is how a production system begins: with access to the database
// and no default credential.
func newAdminCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "admin", Short: "Begin a system: its first tenant and owner (needs the database)"}
	cmd.AddCommand(createTenantCmd(), grantCmd())
	return cmd
}

func createTenantCmd() *cobra.Command {
	var c stateConfig
	var owner string
	cmd := &cobra.Command{Use: "create-tenant ID --owner ISSUER:SUB", Short: "Create a tenant with its first owner; again changes nothing", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !fleet.MatchPattern("tenantId", args[0]) || !fleet.MatchPattern("identity", owner) {
				return fmt.Errorf("a tenant id matches %s, an owner %s", fleet.Patterns["tenantId"], fleet.Patterns["identity"])
			}
			return withStore(cmd.Context(), c, func(ctx context.Context, s *store.Store) error {
				made, err := s.CreateTenant(ctx, args[0], owner)
				return report(cmd, made, err, fmt.Sprintf("tenant %s, owner %s", args[0], owner))
			})
		}}
	c.flags(cmd)
	cmd.Flags().StringVar(&owner, "owner", "", "the first owner, <issuer alias>:<sub>")
	return cmd
}

func grantCmd() *cobra.Command {
	var c stateConfig
	cmd := &cobra.Command{Use: "grant TENANT IDENTITY ROLE", Short: "Give an identity a role in a tenant; again changes nothing", Args: cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			role := fleet.Role(args[2])
			if !fleet.MatchPattern("identity", args[1]) || !slices.Contains(fleet.Roles, role) {
				return fmt.Errorf("an identity matches %s, a role is one of %v", fleet.Patterns["identity"], fleet.Roles)
			}
			return withStore(cmd.Context(), c, func(ctx context.Context, s *store.Store) error {
				made, err := s.AdminGrant(ctx, args[0], args[1], role)
				return report(cmd, made, err, fmt.Sprintf("%s is %s in %s", args[1], role, args[0]))
			})
		}}
	c.flags(cmd)
	return cmd
}

// newProjectionCmd compares and rebuilds the authorization projection.
func newProjectionCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "projection", Short: "Compare or rebuild who sees which node"}
	sub := func(use, short string, run func(ctx context.Context, cmd *cobra.Command, s *store.Store) error) {
		var c stateConfig
		child := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			return withStore(cmd.Context(), c, func(ctx context.Context, s *store.Store) error { return run(ctx, cmd, s) })
		}}
		c.flags(child)
		cmd.AddCommand(child)
	}
	sub("check", "List differences; fails when there are any", func(ctx context.Context, cmd *cobra.Command, s *store.Store) error {
		wrong, err := store.CheckProjection(ctx, s.Pool())
		if err != nil {
			return err
		}
		for _, line := range wrong {
			fmt.Fprintln(cmd.OutOrStdout(), line)
		}
		if len(wrong) > 0 {
			return fmt.Errorf("the projection differs in %d row(s): compute projection rebuild", len(wrong))
		}
		fmt.Fprintln(cmd.OutOrStdout(), "the projection is right")
		return nil
	})
	sub("rebuild", "Make it anew from its causes", func(ctx context.Context, cmd *cobra.Command, s *store.Store) error {
		wrong, err := s.RebuildProjection(ctx)
		if err != nil {
			return err
		}
		for _, line := range wrong {
			fmt.Fprintln(cmd.OutOrStdout(), "mended:", line)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "the projection is right; %d row(s) were mended\n", len(wrong))
		return nil
	})
	return cmd
}

func withStore(ctx context.Context, c stateConfig, fn func(ctx context.Context, s *store.Store) error) error {
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	return fn(ctx, s)
}

func report(cmd *cobra.Command, made bool, err error, what string) error {
	if err != nil {
		return err
	}
	word := "already so"
	if made {
		word = "made"
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", word, what)
	return nil
}
