package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/fleet"
)

// attentionItem is one thing that waits for a person.
type attentionItem struct {
	NodeID string `json:"nodeId"`
	Name   string `json:"name,omitempty"`
	// Kind is failed, condition, hold, waiting or slow.
	Kind  string     `json:"kind"`
	Since fleet.Time `json:"since"`
	What  string     `json:"what"`
	// Cause says more, Do what a person can do about it.
	Cause string `json:"cause,omitempty"`
	Do    string `json:"do,omitempty"`
	// Next goes on with a parked operation once that is done.
	Next      string `json:"next,omitempty"`
	Operation string `json:"operationId,omitempty"`
}

// attentionCmd lists what needs a person now.
func (a *app) attentionCmd() *cobra.Command {
	var site, pool string
	var slow time.Duration
	cmd := &cobra.Command{
		Use:   "attention",
		Short: "List what needs a person now: failed nodes, bad conditions, holds, operations that wait or take long",
		Long: "Reads nodes and operations, and lists what does not go on without a person, the oldest first, each with its cause\n" +
			"and what to do: nodes that failed (their operation is parked), conditions that are bad, holds, operations that wait for\n" +
			"somebody, and operations that have run for longer than --slow. Retired nodes are left out.",
		Args: arguments(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter := map[string]any{"tenantId": a.tenant}
			for name, v := range map[string]string{"siteId": site, "poolId": pool} {
				if v != "" {
					filter[name] = v
				}
			}
			if err := a.resolveNames(cmd.Context(), filter); err != nil {
				return err
			}
			items, err := a.attention(cmd.Context(), filter, slow)
			if err != nil {
				return err
			}
			return a.printAttention(items)
		},
	}
	f := cmd.Flags()
	f.StringVar(&site, "site-id", "", "only nodes of this site")
	f.StringVar(&pool, "pool-id", "", "only nodes of this pool")
	f.DurationVar(&slow, "slow", time.Hour, "how long an operation runs before it is listed")
	return cmd
}

