package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"
)

// FaultFile is a fault file: rules, and what machine they are meant for.
type FaultFile struct {
	Faults  []Rule       `yaml:"faults" json:"faults"`
	Machine *MachineSpec `yaml:"machine,omitempty" json:"machine,omitempty"`
}

// Rule is one fault rule. Rules are tried in order; one with only Patch, Set or
// Effect is applied and the next is tried; the first with Reply, Apply or After
// ends it.
type Rule struct {
	Name  string `yaml:"name" json:"name"`
	Match Match  `yaml:"match" json:"match"`
	// Apply says whether the machine does what was asked; default true.
	Apply *bool `yaml:"apply,omitempty" json:"apply,omitempty"`
	// After is how much later it does it.
	After *Duration `yaml:"after,omitempty" json:"after,omitempty"`
	// Reply replaces members of the true answer.
	Reply *Reply `yaml:"reply,omitempty" json:"reply,omitempty"`
	// Patch is a JSON merge patch on the true answer.
	Patch map[string]any `yaml:"patch,omitempty" json:"patch,omitempty"`
	// Set puts values at JSON pointers of the true answer.
	Set map[string]any `yaml:"set,omitempty" json:"set,omitempty"`
	// Effect puts values at JSON pointers of the machine's true state.
	Effect map[string]any `yaml:"effect,omitempty" json:"effect,omitempty"`

	// Hits is how often the rule acted.
	Hits int `yaml:"-" json:"hits"`
	// Seen is how often it matched, acting or not.
	Seen int `yaml:"-" json:"seen"`
}

// Match says which requests a rule is for; what is left out matches all.
type Match struct {
	// Method is a method, or several with | between.
	Method string `yaml:"method,omitempty" json:"method,omitempty"`
	// Path is a glob with ** for any number of path elements.
	Path string `yaml:"path,omitempty" json:"path,omitempty"`
	// Query and Headers map a name to absent, present, or a glob.
	Query   map[string]string `yaml:"query,omitempty" json:"query,omitempty"`
	Headers map[string]string `yaml:"headers,omitempty" json:"headers,omitempty"`
	// Body is a subset that the request's body must hold.
	Body      map[string]any `yaml:"body,omitempty" json:"body,omitempty"`
	BodyHas   []string       `yaml:"bodyHas,omitempty" json:"bodyHas,omitempty"`
	BodyLacks []string       `yaml:"bodyLacks,omitempty" json:"bodyLacks,omitempty"`
	State     StateMatch     `yaml:"state,omitempty" json:"state,omitzero"`
	// SinceChange compares the time since the last accepted change: "<90s".
	SinceChange string `yaml:"sinceChange,omitempty" json:"sinceChange,omitempty"`
	// Skip passes over the first matches, Every acts on every n-th of the rest,
	// Times ends it after that many; 0 = always.
	Skip  int `yaml:"skip,omitempty" json:"skip,omitempty"`
	Times int `yaml:"times,omitempty" json:"times,omitempty"`
	Every int `yaml:"every,omitempty" json:"every,omitempty"`
}

// StateMatch compares the machine's true state; the system is the one the
// request's path names, else the first.
type StateMatch struct {
	// Power is On or Off.
	Power string `yaml:"power,omitempty" json:"power,omitempty"`
	// Post is whether the power-on self test runs.
	Post *bool `yaml:"post,omitempty" json:"post,omitempty"`
	// Media is empty or inserted.
	Media string `yaml:"media,omitempty" json:"media,omitempty"`
	// Sessions compares the number of open sessions: ">=4".
	Sessions string `yaml:"sessions,omitempty" json:"sessions,omitempty"`
	// Busy is whether a change that was accepted is still to be made, at the end
	// of a task or of a rule's after.
	Busy *bool `yaml:"busy,omitempty" json:"busy,omitempty"`
}

// Reply is what is answered in place of the true answer's members.
type Reply struct {
	Status  int               `yaml:"status,omitempty" json:"status,omitempty"`
	Headers map[string]string `yaml:"headers,omitempty" json:"headers,omitempty"`
	Body    any               `yaml:"body,omitempty" json:"body,omitempty"`
	Raw     *string           `yaml:"raw,omitempty" json:"raw,omitempty"`
	Delay   Duration          `yaml:"delay,omitempty" json:"delay,omitempty"`
	// Drop ends the connection: before (nothing done), after (done, no answer)
	// or midway (done, half an answer).
	Drop string     `yaml:"drop,omitempty" json:"drop,omitempty"`
	Task *TaskReply `yaml:"task,omitempty" json:"task,omitempty"`
}

// TaskReply answers 202 with a task; the act is done at its end.
type TaskReply struct {
	// Ref is where the task is named: location, link, body or none.
	Ref string   `yaml:"ref,omitempty" json:"ref,omitempty"`
	For Duration `yaml:"for,omitempty" json:"for,omitempty"`
	// States are gone through in equal times, the last one at the end.
	States []string `yaml:"states,omitempty" json:"states,omitempty"`
	// Status is the TaskStatus at the end; default OK.
	Status string `yaml:"status,omitempty" json:"status,omitempty"`
}

