package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/fleet"
)

// acceptKind is a change of a BMC that a person accepts: its certificate, or the
// machine behind it.
type acceptKind struct {
	use, short, long, noun string
	// change is what the node shows in place of what is recorded, and the input
	// of metal/update that accepts it; false when there is nothing to accept.
	change func(n fleet.MetalNode) (before, after string, update map[string]any, ok bool)
}

var accepts = []acceptKind{
	{"accept-certificates", "Accept the new certificates of BMCs, after showing them",
		"Lists the machines whose BMC shows another certificate than the pinned one, asks, and pins the new one of each.\n" +
			"No password is sent to a BMC before. Compare the fingerprints with the BMCs' own pages first: a certificate\n" +
			"that nobody changed is a sign of somebody between you and the BMC.",
		"certificate", changedCertificate},
	{"accept-identities", "Accept the new identities of repaired machines, after showing them",
		"Lists the machines whose BMC shows another serial or UUID than the one enrolled, asks, and records the new\n" +
			"one of each. It is right after a board was replaced, and wrong where cables or addresses were swapped.",
		"identity", changedIdentity},
}

func changedCertificate(n fleet.MetalNode) (before, after string, update map[string]any, ok bool) {
	if n.BMC == nil || n.BMC.TLS.Shown == "" {
		return "", "", nil, false
	}
	tls := map[string]any{"fingerprint": n.BMC.TLS.Shown}
	return n.BMC.TLS.Fingerprint, n.BMC.TLS.Shown, map[string]any{"bmc": map[string]any{"tls": tls}}, true
}

