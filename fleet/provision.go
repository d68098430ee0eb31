package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Rows of the provision table: a state, and for failed the state it failed
// from.
type Row struct {
	State      ProvisionState `json:"state"`
	FailedFrom ProvisionState `json:"failedFrom,omitempty"`
	// Admits lists the verbs admitted with nothing live.
	Admits []Verb `json:"admits"`
}

// parkedMends are the verbs that leave a parked operation parked: they are how
// a person mends what stopped it.
var parkedMends = []Verb{VerbUpdate, VerbPower, VerbSetCredentials}

// Table is the provision state table with nothing live (spec metal.md). Admit
// is its only reader that decides.
var Table = []Row{
	{Adopting, "", []Verb{VerbAdopt, VerbUpdate, VerbDelete}},
	{Adopted, "", []Verb{VerbAdopt, VerbManage, VerbUpdate, VerbPower, VerbSetCredentials, VerbDelete}},
	{Enrolling, "", []Verb{VerbInspect, VerbCommission, VerbRetire, VerbPower, VerbSetCredentials, VerbUpdate, VerbDelete}},
	{Ready, "", []Verb{VerbInspect, VerbCommission, VerbDeploy, VerbRetire, VerbPower, VerbSetCredentials, VerbUpdate}},
	{Deployed, "", []Verb{VerbRescue, VerbRelease, VerbPower, VerbSetCredentials, VerbUpdate}},
	{Rescue, "", []Verb{VerbRescue, VerbUnrescue, VerbRelease, VerbPower, VerbSetCredentials, VerbUpdate}},
	{Failed, Enrolling, []Verb{VerbRetry, VerbAbort, VerbInspect, VerbRetire, VerbPower, VerbSetCredentials, VerbUpdate, VerbDelete}},
	{Failed, Inspecting, []Verb{VerbRetry, VerbAbort, VerbInspect, VerbRetire, VerbPower, VerbSetCredentials, VerbUpdate}},
	{Failed, Commissioning, []Verb{VerbRetry, VerbAbort, VerbCommission, VerbRetire, VerbPower, VerbSetCredentials, VerbUpdate}},
	{Failed, Deploying, []Verb{VerbRetry, VerbAbort, VerbDeploy, VerbRescue, VerbRelease, VerbRetire, VerbPower, VerbSetCredentials, VerbUpdate}},
	{Failed, Rescue, []Verb{VerbRetry, VerbAbort, VerbRescue, VerbRelease, VerbRetire, VerbPower, VerbSetCredentials, VerbUpdate}},
	{Failed, Releasing, []Verb{VerbRetry, VerbAbort, VerbRelease, VerbRetire, VerbPower, VerbSetCredentials, VerbUpdate}},
	{Failed, Retiring, []Verb{VerbRetry, VerbAbort, VerbRetire, VerbPower, VerbSetCredentials, VerbUpdate}},
	{Failed, Adopting, []Verb{VerbDelete}},
	{Retired, "", []Verb{VerbDelete}},
	{Inspecting, "", nil},
	{Commissioning, "", nil},
	{Deploying, "", nil},
	{Releasing, "", nil},
	{Retiring, "", nil},
}

// OpRef names an operation of a node.
type OpRef struct {
	ID   string
	Verb Verb
}

// Hold keeps every change of power, boot or disk away from a node.
type Hold struct {
	By     string `json:"by"`
	Since  Time   `json:"since"`
	Reason string `json:"reason"`
	Until  *Time  `json:"until,omitempty"`
}

// Active says whether the hold is in force at a time.
func (h *Hold) Active(now time.Time) bool {
	return h != nil && (h.Until == nil || now.Before(h.Until.Time))
}

// EraseMethod is how thoroughly disks are erased.
type EraseMethod string

// The erase methods, weakest first.
const (
	EraseNone     EraseMethod = "none"
	EraseMetadata EraseMethod = "metadata"
	EraseFull     EraseMethod = "full"
)

// Rank orders erase methods; "" ranks as none.
func (m EraseMethod) Rank() int {
	return max(0, slices.Index([]EraseMethod{EraseNone, EraseMetadata, EraseFull}, m))
}

// Situation is all that the table judges a verb by.
type Situation struct {
	State      ProvisionState
	FailedFrom ProvisionState
	// Live and Parked name the node's operations of the provision lane.
	Live, Parked *OpRef
	// Guarded is an adopted host; Managed says that it has a BMC.
	Guarded, Managed bool
	Hold             *Hold
	// Allocations are the ids of the live ones.
	Allocations []string
	EraseOwed   bool
	// MaybeInUse: presumed to run somebody's work until told otherwise.
	MaybeInUse bool
	// Inventory says that one is recorded, Whole that the last deploy verified
	// its whole image.
	Inventory, Whole bool
	Cordoned         bool
	// PolicyErase is the pool's eraseOnRelease, "" without one.
	PolicyErase EraseMethod
	Now         time.Time
}

