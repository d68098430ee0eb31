package cli

import (
	"bytes"
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
		for _, name := range slices.Sorted(maps.Keys(v)) {
			a.object(name, v[name], "")
		}
		return nil
	default:
		return usagef("--output is table or json, not %q", a.output)
	}
}

// columns are shown of listed items, those that any item has.
var columns = []string{"id", "serial", "principal", "issuedBy", "validBefore", "name", "at", "type", "method", "identity", "role", "state", "failedFrom", "provisionState", "verb", "nodeId", "siteId", "poolId",
	"cordoned", "noScheduleReasons", "gpuModel", "gpus", "used", "holder", "from", "to", "admits", "outcome", "revokedBy", "revokeReason", "reason", "actor", "data", "version", "createdAt", "endedAt", "expiresAt"}

func (a *app) table(items []any, next any) error {
	var used []string
	for _, c := range columns {
		for _, it := range items {
			if row, ok := it.(map[string]any); ok && row[c] != nil {
				used = append(used, c)
				break
			}
		}
	}
	w := tabwriter.NewWriter(a.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, strings.ToUpper(strings.Join(used, "\t")))
	for _, it := range items {
		row, _ := it.(map[string]any)
		cells := make([]string, len(used))
		for i, c := range used {
			cells[i] = cell(row[c])
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the answer: %w", err)
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
		b, err := json.Marshal(v)
		if err != nil {
			return fmt.Sprint(v)
		}
		return string(b)
	default:
		return fmt.Sprint(v)
	}
}

// object prints nested members indented, lists of objects one a line.
func (a *app) object(name string, v any, indent string) {
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 {
			return
		}
		fmt.Fprintf(a.out, "%s%s:\n", indent, name)
		for _, k := range slices.Sorted(maps.Keys(v)) {
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
			parts := make([]string, 0, len(m))
			for _, k := range slices.Sorted(maps.Keys(m)) {
				parts = append(parts, k+"="+cell(m[k]))
			}
			fmt.Fprintf(a.out, "%s  - %s\n", indent, strings.Join(parts, " "))
		}
	default:
		fmt.Fprintf(a.out, "%s%s: %s\n", indent, name, cell(v))
	}
}

func (a *app) printEvent(e fleet.Event) {
	if a.output == "json" {
		if b, err := json.Marshal(e); err == nil {
			fmt.Fprintln(a.out, string(b))
		}
		return
	}
	data := ""
	if len(e.Data) > 0 {
		if b, err := json.Marshal(e.Data); err == nil {
			data = string(b)
		}
	}
	fmt.Fprintf(a.out, "%s  %-32s %-20s %s\n", e.At.Format(fleet.TimeFormat), e.Type, e.Actor, data)
}