// Values of Reply.Drop.
const (
	dropBefore = "before"
	dropAfter  = "after"
	dropMidway = "midway"
)

// Values of a header or query match beside a glob.
const (
	absent  = "absent"
	present = "present"
)

// ParseFaults reads a fault file, YAML or JSON, and refuses what means nothing.
func ParseFaults(b []byte) (*FaultFile, error) {
	var f FaultFile
	if err := decodeYAML(b, &f); err != nil {
		return nil, fmt.Errorf("fault file: %w", err)
	}
	var errs []error
	for i := range f.Faults {
		if err := f.Faults[i].check(); err != nil {
			errs = append(errs, fmt.Errorf("fault %d %q: %w", i+1, f.Faults[i].Name, err))
		}
	}
	if f.Machine != nil {
		if err := f.Machine.check(); err != nil {
			errs = append(errs, fmt.Errorf("machine: %w", err))
		}
	}
	return &f, errors.Join(errs...)
}

// check refuses a rule that could never act as written, and brings its values
// into the form that JSON gives them, so that they compare with a request's.
func (r *Rule) check() error {
	var errs []error
	if r.Match.Path != "" && !doublestar.ValidatePattern(r.Match.Path) {
		errs = append(errs, fmt.Errorf("path: %q is no glob", r.Match.Path))
	}
	if _, _, err := comparison(r.Match.SinceChange); err != nil {
		errs = append(errs, fmt.Errorf("sinceChange: %w", err))
	} else if _, err := boundOf(r.Match.SinceChange, time.ParseDuration); err != nil {
		errs = append(errs, fmt.Errorf("sinceChange: %w", err))
	}
	if _, err := boundOf(r.Match.State.Sessions, strconv.Atoi); err != nil {
		errs = append(errs, fmt.Errorf("state.sessions: %w", err))
	}
	known := func(member, v string, allowed ...string) {
		if v != "" && !slices.Contains(allowed, v) {
			errs = append(errs, fmt.Errorf("%s: %q is none of %v", member, v, allowed))
		}
	}
	known("state.power", r.Match.State.Power, powerOn, powerOff)
	known("state.media", r.Match.State.Media, "empty", "inserted")
	if r.Reply != nil {
		known("reply.drop", r.Reply.Drop, dropBefore, dropAfter, dropMidway)
		if r.Reply.Task != nil {
			known("reply.task.ref", r.Reply.Task.Ref, refLocation, refLink, refBody, refNone)
		}
		errs = append(errs, asJSON(&r.Reply.Body))
	}
	if r.Reply == nil && r.Apply == nil && r.After == nil && r.Patch == nil && r.Set == nil && r.Effect == nil {
		errs = append(errs, errors.New("it does nothing: apply, after, reply, patch, set or effect"))
	}
	for _, p := range slices.Concat(r.Match.BodyHas, r.Match.BodyLacks, keys(r.Set), keys(r.Effect)) {
		if !strings.HasPrefix(p, "/") {
			errs = append(errs, fmt.Errorf("%q is no JSON pointer", p))
		}
	}
	errs = append(errs, asJSON(&r.Match.Body), asJSON(&r.Patch), asJSON(&r.Set), asJSON(&r.Effect))
	return errors.Join(errs...)
}

func keys(m map[string]any) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// asJSON sends a value that YAML read through JSON, so that its numbers are
// those of a JSON document.
func asJSON[T any](v *T) error {
	b, err := json.Marshal(*v)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// comparison splits ">=4" into the operator and the rest.
func comparison(s string) (op, rest string, err error) {
	if s == "" {
		return "", "", nil
	}
	for _, op := range []string{"<=", ">=", "==", "<", ">"} {
		if rest, ok := strings.CutPrefix(s, op); ok {
			return op, strings.TrimSpace(rest), nil
		}
	}
	return "", "", fmt.Errorf("%q begins with none of < <= > >= ==", s)
}

func boundOf[T any](s string, parse func(string) (T, error)) (T, error) {
	var zero T
	_, rest, err := comparison(s)
	if err != nil || rest == "" {
		return zero, err
	}
	return parse(rest)
}

// holds judges v against a comparison such as ">=4".
func holds[T int | time.Duration](s string, v T, parse func(string) (T, error)) bool {
	op, rest, err := comparison(s)
	if err != nil {
		return false
	}
	if op == "" {
		return true
	}
	bound, err := parse(rest)
	if err != nil {
		return false
	}
	switch op {
	case "<":
		return v < bound
	case "<=":
		return v <= bound
	case ">":
		return v > bound
	case ">=":
		return v >= bound
	}
	return v == bound
}
