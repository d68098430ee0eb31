package fleet_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
)

var updateGolden = flag.Bool("update", false, "rewrite testdata/*.golden from what is judged now")

// judgedVerbs are the verbs the provision table knows.
var judgedVerbs = []fleet.Verb{fleet.VerbAdopt, fleet.VerbManage, fleet.VerbInspect, fleet.VerbCommission, fleet.VerbDeploy,
	fleet.VerbRescue, fleet.VerbUnrescue, fleet.VerbRelease, fleet.VerbRetire, fleet.VerbPower, fleet.VerbSetCredentials,
	fleet.VerbUpdate, fleet.VerbRetry, fleet.VerbAbort, fleet.VerbDelete}

// occupation is what runs, or is parked, on a node.
type occupation struct {
	name         string
	live, parked *fleet.OpRef
}

// occupations are those that a state can have: the operation that made a moving state
// is live in it, a failed one may have one parked, and a resting one may have
// a Power live.
func occupations(r fleet.Row) []occupation {
	power := &fleet.OpRef{ID: "op_power", Verb: fleet.VerbPower}
	if r.Admits == nil {
		for v, s := range fleet.MovesTo {
			if s == r.State && v != fleet.VerbUnrescue {
				return []occupation{{"live " + string(v), &fleet.OpRef{ID: "op_1", Verb: v}, nil}}
			}
		}
	}
	all := []occupation{{name: "nothing"}, {"live power", power, nil}}
	if r.State == fleet.Failed {
		parked := &fleet.OpRef{ID: "op_parked", Verb: fleet.VerbInspect}
		all = append(all, occupation{"parked", nil, parked}, occupation{"live power, parked", power, parked})
	}
	if r.State == fleet.Adopting {
		all = append(all, occupation{"live adopt", &fleet.OpRef{ID: "op_1", Verb: fleet.VerbAdopt}, nil})
	}
	if r.State == fleet.Enrolling {
		all = append(all, occupation{"live enroll", &fleet.OpRef{ID: "op_1", Verb: fleet.VerbEnroll}, nil})
	}
	return all
}