func (a *app) attention(ctx context.Context, filter map[string]any, slow time.Duration) ([]attentionItem, error) {
	var items []attentionItem
	names := map[string]string{}
	err := pages(ctx, a, "nodes", filter, func(n fleet.Node) {
		names[n.ID] = n.Name
		if n.ProvisionState != fleet.Retired {
			items = append(items, attentionOf(n)...)
		}
	})
	if err != nil {
		return nil, err
	}
	for _, state := range []fleet.OperationState{fleet.OpPending, fleet.OpRunning, fleet.OpWaiting} {
		filter["state"] = state
		err := pages(ctx, a, "operations", filter, func(o fleet.Operation) {
			if it, ok := operationAttention(o, a.now(), slow); ok {
				it.Name = names[o.NodeID]
				items = append(items, it)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(items, func(x, y attentionItem) int { return x.Since.Compare(y.Since.Time) })
	return items, nil
}

// pages reads a list to its end.
func pages[T any](ctx context.Context, a *app, group string, filter map[string]any, each func(T)) error {
	defer delete(filter, "cursor")
	for {
		var page struct {
			Items      []T    `json:"items"`
			NextCursor string `json:"nextCursor"`
		}
		if err := a.call(ctx, group, "list", filter, &page); err != nil {
			return err
		}
		for _, it := range page.Items {
			each(it)
		}
		if page.NextCursor == "" {
			return nil
		}
		filter["cursor"] = page.NextCursor
	}
}

// reasonLeft is the reason of Connected where the agent left on purpose.
const reasonLeft = "left"

// ConditionDo is what a person does about a bad condition, by its type, or its
// type and reason.
var ConditionDo = map[string]string{
	"Connected/left":     "its agent left on purpose: let it join again, or computectl nodes cordon NODE and nodes delete NODE",
	"BmcReachable":       "see to the BMC's power, cable and address (computectl metal update NODE --bmc-address)",
	"BmcTrusted":         "find out why the certificate changed, then computectl metal accept-certificates NODE",
	"BmcAuthenticated":   "computectl metal set-credentials NODE",
	"Connected":          "look at the host and its nodeagent (computectl ssh NODE); nothing new is placed on it meanwhile",
	"HardwareHealthy":    "see what the BMC complains about (computectl metal get NODE), drain and repair",
	"InventoryMatches":   "computectl metal get NODE, then repair it, or put it into a pool that fits (metal update --pool-id)",
	"HardwareAccepted":   "see what is missing; mend it, then computectl nodes adopt NODE",
	"GpusAccepted":       "put it into a pool that fits, or mend it, then computectl nodes adopt NODE",
	"DriverPresent":      "install the GPUs' driver on the host, then computectl nodes adopt NODE",
	"DiskSpace":          "free space on the host's root file system, then computectl nodes adopt NODE",
	"ClockInSync":        "see to the host's time service, then computectl nodes adopt NODE",
	"KernelAccepted":     "boot a newer kernel, then computectl nodes adopt NODE",
	"GatewayReachable":   "see to the way from the host to the gateway, then computectl nodes adopt NODE",
	"InventoryAmbiguous": "compare the devices of computectl metal get NODE with the machine, then computectl metal inspect NODE --mode both",
	"DeviceMissing":      "a device that somebody holds is gone: computectl metal get NODE, tell its holder, drain and repair",
	"StateUnverified":    "computectl metal get NODE, look at the machine, then compute recover --node on the control plane",
	"IdentityAmbiguous":  "two nodes claim one machine: find the right one, then computectl nodes delete the other",
	"SshConflict":        "break-glass SSH does not work there: see the reason in docs/break-glass-access.md",
}

// attentionOf is what a node waits for. A condition that is bad because of what
// the node failed by is not said twice.
func attentionOf(n fleet.Node) []attentionItem {
	var items []attentionItem
	call := cmp.Or(n.Name, n.ID)
	if f := n.Failed; f != nil {
		it := attentionItem{NodeID: n.ID, Name: n.Name, Kind: "failed", Since: f.At, What: fmt.Sprintf("failed(%s) at %s", f.From, f.Step), Cause: f.Cause, Do: f.Remedy}
		if n.Operations != nil && n.Operations.Provision != "" {
			it.Operation = n.Operations.Provision
			it.Next = "computectl metal retry " + call + " --watch (or abort)"
		} else if verbs := waysOn(f.From); len(verbs) > 0 {
			it.Next = "nothing is parked; from here it takes: " + strings.Join(verbs, ", ")
		}
		items = append(items, it)
	}
	if h := n.Hold; h != nil {
		items = append(items, attentionItem{NodeID: n.ID, Name: n.Name, Kind: "hold", Since: h.Since, What: "held by " + h.By, Cause: h.Reason, Do: "computectl metal unhold " + call + " once it is over"})
	}
	left := slices.ContainsFunc(n.Conditions, func(c fleet.Condition) bool { return c.Type == "Connected" && c.Reason == reasonLeft })
	for _, c := range n.Conditions {
		if left && c.Type != "Connected" && !strings.HasPrefix(c.Type, "Bmc") {
			continue // nobody is there who could look again
		}
		do := cmp.Or(ConditionDo[c.Type+"/"+c.Reason], ConditionDo[c.Type])
		if !fleet.ConditionKinds[c.Type].Bad(c.Status) || n.Failed != nil && c.Message != "" && c.Message == n.Failed.Cause {
			continue
		}
		items = append(items, attentionItem{NodeID: n.ID, Name: n.Name, Kind: "condition", Since: c.Since,
			What: strings.TrimSuffix(fmt.Sprintf("%s %s, %s", c.Type, c.Status, c.Reason), ", "), Cause: c.Message,
			Do: strings.ReplaceAll(do, "NODE", call)})
	}
	return items
}

// waysOn are the verbs that go on from a failed node whose operation has ended,
// as commands of the group metal; what only mends or ends it is left out.
func waysOn(from fleet.ProvisionState) []string {
	var ways []string
	for _, row := range fleet.Table {
		if row.State != fleet.Failed || row.FailedFrom != from {
			continue
		}
		for _, v := range row.Admits {
			switch v {
			case fleet.VerbRetry, fleet.VerbAbort, fleet.VerbPower, fleet.VerbSetCredentials, fleet.VerbUpdate:
			default:
				ways = append(ways, fleet.Kebab(string(v)))
			}
		}
	}
	return ways
}

// operationAttention is an operation that waits for somebody, or runs for long.
func operationAttention(o fleet.Operation, now time.Time, slow time.Duration) (attentionItem, bool) {
	it := attentionItem{NodeID: o.NodeID, Operation: o.ID, Since: o.CreatedAt}
	if w := o.WaitingFor; w != nil {
		it.Kind, it.Since = "waiting", w.Since
		it.What = fmt.Sprintf("%s waits for %s", o.Verb, w.Actor)
		it.Cause, it.Do = w.What, strings.Join(w.YouCan, ", ")
		if w.Deadline != nil {
			it.Cause += fmt.Sprintf("; until %s, then %s", w.Deadline.Format(fleet.TimeFormat), w.Then)
		}
		return it, true
	}
	if now.Sub(o.CreatedAt.Time) < slow {
		return it, false
	}
	it.Kind, it.What = "slow", fmt.Sprintf("%s is %s", o.Verb, o.State)
	for _, s := range o.Steps {
		if s.State == fleet.StepRunning {
			it.What, it.Cause = it.What+" at "+s.Name, s.Detail
		}
	}
	return it, true
}

func (a *app) printAttention(items []attentionItem) error {
	if a.output == "json" {
		raw, err := json.Marshal(map[string]any{"items": append([]attentionItem{}, items...)})
		if err != nil {
			return fmt.Errorf("print the list: %w", err)
		}
		return a.print(raw)
	}
	if len(items) == 0 {
		fmt.Fprintln(a.err, "nothing needs anybody")
	}
	for _, it := range items {
		fmt.Fprintf(a.out, "%s  %s, for %s\n", cmp.Or(it.Name, it.NodeID), it.What, ago(a.now().Sub(it.Since.Time)))
		for _, line := range []struct{ label, text string }{{"why", it.Cause}, {"to do", it.Do}, {"then", it.Next}, {"operation", it.Operation}} {
			if line.text != "" {
				fmt.Fprintf(a.out, "    %s: %s\n", line.label, line.text)
			}
		}
	}
	return nil
}

// ago is a time for a person who looks: its two largest units.
func ago(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
	}
}
