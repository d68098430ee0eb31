package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/bettercompute/compute/bmc/check"
	"github.com/bettercompute/compute/fleet"
)

// print writes an answer as a table or as JSON.
func (a *app) print(answer json.RawMessage) error {
	switch a.output {
	case "json":
		var buf bytes.Buffer
		if err := json.Indent(&buf, answer, "", "  "); err != nil {
			return fmt.Errorf("read the API's answer: %w", err)
		}
		fmt.Fprintln(a.out, buf.String())
		return nil
	case "table":
		var v map[string]any
		dec := json.NewDecoder(bytes.NewReader(answer))
		dec.UseNumber()
		if err := dec.Decode(&v); err != nil {
			return fmt.Errorf("read the API's answer: %w", err)
		}
		if items, ok := v["items"].([]any); ok {
			return a.table(items, v["nextCursor"])
		}
		for _, name := range members(v) {
			a.object(name, v[name], "")
		}
		return nil
	default:
		return usagef("--output is table or json, not %q", a.output)
	}
}

// columns are shown of listed items, those that any item has. What can be long
// comes last: it pushes nothing off the screen.
var columns = []string{"id", "serial", "principal", "issuedBy", "validBefore", "name", "at", "type", "method", "identity", "role", "on", "state", "failedFrom", "provisionState", "power", "verb", "step", "nodeId", "operation",
	"cordoned", "paused", "noScheduleReasons", "poolId", "siteId", "reservationId", "gpuModel", "gpus", "used", "queue", "holder", "from", "to", "uses", "maxUses", "admits", "outcome", "revokedBy", "revokeReason", "reason", "actor", "version",
	"createdAt", "endedAt", "expiresAt", "revokedAt", "createdBy", "grantedBy", "requestedBy", "requestId", "data", "waitingFor", "cause"}

// column is what a listed item shows in a column: its member of that name, or
// what a person on call looks for deeper in it.
func column(row map[string]any, name string) any {
	member := func(path ...string) any {
		var v any = row
		for _, p := range path {
			m, _ := v.(map[string]any)
			v = m[p]
		}
		return v
	}
	switch name {
	case "provisionState":
		if from := member("failed", "from"); from != nil {
			return fmt.Sprintf("%v(%v)", row[name], from)
		}
	case "power":
		return member("power", "state")
	case "operation":
		return first(member("operations", "provision"), member("operations", "drain"))
	case "step":
		return first(member("error", "step"), runningStep(row["steps"]))
	case "waitingFor":
		return member("waitingFor", "what")
	case "cause":
		return first(member("failed", "cause"), member("error", "cause"))
	}
	return row[name]
}

// first is the first value that there is.
func first(values ...any) any {
	for _, v := range values {
		if v != nil {
			return v
		}
	}
	return nil
}

// runningStep is the name of the step at which an operation is, nil for none.
func runningStep(steps any) any {
	list, _ := steps.([]any)
	for _, s := range list {
		if step, ok := s.(map[string]any); ok && step["state"] == string(fleet.StepRunning) {
			return step["name"]
		}
	}
	return nil
}

func (a *app) table(items []any, next any) error {
	if len(items) == 0 {
		fmt.Fprintln(a.err, "none")
	}
	var used []string
	for _, c := range columns {
		for _, it := range items {
			if row, ok := it.(map[string]any); ok && column(row, c) != nil {
				used = append(used, c)
				break
			}
		}
	}
	var buf bytes.Buffer
	w := tabwriter.NewWriter(&buf, 0, 4, 2, ' ', 0)
	if len(used) > 0 {
		fmt.Fprintln(w, strings.ToUpper(strings.Join(used, "\t")))
	}
	for _, it := range items {
		row, _ := it.(map[string]any)
		cells := make([]string, len(used))
		for i, c := range used {
			cells[i] = cell(column(row, c))
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	for line := range strings.Lines(buf.String()) {
		fmt.Fprintln(a.out, strings.TrimRight(line, " \n"))
	}
	if next != nil {
		fmt.Fprintf(a.err, "more: --cursor %v\n", next)
	}
	return nil
}

func cell(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case []any:
		parts := make([]string, len(v))
		for i, p := range v {
			parts[i] = cell(p)
		}
		return strings.Join(parts, ",")
	case map[string]any:
		return pairs(v)
	default:
		return fmt.Sprint(v)
	}
}

// What a person looks for comes first; what is long, and sentences, last.
var (
	membersFirst = []string{"id", "name", "type", "verb", "provisionState", "state", "status", "reason", "failed", "error", "waitingFor", "operations", "power", "conditions"}
	membersLast  = []string{"steps", "labels", "bmc", "inventory", "detail", "message", "cause", "remedy"}
)

// members are the names of an object's members in the order to show them.
func members(m map[string]any) []string {
	rank := func(name string) int {
		if i := slices.Index(membersFirst, name); i >= 0 {
			return i - len(membersFirst)
		}
		return slices.Index(membersLast, name) + 1
	}
	return slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
}

// object prints nested members indented, lists of objects one a line.
func (a *app) object(name string, v any, indent string) {
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 {
			return
		}
		fmt.Fprintf(a.out, "%s%s:\n", indent, name)
		for _, k := range members(v) {
			a.object(k, v[k], indent+"  ")
		}
	case []any:
		if len(v) == 0 {
			return
		}
		if name == "quirks" {
			fmt.Fprintf(a.out, "%squirks:\n", indent)
			for _, q := range v {
				fmt.Fprintln(a.out, strings.TrimSuffix(fmt.Sprintf("%s  - %s: %s", indent, cell(q), check.QuirkText(cell(q))), ": "))
			}
			return
		}
		if _, objects := v[0].(map[string]any); !objects {
			fmt.Fprintf(a.out, "%s%s: %s\n", indent, name, cell(v))
			return
		}
		fmt.Fprintf(a.out, "%s%s:\n", indent, name)
		for _, it := range v {
			m, _ := it.(map[string]any)
			fmt.Fprintf(a.out, "%s  - %s\n", indent, pairs(m))
		}
	default:
		fmt.Fprintf(a.out, "%s%s: %s\n", indent, name, cell(v))
	}
}

// pairs is an object on one line, without the members that are empty.
func pairs(m map[string]any) string {
	var parts []string
	for _, k := range members(m) {
		if text := cell(m[k]); text != "" {
			parts = append(parts, k+"="+text)
		}
	}
	return strings.Join(parts, " ")
}

func (a *app) printEvent(e fleet.Event) {
	if a.output == "json" {
		if b, err := json.Marshal(e); err == nil {
			fmt.Fprintln(a.out, string(b))
		}
		return
	}
	fmt.Fprintf(a.out, "%s  %-32s %-20s %s\n", e.At.Format(fleet.TimeFormat), e.Type, e.Actor, pairs(e.Data))
}