// Ask is the verb and the parts of its input that the table looks at.
type Ask struct {
	Verb   Verb
	Force  bool
	Reason string
	// InUse is the caller's word on whether the machine runs something; nil
	// when not said.
	InUse *bool
	// Mode is inspect's.
	Mode string
	// Action is power's.
	Action string
	// Erase is release's or retire's argument, "" when not given.
	Erase EraseMethod
}

// touches says whether the verb could change power, boot or disk, which is
// what a hold keeps away.
func (a Ask) touches() bool {
	switch a.Verb {
	case VerbCommission, VerbDeploy, VerbRescue, VerbUnrescue, VerbRelease, VerbRetire, VerbPower, VerbRetry:
		return true
	case VerbInspect:
		return a.Mode == "inBand" || a.Mode == "both"
	default:
		return false
	}
}

// RowFor returns the table's row of a state.
func RowFor(state, failedFrom ProvisionState) (Row, bool) {
	for _, r := range Table {
		if r.State == state && (state != Failed || r.FailedFrom == failedFrom) {
			return r, true
		}
	}
	return Row{}, false
}

// StatesAdmitting names the rows that admit a verb with nothing live, as
// people read them: "ready", "failed(deploying)".
func StatesAdmitting(v Verb) []string {
	var out []string
	for _, r := range Table {
		if slices.Contains(r.Admits, v) {
			out = append(out, rowName(r.State, r.FailedFrom))
		}
	}
	return out
}

func rowName(s, from ProvisionState) string {
	if s == Failed {
		return fmt.Sprintf("failed(%s)", from)
	}
	return string(s)
}

// Admit judges whether a node in a situation takes a verb. It is the only
// judge of provision moves: nil admits, else INVALID_STATE with a reason, or
// INVALID_INPUT for an erase weaker than the policy.
func Admit(s Situation, a Ask) error {
	for _, rule := range []func(Situation, Ask) error{
		admitLive, admitState, admitGuard, admitHold, admitInUse, admitAllocations, admitErase,
	} {
		if err := rule(s, a); err != nil {
			return err
		}
	}
	return nil
}

func invalidState(s Situation, reason, format string, args ...any) *Error {
	e := Errorf(CodeInvalidState, reason, format, args...)
	_ = e.With("provisionState", string(s.State))
	if s.State == Failed {
		_ = e.With("failedFrom", string(s.FailedFrom))
	}
	return e
}

// admitLive: while an operation is live only abort is admitted, with the
// exceptions of delete, which ends it, and adopt over a live Adopt. Retire
// takes no abort.
func admitLive(s Situation, a Ask) error {
	if s.Live == nil {
		return nil
	}
	switch {
	case a.Verb == VerbAbort && s.Live.Verb != VerbRetire:
		return nil
	case a.Verb == VerbAdopt && s.Live.Verb == VerbAdopt:
		return nil
	case a.Verb == VerbDelete && deletable(s):
		return nil
	}
	then := "wait until it ends, or call metal/abort"
	if s.Live.Verb == VerbRetire {
		then = "a retire cannot be aborted: wait until it ends"
	}
	return invalidState(s, "operation-in-progress", "the node is busy with %s (%s): %s", s.Live.Verb, s.Live.ID, then).
		With("operationId", s.Live.ID).With("operationVerb", string(s.Live.Verb))
}

// deletable are the states in which the reference admits nodes/delete whether
// or not something is live.
func deletable(s Situation) bool {
	switch s.State {
	case Retired, Adopting, Enrolling:
		return true
	case Failed:
		return s.FailedFrom == Adopting || s.FailedFrom == Enrolling
	case Adopted:
		return s.Cordoned
	default:
		return false
	}
}

func admitState(s Situation, a Ask) error {
	if s.Live != nil {
		return nil // admitLive let it through by name
	}
	row, ok := RowFor(s.State, s.FailedFrom)
	if ok && slices.Contains(row.Admits, a.Verb) {
		return admitSpecial(s, a)
	}
	if a.Verb == VerbAbort {
		return invalidState(s, "nothing-to-abort", "no operation of this node is live or parked")
	}
	return invalidState(s, "", "the node is %s, which does not take %s; states that do: %s",
		rowName(s.State, s.FailedFrom), a.Verb, strings.Join(StatesAdmitting(a.Verb), ", "))
}

// admitSpecial holds what a row says in brackets.
func admitSpecial(s Situation, a Ask) error {
	switch {
	case a.Verb == VerbRetry && s.Parked == nil:
		return invalidState(s, "nothing-parked", "no parked operation to retry; call %s", retryInstead(s.FailedFrom))
	case a.Verb == VerbAbort && s.Parked == nil:
		return invalidState(s, "nothing-to-abort", "no operation of this node is live or parked")
	case a.Verb == VerbCommission && s.State == Enrolling && !s.Inventory:
		return invalidState(s, "no-inventory", "no inventory is recorded; call metal/inspect first")
	case a.Verb == VerbDelete && s.State == Adopted && !s.Cordoned:
		return invalidState(s, "not-cordoned", "an adopted node is deleted only when cordoned; call nodes/cordon first")
	case a.Verb == VerbUnrescue && !s.Whole:
		return invalidState(s, "no-whole-image", "the last deploy did not verify its whole image, so there is nothing sound to go back to; call metal/release, or metal/rescue again")
	}
	return nil
}