// TestProvisionTable judges every state with every verb and everything that
// can be live or parked there. What is admitted and why not is a golden file:
// a change of the table is a change that somebody reads.
func TestProvisionTable(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, row := range fleet.Table {
		for _, o := range occupations(row) {
			name := string(row.State)
			if row.FailedFrom != "" {
				name += "(" + string(row.FailedFrom) + ")"
			}
			fmt.Fprintf(&b, "%s, %s\n", name, o.name)
			s := fleet.Situation{State: row.State, FailedFrom: row.FailedFrom, Live: o.live, Parked: o.parked, Inventory: true, Whole: true,
				Cordoned: true, Guarded: row.State == fleet.Adopting || row.State == fleet.Adopted, Managed: row.State != fleet.Adopted,
				Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
			for _, v := range judgedVerbs {
				fmt.Fprintf(&b, "\t%-15s %s\n", v, verdict(fleet.Admit(s, fleet.Ask{Verb: v, Action: "on"})))
			}
		}
	}
	golden := filepath.Join("testdata", "provision.golden")
	if *updateGolden {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("provision table (-golden +judged), rewrite with -update after reading:\n%s", diff)
	}
}

func verdict(err error) string {
	if err == nil {
		return "admitted"
	}
	reason := fleet.ReasonOf(err)
	if reason == "" {
		reason = "-"
	}
	return fmt.Sprintf("%s %s", fleet.CodeOf(err), reason)
}

// TestAdmitRules holds what the table says outside of its rows: hold, presumed
// use, allocations, guard, erase.
func TestAdmitRules(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	no, yes := false, true
	held := &fleet.Hold{By: "dev:a", Since: fleet.At(now), Reason: "cabling"}
	later := fleet.At(now.Add(time.Hour))
	past := fleet.At(now.Add(-time.Second))
	lapsed := &fleet.Hold{By: "dev:a", Since: fleet.At(now), Reason: "cabling", Until: &past}
	at := func(s fleet.ProvisionState, set func(*fleet.Situation)) fleet.Situation {
		out := fleet.Situation{State: s, Now: now, Inventory: true}
		if s == fleet.Failed {
			out.FailedFrom = fleet.Deploying
		}
		if set != nil {
			set(&out)
		}
		return out
	}
	for name, c := range map[string]struct {
		s    fleet.Situation
		a    fleet.Ask
		want string
	}{
		"held without end, power":           {at(fleet.Ready, func(s *fleet.Situation) { s.Hold = &fleet.Hold{By: "dev:a"} }), fleet.Ask{Verb: fleet.VerbPower, Action: "on"}, "INVALID_STATE held"},
		"held until later, power":           {at(fleet.Ready, func(s *fleet.Situation) { s.Hold = &fleet.Hold{By: "dev:a", Until: &later} }), fleet.Ask{Verb: fleet.VerbPower, Action: "on"}, "INVALID_STATE held"},
		"held, inspect in band only":        {at(fleet.Ready, func(s *fleet.Situation) { s.Hold = held }), fleet.Ask{Verb: fleet.VerbInspect, Mode: "inBand"}, "INVALID_STATE held"},
		"ready, commission, no inventory":   {at(fleet.Ready, func(s *fleet.Situation) { s.Inventory = false }), fleet.Ask{Verb: fleet.VerbCommission}, "admitted"},
		"ready, inspect, no inventory":      {at(fleet.Enrolling, func(s *fleet.Situation) { s.Inventory = false }), fleet.Ask{Verb: fleet.VerbInspect}, "admitted"},
		"enrolling, delete uncordoned":      {at(fleet.Enrolling, nil), fleet.Ask{Verb: fleet.VerbDelete}, "admitted"},
		"maybe in use, inspect both":        {at(fleet.Enrolling, func(s *fleet.Situation) { s.MaybeInUse = true }), fleet.Ask{Verb: fleet.VerbInspect, Mode: "both"}, "INVALID_STATE maybe-in-use"},
		"maybe in use, retire erase none":   {at(fleet.Enrolling, func(s *fleet.Situation) { s.MaybeInUse = true }), fleet.Ask{Verb: fleet.VerbRetire, Erase: fleet.EraseNone}, "admitted"},
		"maybe in use, a word, no force":    {at(fleet.Enrolling, func(s *fleet.Situation) { s.MaybeInUse = true }), fleet.Ask{Verb: fleet.VerbPower, Action: "off", Reason: "fire"}, "INVALID_STATE maybe-in-use"},
		"allocated, forced, no word":        {at(fleet.Deployed, func(s *fleet.Situation) { s.Allocations = []string{"alloc_1"} }), fleet.Ask{Verb: fleet.VerbPower, Action: "off", Force: true}, "INVALID_STATE allocations-live"},
		"allocated, a word, no force":       {at(fleet.Deployed, func(s *fleet.Situation) { s.Allocations = []string{"alloc_1"} }), fleet.Ask{Verb: fleet.VerbPower, Action: "off", Reason: "hung"}, "INVALID_STATE allocations-live"},
		"allocated, rescue":                 {at(fleet.Deployed, func(s *fleet.Situation) { s.Allocations = []string{"alloc_1"} }), fleet.Ask{Verb: fleet.VerbRescue}, "INVALID_STATE allocations-live"},
		"allocated, retire":                 {at(fleet.Failed, func(s *fleet.Situation) { s.Allocations = []string{"alloc_1"} }), fleet.Ask{Verb: fleet.VerbRetire}, "INVALID_STATE allocations-live"},
		"allocated, delete":                 {at(fleet.Enrolling, func(s *fleet.Situation) { s.Allocations = []string{"alloc_1"} }), fleet.Ask{Verb: fleet.VerbDelete}, "INVALID_STATE allocations-live"},
		"release none, nothing owed":        {at(fleet.Deployed, nil), fleet.Ask{Verb: fleet.VerbRelease, Erase: fleet.EraseNone}, "admitted"},
		"release none while owed, forced":   {at(fleet.Deployed, func(s *fleet.Situation) { s.EraseOwed = true }), fleet.Ask{Verb: fleet.VerbRelease, Erase: fleet.EraseNone, Force: true, Reason: "x"}, "INVALID_STATE erase-owed"},
		"deploy, an erase is owed":          {at(fleet.Failed, func(s *fleet.Situation) { s.EraseOwed = true }), fleet.Ask{Verb: fleet.VerbDeploy, Erase: fleet.EraseNone}, "admitted"},
		"commission without inventory":      {at(fleet.Enrolling, func(s *fleet.Situation) { s.Inventory = false }), fleet.Ask{Verb: fleet.VerbCommission}, "INVALID_STATE no-inventory"},
		"held, deploy":                      {at(fleet.Ready, func(s *fleet.Situation) { s.Hold = held }), fleet.Ask{Verb: fleet.VerbDeploy}, "INVALID_STATE held"},
		"held, power":                       {at(fleet.Ready, func(s *fleet.Situation) { s.Hold = held }), fleet.Ask{Verb: fleet.VerbPower, Action: "on"}, "INVALID_STATE held"},
		"held, inspect in band":             {at(fleet.Ready, func(s *fleet.Situation) { s.Hold = held }), fleet.Ask{Verb: fleet.VerbInspect, Mode: "both"}, "INVALID_STATE held"},
		"held, inspect out of band":         {at(fleet.Ready, func(s *fleet.Situation) { s.Hold = held }), fleet.Ask{Verb: fleet.VerbInspect, Mode: "outOfBand"}, "admitted"},
		"held, update":                      {at(fleet.Ready, func(s *fleet.Situation) { s.Hold = held }), fleet.Ask{Verb: fleet.VerbUpdate}, "admitted"},
		"hold lapsed":                       {at(fleet.Ready, func(s *fleet.Situation) { s.Hold = lapsed }), fleet.Ask{Verb: fleet.VerbDeploy}, "admitted"},
		"maybe in use, commission":          {at(fleet.Enrolling, func(s *fleet.Situation) { s.MaybeInUse = true }), fleet.Ask{Verb: fleet.VerbCommission}, "INVALID_STATE maybe-in-use"},
		"maybe in use, said free":           {at(fleet.Enrolling, func(s *fleet.Situation) { s.MaybeInUse = true }), fleet.Ask{Verb: fleet.VerbCommission, InUse: &no}, "admitted"},
		"maybe in use, said used":           {at(fleet.Enrolling, func(s *fleet.Situation) { s.MaybeInUse = true }), fleet.Ask{Verb: fleet.VerbCommission, InUse: &yes}, "INVALID_STATE maybe-in-use"},
		"maybe in use, inspect":             {at(fleet.Enrolling, func(s *fleet.Situation) { s.MaybeInUse = true }), fleet.Ask{Verb: fleet.VerbInspect, Mode: "outOfBand"}, "admitted"},
		"maybe in use, in-band":             {at(fleet.Enrolling, func(s *fleet.Situation) { s.MaybeInUse = true }), fleet.Ask{Verb: fleet.VerbInspect, Mode: "inBand"}, "INVALID_STATE maybe-in-use"},
		"maybe in use, retire":              {at(fleet.Enrolling, func(s *fleet.Situation) { s.MaybeInUse = true }), fleet.Ask{Verb: fleet.VerbRetire}, "admitted"},
		"maybe in use, retire erase":        {at(fleet.Enrolling, func(s *fleet.Situation) { s.MaybeInUse = true }), fleet.Ask{Verb: fleet.VerbRetire, Erase: fleet.EraseFull}, "INVALID_STATE maybe-in-use"},
		"maybe in use, power off":           {at(fleet.Enrolling, func(s *fleet.Situation) { s.MaybeInUse = true }), fleet.Ask{Verb: fleet.VerbPower, Action: "off"}, "INVALID_STATE maybe-in-use"},
		"maybe in use, forced, no word":     {at(fleet.Enrolling, func(s *fleet.Situation) { s.MaybeInUse = true }), fleet.Ask{Verb: fleet.VerbPower, Action: "off", Force: true}, "INVALID_STATE maybe-in-use"},
		"maybe in use, forced":              {at(fleet.Enrolling, func(s *fleet.Situation) { s.MaybeInUse = true }), fleet.Ask{Verb: fleet.VerbPower, Action: "off", Force: true, Reason: "fire"}, "admitted"},
		"maybe in use, power on":            {at(fleet.Enrolling, func(s *fleet.Situation) { s.MaybeInUse = true }), fleet.Ask{Verb: fleet.VerbPower, Action: "on"}, "admitted"},
		"allocated, release":                {at(fleet.Deployed, func(s *fleet.Situation) { s.Allocations = []string{"alloc_1"} }), fleet.Ask{Verb: fleet.VerbRelease}, "INVALID_STATE allocations-live"},
		"allocated, power on":               {at(fleet.Deployed, func(s *fleet.Situation) { s.Allocations = []string{"alloc_1"} }), fleet.Ask{Verb: fleet.VerbPower, Action: "on"}, "admitted"},
		"allocated, power reset":            {at(fleet.Deployed, func(s *fleet.Situation) { s.Allocations = []string{"alloc_1"} }), fleet.Ask{Verb: fleet.VerbPower, Action: "reset"}, "INVALID_STATE allocations-live"},
		"allocated, forced":                 {at(fleet.Deployed, func(s *fleet.Situation) { s.Allocations = []string{"alloc_1"} }), fleet.Ask{Verb: fleet.VerbPower, Action: "reset", Force: true, Reason: "hung"}, "admitted"},
		"adopted, power, no BMC":            {at(fleet.Adopted, func(s *fleet.Situation) { s.Guarded = true }), fleet.Ask{Verb: fleet.VerbPower, Action: "on"}, "INVALID_STATE guarded"},
		"adopted, power, managed":           {at(fleet.Adopted, func(s *fleet.Situation) { s.Guarded, s.Managed = true, true }), fleet.Ask{Verb: fleet.VerbPower, Action: "on"}, "admitted"},
		"adopted, managed twice":            {at(fleet.Adopted, func(s *fleet.Situation) { s.Guarded, s.Managed = true, true }), fleet.Ask{Verb: fleet.VerbManage}, "INVALID_STATE already-managed"},
		"adopted, deploy":                   {at(fleet.Adopted, func(s *fleet.Situation) { s.Guarded, s.Managed = true, true }), fleet.Ask{Verb: fleet.VerbDeploy}, "INVALID_STATE -"},
		"adopted, delete uncordoned":        {at(fleet.Adopted, nil), fleet.Ask{Verb: fleet.VerbDelete}, "INVALID_STATE not-cordoned"},
		"rescue, no whole image":            {at(fleet.Rescue, nil), fleet.Ask{Verb: fleet.VerbUnrescue}, "INVALID_STATE no-whole-image"},
		"retry, nothing parked":             {at(fleet.Failed, nil), fleet.Ask{Verb: fleet.VerbRetry}, "INVALID_STATE nothing-parked"},
		"abort, nothing there":              {at(fleet.Ready, nil), fleet.Ask{Verb: fleet.VerbAbort}, "INVALID_STATE nothing-to-abort"},
		"release weaker than policy":        {at(fleet.Deployed, func(s *fleet.Situation) { s.PolicyErase = fleet.EraseFull }), fleet.Ask{Verb: fleet.VerbRelease, Erase: fleet.EraseMetadata}, "INVALID_INPUT -"},
		"release none while owed":           {at(fleet.Deployed, func(s *fleet.Situation) { s.EraseOwed = true }), fleet.Ask{Verb: fleet.VerbRelease, Erase: fleet.EraseNone}, "INVALID_STATE erase-owed"},
		"retire none while owed":            {at(fleet.Failed, func(s *fleet.Situation) { s.EraseOwed = true }), fleet.Ask{Verb: fleet.VerbRetire, Erase: fleet.EraseNone}, "INVALID_STATE erase-owed"},
		"retire none while owed but forced": {at(fleet.Failed, func(s *fleet.Situation) { s.EraseOwed = true }), fleet.Ask{Verb: fleet.VerbRetire, Erase: fleet.EraseNone, Force: true, Reason: "burnt"}, "admitted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := verdict(fleet.Admit(c.s, c.a)); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestEffectiveErase(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		verb   fleet.Verb
		arg    fleet.EraseMethod
		policy fleet.EraseMethod
		owed   bool
		want   fleet.EraseMethod
	}{
		{fleet.VerbRelease, "", "", true, fleet.EraseMetadata},
		{fleet.VerbRelease, "", "", false, fleet.EraseNone},
		{fleet.VerbRelease, "", fleet.EraseFull, true, fleet.EraseFull},
		{fleet.VerbRelease, "", fleet.EraseFull, false, fleet.EraseFull},
		{fleet.VerbRelease, fleet.EraseFull, fleet.EraseMetadata, true, fleet.EraseFull},
		{fleet.VerbRelease, "", fleet.EraseNone, true, fleet.EraseMetadata},
		{fleet.VerbRetire, "", "", true, fleet.EraseFull},
		{fleet.VerbRetire, "", fleet.EraseMetadata, true, fleet.EraseMetadata},
		{fleet.VerbRetire, "", fleet.EraseFull, false, fleet.EraseNone},
		{fleet.VerbRetire, fleet.EraseMetadata, "", false, fleet.EraseMetadata},
	} {
		got, err := fleet.EffectiveErase(fleet.Situation{PolicyErase: c.policy, EraseOwed: c.owed}, fleet.Ask{Verb: c.verb, Erase: c.arg})
		if err != nil || got != c.want {
			t.Errorf("%s(%q) with policy %q, owed %v = %q, %v; want %q", c.verb, c.arg, c.policy, c.owed, got, err, c.want)
		}
	}
}

// TestEndsParked: a parked operation ends with the verb that takes its place, and
// stays for what mends it or goes on with it.
func TestEndsParked(t *testing.T) {
	t.Parallel()
	stays := []fleet.Verb{fleet.VerbUpdate, fleet.VerbPower, fleet.VerbSetCredentials, fleet.VerbRetry}
	for _, v := range judgedVerbs {
		if got := fleet.EndsParked(v); got == slices.Contains(stays, v) {
			t.Errorf("%s ends a parked operation: %v", v, got)
		}
	}
}

// TestRefusalSays what a person needs to know: the state, and what to do instead.
func TestRefusalSays(t *testing.T) {
	t.Parallel()
	live := func(v fleet.Verb) fleet.Situation {
		return fleet.Situation{State: fleet.MovesTo[v], Live: &fleet.OpRef{ID: "op_1", Verb: v}}
	}
	until := fleet.At(time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC))
	for name, c := range map[string]struct {
		s    fleet.Situation
		a    fleet.Ask
		says []string
		not  string
	}{
		"busy":           {live(fleet.VerbDeploy), fleet.Ask{Verb: fleet.VerbPower}, []string{"deploy", "op_1", "metal/abort"}, "cannot be aborted"},
		"retiring":       {live(fleet.VerbRetire), fleet.Ask{Verb: fleet.VerbPower}, []string{"retire", "op_1", "cannot be aborted"}, "metal/abort"},
		"failed":         {fleet.Situation{State: fleet.Failed, FailedFrom: fleet.Deploying}, fleet.Ask{Verb: fleet.VerbCommission}, []string{"failed(deploying)", "ready", "failed(commissioning)"}, ""},
		"nothing parked": {fleet.Situation{State: fleet.Failed, FailedFrom: fleet.Releasing}, fleet.Ask{Verb: fleet.VerbRetry}, []string{"metal/release"}, ""},
		"held": {fleet.Situation{State: fleet.Ready, Hold: &fleet.Hold{By: "dev:ann", Reason: "cabling", Until: &until}}, fleet.Ask{Verb: fleet.VerbDeploy},
			[]string{"dev:ann", "cabling", "2026-01-02", "metal/unhold"}, ""},
		"allocated": {fleet.Situation{State: fleet.Deployed, Allocations: []string{"alloc_1"}}, fleet.Ask{Verb: fleet.VerbRelease}, []string{"1 live", "nodes/drain"}, "force"},
		"allocated, power": {fleet.Situation{State: fleet.Deployed, Allocations: []string{"alloc_1"}}, fleet.Ask{Verb: fleet.VerbPower, Action: "off"},
			[]string{"force: true"}, ""},
	} {
		var e *fleet.Error
		if !errors.As(fleet.Admit(c.s, c.a), &e) {
			t.Errorf("%s: admitted", name)
			continue
		}
		for _, want := range c.says {
			if !strings.Contains(e.Detail, want) {
				t.Errorf("%s: %q does not say %q", name, e.Detail, want)
			}
		}
		if c.not != "" && strings.Contains(e.Detail, c.not) {
			t.Errorf("%s: %q says %q", name, e.Detail, c.not)
		}
		from, failed := e.Members["failedFrom"]
		if e.Members["provisionState"] != string(c.s.State) || failed != (c.s.State == fleet.Failed) || failed && from != string(c.s.FailedFrom) {
			t.Errorf("%s: members %v", name, e.Members)
		}
	}
}
