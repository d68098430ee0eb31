package workflows

import (
	"testing"

	"github.com/bettercompute/compute/fleet"
)

// asks are plans that together hold every step.
func asks() []fleet.StepsAsk {
	var all []fleet.StepsAsk
	for verb := range fleet.WorkflowTypes {
		for _, mode := range []string{"", "inBand", "both"} {
			for _, yes := range []bool{false, true} {
				for _, erase := range []fleet.EraseMethod{fleet.EraseNone, fleet.EraseFull} {
					all = append(all, fleet.StepsAsk{Verb: verb, Mode: mode, Identify: yes, Tests: yes, ISO: yes, Rotate: yes, LeavePower: yes,
						LeftBehind: yes, Erase: erase})
				}
			}
		}
	}
	return append(all, fleet.StepsAsk{Verb: fleet.VerbDeploy})
}

// TestEveryStepIsDoneAndUsed: each step of the plans is in the table, and each
// of the table is in a plan.
func TestEveryStepIsDoneAndUsed(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, ask := range asks() {
		seen := map[string]bool{}
		for _, s := range planOf(ask) {
			if s.do == nil {
				t.Errorf("step %s of %s does nothing", s.name, ask.Verb)
			}
			if seen[s.name] {
				t.Errorf("%s has step %s twice: steps are known by their names", ask.Verb, s.name)
			}
			seen[s.name], used[s.name] = true, true
		}
	}
	for name := range stepTable {
		if !used[name] {
			t.Errorf("no plan has step %s", name)
		}
	}
}

// TestDestructiveStepsWait: what a plan calls destructive starts at a safe
// point only.
func TestDestructiveStepsWait(t *testing.T) {
	t.Parallel()
	for _, ask := range asks() {
		for i, p := range fleet.StepsOf(ask) {
			if s := planOf(ask)[i]; p.Destructive && !s.touches {
				t.Errorf("%s: step %s is destructive and does not wait for a hold", ask.Verb, p.Name)
			}
		}
	}
}

// TestEachVerbIsRegisteredByItsName.
func TestEachVerbIsRegisteredByItsName(t *testing.T) {
	t.Parallel()
	for verb, name := range fleet.WorkflowTypes {
		if !Has(verb) {
			t.Errorf("%s has no workflow", name)
		}
	}
}
