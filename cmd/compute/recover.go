package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"go.temporal.io/api/serviceerror"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/worker"
)

// recoverConfig is what compute recover is told.
type recoverConfig struct {
	stateConfig
	temporal   worker.Connection
	node, keep string
	all        bool
}

// The sides that compute recover can take.
const (
	keepPostgres = "postgres"
	keepTemporal = "temporal"
)

func newRecoverCmd() *cobra.Command {
	var c recoverConfig
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Say which of Postgres and Temporal is right after a restore",
		Long: "Without --keep it shows what they disagree about. Until that is judged, destructive verbs are refused and rows to\n" +
			"deliver are held.\n\n" +
			"--keep postgres: what the database says holds. Workflows it does not know are terminated; nodes keep their states.\n" +
			"--keep temporal: what Temporal did holds. Workflows the database does not know are terminated too, since their\n" +
			"operations are gone, and their nodes become failed from what was being done, so that a person looks at the machine.\n\n" +
			"Judge one node (--node) or all that is left (--all). Stop no worker for it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runRecover(cmd, c) },
	}
	c.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&c.temporal.Address, "temporal-address", os.Getenv("TEMPORAL_ADDRESS"), "host and port of Temporal (TEMPORAL_ADDRESS)")
	f.StringVar(&c.temporal.Namespace, "temporal-namespace", os.Getenv("TEMPORAL_NAMESPACE"), "namespace of Temporal (TEMPORAL_NAMESPACE)")
	f.StringVar(&c.keep, "keep", "", "which side is right: postgres or temporal")
	f.StringVar(&c.node, "node", "", "judge what touches this node")
	f.BoolVar(&c.all, "all", false, "judge all that is left")
	return cmd
}

func runRecover(cmd *cobra.Command, c recoverConfig) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	if c.keep != "" && c.keep != keepPostgres && c.keep != keepTemporal {
		return errors.New("--keep is postgres or temporal")
	}
	if c.keep != "" && c.all == (c.node != "") {
		return errors.New("say what to judge: --node ID or --all")
	}
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	d, err := s.LoadDisagreements(ctx)
	if err != nil {
		return err
	}
	if c.keep == "" {
		showDisagreements(out, d)
		return nil
	}
	if c.node != "" && !concerns(d, c.node) {
		return fmt.Errorf("there is nothing to judge of node %q: no workflow of it is unknown and it is not StateUnverified; compute recover lists what there is, by id", c.node)
	}
	if err := judge(ctx, c, s, d); err != nil {
		return err
	}
	done, err := s.Judged(ctx, c.node)
	if err != nil {
		return err
	}
	switch {
	case done:
		fmt.Fprintln(out, "recovered: verbs are admitted and held rows are delivered")
	case d.Epoch.RecoveryPending:
		fmt.Fprintln(out, "judged; what is left: compute recover")
	default:
		fmt.Fprintln(out, "judged; no recovery is pending")
	}
	return nil
}

// showDisagreements lists what there is to judge.
func showDisagreements(out io.Writer, d store.Disagreements) {
	switch {
	case d.Epoch.RecoveryPending:
		fmt.Fprintf(out, "recovery is pending (%s, epoch %d); %d rows are held\n", d.Epoch.Reason, d.Epoch.Number, d.Held)
	case len(d.Unknown)+len(d.Unverified) == 0:
		fmt.Fprintf(out, "nothing to recover: epoch %d, no disagreement is known\n", d.Epoch.Number)
	default:
		fmt.Fprintf(out, "no recovery is pending (epoch %d); to judge:\n", d.Epoch.Number)
	}
	for _, w := range d.Unknown {
		fmt.Fprintf(out, "  workflow %s (%s) of node %s, open %t: not in the database\n", w.WorkflowID, w.Type, w.NodeID, w.Open)
	}
	for _, n := range d.Unverified {
		fmt.Fprintf(out, "  node %s is unverified: %s\n", n.NodeID, n.Why)
	}
}

// concerns says whether there is something to judge of a node.
func concerns(d store.Disagreements, node string) bool {
	return slices.ContainsFunc(d.Unknown, func(w store.UnknownWorkflow) bool { return w.NodeID == node }) ||
		slices.ContainsFunc(d.Unverified, func(n store.UnverifiedNode) bool { return n.NodeID == node })
}

// judge ends the unknown workflows and, where Temporal is right, makes their
// nodes failed.
func judge(ctx context.Context, c recoverConfig, s *store.Store, d store.Disagreements) error {
	c.temporal.Log = newLog()
	client, _, err := worker.Connect(ctx, c.temporal)
	if err != nil {
		return err
	}
	defer client.Close()
	for _, w := range d.Unknown {
		if c.node != "" && w.NodeID != c.node {
			continue
		}
		var gone *serviceerror.NotFound
		if err := client.TerminateWorkflow(ctx, w.WorkflowID, "", "the database was restored and does not know this operation"); err != nil && !errors.As(err, &gone) {
			return fmt.Errorf("terminate workflow %s: %w", w.WorkflowID, err)
		}
		if c.keep != keepTemporal || w.NodeID == "" {
			continue
		}
		err := s.FailUnverified(ctx, w.NodeID, verbOf(w.Type), "admin")
		if err != nil && fleet.CodeOf(err) != fleet.CodeNotFound {
			return err
		}
	}
	return nil
}

func verbOf(workflowType string) fleet.Verb {
	for verb, name := range fleet.WorkflowTypes {
		if name == workflowType {
			return verb
		}
	}
	return ""
}