func changedIdentity(n fleet.MetalNode) (before, after string, update map[string]any, ok bool) {
	if n.BMC == nil || n.BMC.ShownIdentity == nil {
		return "", "", nil, false
	}
	accept := map[string]any{}
	is := *n.BMC.ShownIdentity
	if _, proves := fleet.ProvingUUID(is.UUID); proves && is.UUID != n.BMC.Identity.UUID {
		accept["uuid"] = is.UUID
	}
	if is.Serial != "" && is.Serial != n.BMC.Identity.Serial {
		accept["serial"] = is.Serial
	}
	text := func(id fleet.BMCIdentity) string { return "serial " + orDash(id.Serial) + " UUID " + orDash(id.UUID) }
	return text(n.BMC.Identity), text(is), map[string]any{"acceptIdentity": accept}, len(accept) > 0
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// acceptance is one machine with what is to be accepted of it.
type acceptance struct {
	NodeID  string `json:"nodeId"`
	Name    string `json:"name,omitempty"`
	Address string `json:"bmcAddress"`
	Before  string `json:"before"`
	After   string `json:"after"`
	// Outcome is accepted, failed or listed, Message why.
	Outcome string `json:"outcome"`
	Message string `json:"message,omitempty"`

	version int64
	parked  string
	update  map[string]any
}

// errAccept ends an acceptance that some machine did not take.
var errAccept = errors.New("not all were accepted")

func (a *app) acceptCmd(kind acceptKind) *cobra.Command {
	var yes bool
	var site, pool, reason string
	cmd := &cobra.Command{
		Use:   kind.use + " [NODE...]",
		Short: kind.short,
		Long: kind.long + "\n\nWithout NODE it is every machine of the tenant that shows one. Each is updated with the version that was\n" +
			"listed as its precondition, and audited. Without --yes the answer is read from standard input. The exit code\n" +
			"is 3 when one was not accepted.",
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := a.shown(cmd.Context(), kind, map[string]string{"siteId": site, "poolId": pool}, args)
			if err != nil {
				return err
			}
			return a.accept(cmd.Context(), kind, list, yes, reason)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&yes, "yes", "y", false, "accept what is listed without asking")
	f.StringVar(&site, "site-id", "", "only machines of this site")
	f.StringVar(&pool, "pool-id", "", "only machines of this pool")
	f.StringVar(&reason, "reason", "", "why, for events and audit")
	return cmd
}

// shown are the machines that show something else than what is recorded, among
// the named ones or all.
func (a *app) shown(ctx context.Context, kind acceptKind, filter map[string]string, names []string) ([]acceptance, error) {
	in := map[string]any{"tenantId": a.tenant}
	for k, v := range filter {
		if v != "" {
			in[k] = v
		}
	}
	var out []acceptance
	found := map[string]bool{}
	for {
		var page fleet.MetalPage
		if err := a.call(ctx, "metal", "list", in, &page); err != nil {
			return nil, err
		}
		for _, n := range page.Items {
			if len(names) > 0 && !slices.Contains(names, n.ID) && !slices.Contains(names, n.Name) {
				continue
			}
			found[n.ID], found[n.Name] = true, true
			before, after, update, ok := kind.change(n)
			if !ok {
				continue
			}
			one := acceptance{NodeID: n.ID, Name: n.Name, Address: n.BMC.Address, Before: before, After: after, Outcome: "listed", version: n.Version, update: update}
			if n.ProvisionState == fleet.Failed && n.Operations != nil && n.Operations.Provision != "" {
				one.parked = n.Operations.Provision
			}
			out = append(out, one)
		}
		if page.NextCursor == "" {
			break
		}
		in["cursor"] = page.NextCursor
	}
	for _, name := range names {
		if !found[name] {
			return nil, fmt.Errorf("no machine of the tenant has the id or name %q", name)
		}
	}
	return out, nil
}

func (a *app) accept(ctx context.Context, kind acceptKind, list []acceptance, yes bool, reason string) error {
	if len(list) == 0 {
		return a.accepted(kind, list)
	}
	if a.output != "json" {
		w := tabwriter.NewWriter(a.out, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "NODE\tNAME\tBMC\tRECORDED\tSHOWN")
		for _, one := range list {
			fmt.Fprintln(w, strings.Join([]string{one.NodeID, one.Name, one.Address, one.Before, one.After}, "\t"))
		}
		if err := w.Flush(); err != nil {
			return fmt.Errorf("print the list: %w", err)
		}
	}
	if !yes && !a.confirmed(fmt.Sprintf("Accept what is shown as the %s of these %d? [y/N] ", kind.noun, len(list))) {
		return errors.New("nothing was accepted; pass --yes to accept without being asked")
	}
	for i := range list {
		one := &list[i]
		in := map[string]any{"tenantId": a.tenant, "nodeId": one.NodeID, "version": one.version}
		if reason != "" {
			in["reason"] = reason
		}
		for k, v := range one.update {
			in[k] = v
		}
		var out fleet.MetalChangeOut
		one.Outcome = "accepted"
		if err := a.call(ctx, "metal", "update", in, &out); err != nil {
			one.Outcome, one.Message = "failed", err.Error()
		}
	}
	return a.accepted(kind, list)
}

// confirmed asks a person; whoever gives no answer said no.
func (a *app) confirmed(question string) bool {
	fmt.Fprint(a.err, question)
	if a.in == nil {
		return false
	}
	var answer string
	// It reads no further than the line: what follows is another command's.
	_, err := fmt.Fscanln(a.in, &answer)
	fmt.Fprintln(a.err)
	answer = strings.ToLower(answer)
	return err == nil && (answer == "y" || answer == "yes")
}

// accepted tells what became of each.
func (a *app) accepted(kind acceptKind, list []acceptance) error {
	failed := 0
	for _, one := range list {
		if one.Outcome == "failed" {
			failed++
		}
	}
	if a.output == "json" {
		raw, err := json.Marshal(map[string]any{"items": append([]acceptance{}, list...)})
		if err != nil {
			return fmt.Errorf("print the result: %w", err)
		}
		if err := a.print(raw); err != nil {
			return err
		}
	} else {
		for _, one := range list {
			name := one.Name
			if name == "" {
				name = one.NodeID
			}
			fmt.Fprintln(a.out, strings.TrimSuffix(one.Outcome+" "+name+": "+one.Message, ": "))
			if one.Outcome == "accepted" && one.parked != "" {
				fmt.Fprintf(a.out, "  its operation %s is parked: computectl metal retry %s\n", one.parked, name)
			}
		}
		if len(list) == 0 {
			fmt.Fprintf(a.out, "no machine shows another %s than the recorded one\n", kind.noun)
		} else {
			fmt.Fprintf(a.out, "%d of %d accepted\n", len(list)-failed, len(list))
		}
	}
	if failed > 0 {
		return errAccept
	}
	return nil
}