func retryInstead(from ProvisionState) string {
	verb := map[ProvisionState]Verb{Enrolling: VerbInspect, Inspecting: VerbInspect, Commissioning: VerbCommission,
		Deploying: VerbDeploy, Rescue: VerbRescue, Releasing: VerbRelease, Retiring: VerbRetire}[from]
	return "metal/" + string(verb)
}

// admitGuard: an adopted host takes power and setCredentials only after
// metal/manage gave it a BMC, and manage only while it has none.
func admitGuard(s Situation, a Ask) error {
	if !s.Guarded {
		return nil
	}
	switch a.Verb {
	case VerbPower, VerbSetCredentials:
		if !s.Managed {
			return invalidState(s, "guarded", "this adopted host has no BMC recorded; call metal/manage first")
		}
	case VerbManage:
		if s.Managed {
			return invalidState(s, "already-managed", "this host has a BMC recorded; change it with metal/update")
		}
	default:
	}
	return nil
}

func admitHold(s Situation, a Ask) error {
	if !s.Hold.Active(s.Now) || !a.touches() {
		return nil
	}
	until := ""
	if s.Hold.Until != nil {
		until = ", until " + s.Hold.Until.UTC().Format(TimeFormat)
	}
	return invalidState(s, "held", "the node is held by %s since %s (%s)%s; call metal/unhold first",
		s.Hold.By, s.Hold.Since.UTC().Format(TimeFormat), s.Hold.Reason, until).With("hold", s.Hold)
}

// admitInUse keeps a machine that was found on from being touched until
// somebody says that it is free (spec metal.md, "Maybe in use").
func admitInUse(s Situation, a Ask) error {
	if !s.MaybeInUse || (a.InUse != nil && !*a.InUse) {
		return nil
	}
	switch a.Verb {
	case VerbCommission:
	case VerbInspect:
		if a.Mode != "inBand" && a.Mode != "both" {
			return nil
		}
	case VerbRetire:
		if a.Erase == "" || a.Erase == EraseNone {
			return nil
		}
	case VerbPower:
		if a.Action == "on" || (a.Force && a.Reason != "") {
			return nil
		}
		return invalidState(s, "maybe-in-use", "the machine was found powered on and may run somebody's work; power %s needs force: true with a reason", a.Action)
	default:
		return nil
	}
	return invalidState(s, "maybe-in-use", "the machine was found powered on and may run somebody's work; call metal/inspect with inUse: false once it is known to be free")
}

// admitAllocations keeps the power under live allocations.
func admitAllocations(s Situation, a Ask) error {
	if len(s.Allocations) == 0 {
		return nil
	}
	switch a.Verb {
	case VerbPower:
		if a.Action == "on" || (a.Force && a.Reason != "") {
			return nil
		}
	case VerbRescue, VerbRelease, VerbRetire, VerbDelete:
	default:
		return nil
	}
	hint := "release them or wait until they end (nodes/drain)"
	if a.Verb == VerbPower {
		hint += ", or pass force: true with a reason"
	}
	return invalidState(s, "allocations-live", "%d live allocation(s) hold this node: %s", len(s.Allocations), hint).
		With("allocations", s.Allocations)
}

// admitErase judges release and retire against the policy and what is owed.
func admitErase(s Situation, a Ask) error {
	if a.Verb != VerbRelease && a.Verb != VerbRetire {
		return nil
	}
	_, err := EffectiveErase(s, a)
	return err
}

// EffectiveErase is the erase a release or retire does: the stronger of the
// argument and the pool's policy; with neither, release does metadata and
// retire full when one is owed and none otherwise. Retire with nothing owed
// and no argument erases nothing, whatever the policy.
func EffectiveErase(s Situation, a Ask) (EraseMethod, error) {
	if a.Verb == VerbRetire && !s.EraseOwed && a.Erase == "" {
		return EraseNone, nil
	}
	if a.Erase != "" {
		if a.Erase.Rank() < s.PolicyErase.Rank() {
			return "", Invalid("erase", fmt.Sprintf("weaker than the pool's policy eraseOnRelease: %s", s.PolicyErase))
		}
		if a.Erase == EraseNone && s.EraseOwed && !(a.Verb == VerbRetire && a.Force) {
			return "", invalidState(s, "erase-owed", "disks of this node still hold a deployed image; erase: none is not admitted until they are erased (metadata or full)")
		}
		return a.Erase, nil
	}
	method := s.PolicyErase
	if s.EraseOwed && method.Rank() == 0 {
		method = EraseMetadata
		if a.Verb == VerbRetire {
			method = EraseFull
		}
	}
	if method == "" {
		method = EraseNone
	}
	return method, nil
}

// EndsParked says whether an admitted verb ends a parked operation, as against
// leaving it parked.
func EndsParked(v Verb) bool {
	return v != VerbRetry && !slices.Contains(parkedMends, v)
}
