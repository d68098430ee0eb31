package cli

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"github.com/spf13/cobra"
)

// namedThing is a pool or a site as far as its name goes.
type namedThing struct{ ID, Name string }

// resolveNames replaces the names of pools and sites in an input by their ids.
// Each is looked up once: a sheet names the same ones in all its rows.
func (a *app) resolveNames(ctx context.Context, in map[string]any) error {
	for _, of := range []struct{ member, group string }{{"poolId", "pools"}, {"siteId", "sites"}} {
		given, ok := in[of.member].(string)
		if !ok {
			continue
		}
		key := of.member + " " + given
		if a.names[key] == "" {
			if err := a.resolveNamed(ctx, in, of.member, of.group); err != nil {
				return err
			}
			a.names[key], _ = in[of.member].(string)
		}
		in[of.member] = a.names[key]
	}
	return nil
}

// resolveNamed looks a name up. Pools of others are not listed, and are named by
// their ids.
func (a *app) resolveNamed(ctx context.Context, in map[string]any, member, group string) error {
	given, ok := in[member].(string)
	if !ok || given == "" || strings.HasPrefix(given, strings.TrimSuffix(member, "Id")+"_") {
		return nil
	}
	var ids []string
	err := pages(ctx, a, group, map[string]any{"tenantId": in["tenantId"]}, func(t namedThing) {
		if t.Name == given {
			ids = append(ids, t.ID)
		}
	})
	kind := strings.TrimSuffix(group, "s")
	switch {
	case err != nil:
		return fmt.Errorf("look up %s %q: %w", kind, given, err)
	case len(ids) == 0:
		return fmt.Errorf("no %s of tenant %v has the id or name %q; computectl %s list shows them", kind, in["tenantId"], given, group)
	case len(ids) > 1:
		return usagef("%d %s have the name %q: name one by its id: %s", len(ids), group, given, strings.Join(ids, ", "))
	}
	in[member] = ids[0]
	return nil
}

// completeNamed offers the names of pools or sites.
func (a *app) completeNamed(group string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
		defer cancel()
		var names []string
		// As far as it came: a completion says no error.
		_ = pages(ctx, a, group, map[string]any{"tenantId": a.tenant}, func(t namedThing) {
			if strings.HasPrefix(t.Name, begun) {
				names = append(names, t.Name+"\t"+t.ID)
			}
		})
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag offers what a flag that names a node, pool or site takes.
func (a *app) completeFlag(cmd *cobra.Command, f field) {
	var by cobra.CompletionFunc
	switch f.path[len(f.path)-1] {
	case "nodeId":
		by = func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
			return a.completeNode(cmd, nil, begun)
		}
	case "poolId":
		by = a.completeNamed("pools")
	case "siteId":
		by = a.completeNamed("sites")
	}
	if by != nil && f.kind.Kind() == reflect.String {
		// The flag was added just before, which is all that could fail.
		_ = cmd.RegisterFlagCompletionFunc(f.name(), by)
	}
}

// completeArgument offers what a command takes as its argument.
func (a *app) completeArgument(member string) cobra.CompletionFunc {
	named := map[string]string{"poolId": "pools", "siteId": "sites"}
	switch {
	case member == "nodeId", member == "operationId":
		return a.completeNode
	case named[member] != "":
		complete := a.completeNamed(named[member])
		return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return complete(cmd, args, begun)
		}
	}
	return nil
}
