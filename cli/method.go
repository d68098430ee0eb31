package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/fleet"
)

// named are the members that a command takes as its argument, and how the
// argument is written in its usage.
var named = []struct{ member, usage string }{
	{"nodeId", "NODE"}, {"operationId", "OPERATION|NODE"}, {"allocationId", "ALLOCATION"}, {"reservationId", "RESERVATION"}, {"poolId", "POOL"}, {"siteId", "SITE"}, {"bindingId", "BINDING"}, {"serviceTokenId", "TOKEN"},
}

// argumentOf is the member that a method takes as its argument: what the
// method is about. Lists and creations have none.
func argumentOf(m fleet.Method, fields []field) (member, usage string) {
	if m.Name == "list" || m.Name == "create" || m.Name == "enroll" || m.Name == "audit" {
		return "", ""
	}
	for _, n := range named {
		if slices.ContainsFunc(fields, func(f field) bool { return f.required && len(f.path) == 1 && f.path[0] == n.member }) {
			return n.member, n.usage
		}
	}
	return "", ""
}

// methodCmd is the command of a method.
func (a *app) methodCmd(m fleet.Method) *cobra.Command {
	fields := fieldsOf(reflect.TypeOf(m.In), nil)
	member, usage := argumentOf(m, fields)
	fields = slices.DeleteFunc(fields, func(f field) bool {
		return len(f.path) == 1 && (f.path[0] == "tenantId" || f.path[0] == member)
	})
	cmd := &cobra.Command{Use: strings.TrimSpace(fleet.Kebab(m.Name) + " " + usage), Short: strings.TrimSuffix(m.Summary, "."),
		Long: strings.TrimSpace(m.Summary + "\n\n" + m.Doc), Args: arguments(usage)}
	for _, f := range fields {
		f.addFlag(cmd)
		completeValues(cmd, f)
		a.completeFlag(cmd, f)
	}
	cmd.ValidArgsFunction = a.completeArgument(member)
	cmd.Flags().String("input", "", "the whole input as a JSON object; a file, - for standard input; flags win over it")
	if startsOperation(m) || m.FullName() == "operations/get" {
		cmd.Flags().BoolP("watch", "w", false, "show the operation's steps until it ends")
	}
	if m.FullName() == "nodes/events" {
		cmd.Flags().Bool("follow", false, "go on printing events as they happen")
	}
	if m.FullName() == "metal/enroll" {
		bulkFlags(cmd, fields)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if from := cmd.Flags().Lookup("from"); m.FullName() == "metal/enroll" && from.Value.String() != "" {
			return a.enrollSheet(cmd, m, fields)
		}
		in, err := a.input(cmd, m, fields, member, args)
		if err != nil {
			return err
		}
		if follow := cmd.Flags().Lookup("follow"); follow != nil && follow.Value.String() == "true" {
			return a.followEvents(cmd.Context(), in)
		}
		var answer json.RawMessage
		if err := a.call(cmd.Context(), m.Group, m.Name, in, &answer); err != nil {
			return refusal(err, cmd, args, fields)
		}
		if watch := cmd.Flags().Lookup("watch"); watch != nil && watch.Value.String() == "true" {
			return a.watchAnswer(cmd.Context(), m, answer)
		}
		return a.print(answer)
	}
	return cmd
}

// refusal adds to a refused call what was typed and which flags give the members
// that the refusal names.
func refusal(err error, cmd *cobra.Command, args []string, fields []field) error {
	var p *problem
	if errors.As(err, &p) {
		_, under, _ := strings.Cut(cmd.CommandPath(), " ")
		p.command = strings.Join(append([]string{under}, args...), " ")
		p.given = fields
	}
	return err
}

// startsOperation says whether a method begins an operation that can be watched.
func startsOperation(m fleet.Method) bool {
	return reflect.TypeOf(m.Out) == reflect.TypeFor[fleet.MetalOperationOut]() || m.FullName() == "nodes/adopt" || m.FullName() == "nodes/drain"
}

// arguments says what is wrong with the number of arguments.
func arguments(usage string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case usage == "" && len(args) > 0:
			return usagef("%s takes no argument, and there is %q (a flag that is yes or no is written --flag=false)\n  usage: %s", cmd.CommandPath(), args[0], cmd.UseLine())
		case usage != "" && len(args) == 0:
			return usagef("%s of which %s?\n  usage: %s", cmd.CommandPath(), usage, cmd.UseLine())
		case usage != "" && len(args) > 1:
			return usagef("%s takes one %s, and there are %d: %s\n  usage: %s", cmd.CommandPath(), usage, len(args), strings.Join(args, ", "), cmd.UseLine())
		}
		return nil
	}
}

// input makes a method's input of --input, flags, the argument and the
// environment. A name or serial of a node becomes its id.
func (a *app) input(cmd *cobra.Command, m fleet.Method, fields []field, member string, args []string) (map[string]any, error) {
	in, err := a.gather(cmd, m, fields)
	if err != nil {
		return nil, err
	}
	if len(args) == 1 {
		in[member] = args[0]
	}
	if err := a.resolveOperation(cmd.Context(), in); err != nil {
		return nil, err
	}
	if err := a.resolveNode(cmd.Context(), in); err != nil {
		return nil, err
	}
	if err := a.resolveNames(cmd.Context(), in); err != nil {
		return nil, err
	}
	var missing []string
	for _, f := range fields {
		if f.required && len(f.path) == 1 && in[f.path[0]] == nil {
			missing = append(missing, "--"+f.name())
		}
	}
	if len(missing) > 0 {
		return nil, usagef("needed and not given: %s; see %s --help", strings.Join(missing, ", "), cmd.CommandPath())
	}
	return in, nil
}

