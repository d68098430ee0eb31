package fleet_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
)

// TestProvisionDocument draws docs/provision-states.md from the tables that
// judge, so that the page cannot say something else.
func TestProvisionDocument(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("# Provision states\n\nDrawn from the tables that judge every move (`fleet.Table`, `fleet.MovesTo`, `fleet.EndsIn`, `fleet.StepsOf`) by `make generate`. " +
		"`computectl metal table` prints the first part from a running system.\n\n## Which state takes which verb\n\n" +
		"With no operation live. While one is, every verb but `abort` answers INVALID_STATE, reason `operation-in-progress`, and names it; " +
		"`delete` where it is admitted ends it, and `adopt` takes the place of a live adopt. `retry` and `abort` need a parked operation. " +
		"A hold, a live allocation, an erase that is owed and a machine that may be in use refuse more, each with a reason of its own.\n\n")
	drawMatrix(&b)
	b.WriteString("\n## Which way a verb goes\n\nOn failure the node is `failed`, with the state it failed from, the step, the cause and what to try. Adopt, power, setCredentials, manage and drain leave the state as it is.\n\n")
	drawMoves(&b)
	b.WriteString("\n## The steps of each verb\n\nAs `dryRun` and `operations/get` name them, at their longest; *italic* ones change or destroy what is on the machine.\n\n")
	drawSteps(&b)
	page := filepath.Join("..", "docs", "provision-states.md")
	if *updateGolden {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("%s (-page +drawn), `make generate` renews it:\n%s", page, diff)
	}
}

func drawMatrix(b *strings.Builder) {
	b.WriteString("| state |")
	for _, v := range judgedVerbs {
		fmt.Fprintf(b, " %s |", v)
	}
	b.WriteString("\n|---|" + strings.Repeat(":-:|", len(judgedVerbs)) + "\n")
	for _, row := range fleet.Table {
		fmt.Fprintf(b, "| %s |", rowLabel(row))
		for _, v := range judgedVerbs {
			mark := " "
			switch {
			case slices.Contains(row.Admits, v):
				mark = "yes"
			case v == fleet.VerbAbort && row.Admits == nil && row.State != fleet.Retiring:
				mark = "live"
			}
			fmt.Fprintf(b, " %s |", mark)
		}
		b.WriteString("\n")
	}
}

func rowLabel(r fleet.Row) string {
	if r.FailedFrom != "" {
		return fmt.Sprintf("%s(%s)", r.State, r.FailedFrom)
	}
	return string(r.State)
}

// movingVerbs are the verbs that change the provision state, as judgedVerbs
// orders them.
func movingVerbs() []fleet.Verb {
	moving := []fleet.Verb{fleet.VerbEnroll}
	for _, v := range judgedVerbs {
		if _, ok := fleet.MovesTo[v]; ok {
			moving = append(moving, v)
		}
	}
	return moving
}

func drawMoves(b *strings.Builder) {
	b.WriteString("```mermaid\nstateDiagram-v2\n")
	for _, v := range movingVerbs() {
		through, end := fleet.MovesTo[v], fleet.EndsIn[v]
		froms := fleet.StatesAdmitting(v)
		if v == fleet.VerbEnroll {
			froms = []string{"[*]"}
		}
		for _, from := range froms {
			if !strings.HasPrefix(from, "failed") && from != string(through) {
				fmt.Fprintf(b, "    %s --> %s: %s\n", from, through, v)
			}
		}
		switch {
		case v == fleet.VerbInspect:
			fmt.Fprintf(b, "    %s --> enrolling: back\n    %s --> ready: back\n", through, through)
		case end != through && v != fleet.VerbUnrescue:
			fmt.Fprintf(b, "    %s --> %s\n", through, end)
		}
	}
	for _, from := range slices.Sorted(maps.Values(fleet.FailsFrom)) {
		line := fmt.Sprintf("    %s --> failed\n", from)
		if !strings.Contains(b.String(), line) {
			b.WriteString(line)
		}
	}
	fmt.Fprintf(b, "    failed --> [*]: %s\n    retired --> [*]: %s\n```\n", "delete, of adopting and enrolling", fleet.VerbDelete)
}

func drawSteps(b *strings.Builder) {
	b.WriteString("| verb | steps |\n|---|---|\n")
	for _, v := range append([]fleet.Verb{fleet.VerbEnroll}, judgedVerbs...) {
		if _, ok := fleet.WorkflowTypes[v]; !ok {
			continue
		}
		var names []string
		for _, s := range fleet.StepsOf(fleet.StepsAsk{Verb: v, Mode: "both", Tests: true, Rotate: true, Erase: fleet.EraseFull}) {
			name := "`" + s.Name + "`"
			if s.Destructive {
				name = "*" + name + "*"
			}
			names = append(names, name)
		}
		if len(names) > 0 {
			fmt.Fprintf(b, "| %s | %s |\n", v, strings.Join(names, ", "))
		}
	}
}
