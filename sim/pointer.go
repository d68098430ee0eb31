package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
)

// tokens splits a JSON pointer (RFC 6901).
func tokens(pointer string) []string {
	parts := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(strings.ReplaceAll(p, "~1", "/"), "~0", "~")
	}
	return parts
}

// lookUp finds the value at a pointer.
func lookUp(doc any, pointer string) (any, bool) {
	for _, t := range tokens(pointer) {
		switch d := doc.(type) {
		case map[string]any:
			v, ok := d[t]
			if !ok {
				return nil, false
			}
			doc = v
		case []any:
			i, err := strconv.Atoi(t)
			if err != nil || i < 0 || i >= len(d) {
				return nil, false
			}
			doc = d[i]
		default:
			return nil, false
		}
	}
	return doc, true
}

// setAt puts a value at a pointer, making the objects on the way, and returns
// the document. In an array "-" appends; an index past its end changes nothing.
func setAt(doc any, pointer string, value any) any {
	return setTokens(doc, tokens(pointer), value)
}

func setTokens(doc any, ts []string, value any) any {
	if len(ts) == 0 {
		return value
	}
	if list, ok := doc.([]any); ok {
		if ts[0] == "-" {
			return append(list, setTokens(nil, ts[1:], value))
		}
		if i, err := strconv.Atoi(ts[0]); err == nil && i >= 0 && i < len(list) {
			list[i] = setTokens(list[i], ts[1:], value)
		}
		return list
	}
	d, ok := doc.(map[string]any)
	if !ok {
		d = map[string]any{}
	}
	d[ts[0]] = setTokens(d[ts[0]], ts[1:], value)
	return d
}

// mergePatch is RFC 7396.
func mergePatch(doc object, patch map[string]any) object {
	out, err := jsonpatch.MergePatch(encoded(doc), encoded(patch))
	var merged object
	if err != nil || json.Unmarshal(out, &merged) != nil {
		return doc
	}
	return merged
}

// encoded is a value as JSON; what is encoded here came from JSON or was built
// of its types.
func encoded(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte("null")
	}
	return b
}

// shortcuts are pointers into the first system's state that are easier to write
// or are the names that Redfish gives the same thing.
var shortcuts = []struct{ from, to string }{
	{"/power", "/systems/0/power"},
	{"/override", "/systems/0/override"},
	{"/media", "/systems/0/media"},
	{"/disks", "/systems/0/disks"},
	{"/health", "/systems/0/health"},
	{"/PowerState", "/systems/0/power"},
	{"/UUID", "/systems/0/uuid"},
	{"/SerialNumber", "/systems/0/serial"},
	{"/Id", "/systems/0/id"},
	{"/Name", "/systems/0/name"},
	{"/Status/Health", "/systems/0/health"},
	{"/Boot/BootSourceOverrideEnabled", "/systems/0/override/enabled"},
	{"/Boot/BootSourceOverrideTarget", "/systems/0/override/target"},
	{"/Boot/BootSourceOverrideMode", "/systems/0/override/mode"},
	{"/Boot/HttpBootUri", "/systems/0/override/httpBootUri"},
}

func longPointer(p string) string {
	for _, s := range shortcuts {
		if p == s.from || strings.HasPrefix(p, s.from+"/") {
			return s.to + p[len(s.from):]
		}
	}
	return p
}

// effect changes the true state: values at pointers into State, or at one of
// the shortcuts. All of it is done or, when one means nothing, none.
func (m *Machine) effect(values map[string]any) error {
	st, err := m.withEffect(values)
	if err != nil {
		return err
	}
	m.adopt(st)
	return nil
}

// withEffect is the state that an effect would make.
func (m *Machine) withEffect(values map[string]any) (State, error) {
	var st State
	var doc any
	if err := json.Unmarshal(encoded(m.st), &doc); err != nil {
		return st, err
	}
	for _, p := range keys(values) {
		long := longPointer(p)
		if parent := long[:strings.LastIndexByte(long, '/')]; parent != "" {
			if _, ok := lookUp(doc, parent); !ok {
				return st, fmt.Errorf("%s: there is no %s", p, parent)
			}
		}
		doc = setAt(doc, long, values[p])
	}
	dec := json.NewDecoder(bytes.NewReader(encoded(doc)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&st); err != nil {
		return st, err
	}
	return st, m.possible(&st)
}

// possible refuses a state that this machine cannot be in.
func (m *Machine) possible(st *State) error {
	if len(st.Systems) != len(m.st.Systems) {
		return errors.New("a machine keeps the number of its systems")
	}
	for i := range st.Systems {
		if len(st.Systems[i].Media) > len(m.prof.Media.Slots) {
			return errors.New("a machine gets no more media slots")
		}
	}
	if len(st.Accounts) == 0 {
		return errors.New("a BMC keeps one account at least")
	}
	for _, t := range st.Tasks {
		if len(t.States) == 0 {
			return errors.New("a task is in some state")
		}
	}
	return nil
}

// adopt takes another state over, and ends what can no longer run in it.
func (m *Machine) adopt(st State) {
	before := m.st
	m.st = st
	if st.Counts.Requests == nil {
		m.st.Counts.Requests = map[string]int{}
	}
	if st.Counts.Resets == nil {
		m.st.Counts.Resets = map[string]int{}
	}
	for i := range m.st.Systems {
		s := &m.st.Systems[i]
		if s.Power == powerOff && before.Systems[i].Power == powerOn {
			m.halt(i)
			s.PostUntil = time.Time{}
			s.Transition = nil
		}
		if s.Power == powerOn && before.Systems[i].Power == powerOff {
			s.Transition = nil
			m.startPost(i, causeSelf, m.rack.clock.now())
		}
	}
}