// gather is what --input, flags and the environment say of a method's input.
func (a *app) gather(cmd *cobra.Command, m fleet.Method, fields []field) (map[string]any, error) {
	path, err := cmd.Flags().GetString("input")
	if err != nil {
		return nil, usageError{err}
	}
	in, err := a.readInput(path)
	if err != nil {
		return nil, err
	}
	for _, f := range fields {
		v, given, err := f.value(cmd, a)
		if err != nil {
			return nil, err
		}
		if given {
			put(in, f.path, v)
		}
	}
	if a.tenant != "" {
		in["tenantId"] = a.tenant
	}
	if in["tenantId"] == nil {
		return nil, usagef("no tenant: set COMPUTE_TENANT or pass --tenant")
	}
	a.defaults(in, m, fields)
	return in, nil
}

// defaults takes a needed site and pool from the environment.
func (a *app) defaults(in map[string]any, m fleet.Method, fields []field) {
	for member, env := range map[string]string{"siteId": "COMPUTE_SITE", "poolId": "COMPUTE_POOL"} {
		needed := slices.ContainsFunc(fields, func(f field) bool { return f.required && len(f.path) == 1 && f.path[0] == member })
		if v := os.Getenv(env); needed && in[member] == nil && v != "" && m.Kind == fleet.KindMutation {
			in[member] = v
		}
	}
}

// resolveOperation replaces a node in operationId by its operation: the one that
// is under way or parked, else the last one.
func (a *app) resolveOperation(ctx context.Context, in map[string]any) error {
	given, ok := in["operationId"].(string)
	if !ok || given == "" || fleet.MatchPattern("operationId", given) {
		return nil
	}
	if strings.HasPrefix(given, "op_") {
		return usagef("%q is no whole operation id; computectl operations list shows them", given)
	}
	node := map[string]any{"tenantId": in["tenantId"], "nodeId": given}
	if err := a.resolveNode(ctx, node); err != nil {
		return err
	}
	var page fleet.OperationsPage
	if err := a.call(ctx, "operations", "list", node, &page); err != nil {
		return fmt.Errorf("look up the operation of node %q: %w", given, err)
	}
	if len(page.Items) == 0 {
		return fmt.Errorf("node %s has had no operation", given)
	}
	op := page.Items[0]
	for _, o := range page.Items {
		if o.EndedAt == nil {
			op = o
			break
		}
	}
	in["operationId"] = op.ID
	return nil
}

// resolveNode replaces a name or serial in nodeId by the node's id.
func (a *app) resolveNode(ctx context.Context, in map[string]any) error {
	given, ok := in["nodeId"].(string)
	if !ok || given == "" || fleet.MatchPattern("nodeId", given) {
		return nil
	}
	for _, by := range []string{"name", "serial"} {
		var page fleet.MetalPage
		err := a.call(ctx, "metal", "list", map[string]any{"tenantId": in["tenantId"], by: given}, &page)
		var p *problem
		if errors.As(err, &p) && p.Code == fleet.CodeAccessDenied {
			return a.resolveName(ctx, in, given)
		}
		if err != nil {
			return fmt.Errorf("look up node %q: %w", given, err)
		}
		switch len(page.Items) {
		case 0:
		case 1:
			in["nodeId"] = page.Items[0].ID
			return nil
		default:
			ids := make([]string, len(page.Items))
			for i, n := range page.Items {
				ids[i] = n.ID
			}
			return usagef("%d nodes have %s %q: name one by its id: %s", len(ids), by, given, strings.Join(ids, ", "))
		}
	}
	// Nodes of others that are offered to the tenant have no machines to read.
	return a.resolveName(ctx, in, given)
}

// resolveName is resolveNode for nodes whose machines one may not read: it looks
// for the name among the nodes that one sees.
func (a *app) resolveName(ctx context.Context, in map[string]any, name string) error {
	ask := map[string]any{"tenantId": in["tenantId"]}
	var ids []string
	for {
		var page fleet.NodesPage
		if err := a.call(ctx, "nodes", "list", ask, &page); err != nil {
			return fmt.Errorf("look up node %q: %w", name, err)
		}
		for _, n := range page.Items {
			if n.Name == name {
				ids = append(ids, n.ID)
			}
		}
		if page.NextCursor == "" {
			break
		}
		ask["cursor"] = page.NextCursor
	}
	switch len(ids) {
	case 0:
		return fmt.Errorf("no node that you may see has the id, name or serial %q in tenant %v", name, in["tenantId"])
	case 1:
		in["nodeId"] = ids[0]
		return nil
	default: // a name is unique in its site only
		return usagef("%d nodes have name %q: name one by its id: %s", len(ids), name, strings.Join(ids, ", "))
	}
}
