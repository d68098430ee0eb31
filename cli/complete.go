package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/fleet"
)

// completeWithin bounds what a shell waits for after a tab.
const completeWithin = 3 * time.Second

// completeNode offers the names of the nodes that the caller sees, and the ids
// of those without.
func (a *app) completeNode(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	var names []string
	in := map[string]any{"tenantId": a.tenant}
	for {
		var page fleet.NodesPage
		if a.call(ctx, "nodes", "list", in, &page) != nil {
			return names, cobra.ShellCompDirectiveNoFileComp // as far as it came
		}
		for _, n := range page.Items {
			name := n.Name
			if name == "" || strings.HasPrefix(begun, "node_") {
				name = n.ID
			}
			if strings.HasPrefix(name, begun) {
				names = append(names, name+"\t"+string(n.ProvisionState))
			}
		}
		if page.NextCursor == "" {
			slices.Sort(names)
			return names, cobra.ShellCompDirectiveNoFileComp
		}
		in["cursor"] = page.NextCursor
	}
}

// completeValues offers the values that a flag takes.
func completeValues(cmd *cobra.Command, f field) {
	if len(f.values) > 0 && !f.secret {
		// The flag was added just before, which is all that could fail.
		_ = cmd.RegisterFlagCompletionFunc(f.flag, cobra.FixedCompletions(f.values, cobra.ShellCompDirectiveNoFileComp))
	}
}
