package api

import (
	"bytes"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/bettercompute/compute/fleet"
)

// decoder decodes an input strictly and collects every offending field.
type decoder struct{ errs []fleet.FieldError }

// decode decodes a body into an input type: names match exactly, unknown and
// double members, wrong types (null is one), trailing data, bad UTF-8 and
// U+0000 are refused, and every constraint of the type's tags is enforced.
func decode[In any](body []byte) (In, []fleet.FieldError) {
	var in In
	d := &decoder{}
	v := jsontext.Value(body)
	if wrong := wellFormed(body); wrong != nil {
		return in, []fleet.FieldError{*wrong}
	}
	if v.Kind() != '{' {
		return in, []fleet.FieldError{{Field: "", Constraint: "a JSON object"}}
	}
	d.object(reflect.ValueOf(&in).Elem(), v, "")
	return in, d.errs
}

// wellFormed says what is wrong with a text as one strict JSON value, nil for
// nothing. A fault within a member names it.
func wellFormed(body []byte) *fleet.FieldError {
	dec := jsontext.NewDecoder(bytes.NewReader(body))
	for depth := true; depth; {
		tok, err := dec.ReadToken()
		if err != nil {
			return &fleet.FieldError{Field: fieldAt(faultAt(err)), Constraint: "one JSON object with each member once, in valid UTF-8: " + plain(err)}
		}
		if tok.Kind() == '"' && strings.ContainsRune(tok.String(), 0) {
			return &fleet.FieldError{Field: fieldAt(dec.StackPointer()), Constraint: "no U+0000 anywhere"}
		}
		depth = dec.StackDepth() > 0
	}
	if _, err := dec.ReadToken(); err == nil || !isEOF(err) {
		return &fleet.FieldError{Constraint: "one JSON object and nothing after it"}
	}
	return nil
}

// fieldAt writes a JSON pointer as fields are named.
func fieldAt(p jsontext.Pointer) string {
	path := ""
	for name := range p.Tokens() {
		if _, err := strconv.Atoi(name); err == nil {
			path += "[" + name + "]"
		} else {
			path = join(path, strings.ReplaceAll(name, "\x00", `\u0000`))
		}
	}
	return path
}

func (d *decoder) fail(field, constraint string) {
	d.errs = append(d.errs, fleet.FieldError{Field: field, Constraint: constraint})
}

// member is a field of an input struct.
type member struct {
	name  string
	field reflect.StructField
	index []int
}

// members lists the members of a struct type, those of embedded structs among
// them.
func members(t reflect.Type) []member {
	var out []member
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			for _, m := range members(f.Type) {
				m.index = append([]int{i}, m.index...)
				out = append(out, m)
			}
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out = append(out, member{name: name, field: f, index: []int{i}})
	}
	return out
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func (d *decoder) object(into reflect.Value, raw jsontext.Value, path string) {
	given := map[string]jsontext.Value{}
	if err := json.Unmarshal(raw, &given); err != nil {
		d.fail(path, "an object")
		return
	}
	all := members(into.Type())
	for _, m := range all {
		at := join(path, m.name)
		value, ok := given[m.name]
		delete(given, m.name)
		target := into.FieldByIndex(m.index)
		rules := m.field.Tag.Get("validate")
		if !ok {
			if required(rules) {
				d.fail(at, "required")
			} else {
				setDefault(target, m.field.Tag.Get("default"))
			}
			continue
		}
		before := len(d.errs)
		if d.value(target, value, at); len(d.errs) == before {
			d.check(target, rules, at)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		d.fail(join(path, name), "no such member")
	}
}

func required(rules string) bool { return rules == "required" || strings.HasPrefix(rules, "required,") }

// value decodes one value by its Go type.
func (d *decoder) value(into reflect.Value, raw jsontext.Value, path string) {
	if into.Kind() == reflect.Pointer {
		p := reflect.New(into.Type().Elem())
		d.value(p.Elem(), raw, path)
		into.Set(p)
		return
	}
	if into.Type() == reflect.TypeFor[fleet.Time]() {
		d.time(into, raw, path)
		return
	}
	switch into.Kind() {
	case reflect.String:
		d.scalar(into, raw, '"', path, "a string")
	case reflect.Bool:
		if raw.Kind() != 't' && raw.Kind() != 'f' {
			d.fail(path, "true or false")
			return
		}
		into.SetBool(raw.Kind() == 't')
	case reflect.Int, reflect.Int64:
		n, ok := integer(raw)
		if !ok {
			d.fail(path, "a whole number")
			return
		}
		into.SetInt(n)
	case reflect.Struct:
		if raw.Kind() != '{' {
			d.fail(path, "an object")
			return
		}
		d.object(into, raw, path)
	case reflect.Slice:
		d.list(into, raw, path)
	case reflect.Map:
		d.mapping(into, raw, path)
	default:
		panic("api: input member " + path + " has a type the decoder does not know: " + into.Type().String())
	}
}

func (d *decoder) scalar(into reflect.Value, raw jsontext.Value, kind jsontext.Kind, path, want string) {
	if raw.Kind() != kind {
		d.fail(path, want)
		return
	}
	if err := json.Unmarshal(raw, into.Addr().Interface()); err != nil {
		d.fail(path, want)
	}
}

func (d *decoder) time(into reflect.Value, raw jsontext.Value, path string) {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		// In UTC it has to be a year of four digits still, or nobody could read it again.
		if t, err := time.Parse(time.RFC3339Nano, s); err == nil && t.UTC().Year() >= 0 && t.UTC().Year() <= 9999 {
			into.Set(reflect.ValueOf(fleet.At(t)))
			return
		}
	}
	d.fail(path, "a time as RFC 3339 writes it")
}

func (d *decoder) list(into reflect.Value, raw jsontext.Value, path string) {
	var items []jsontext.Value
	if raw.Kind() != '[' || json.Unmarshal(raw, &items) != nil {
		d.fail(path, "a list")
		return
	}
	list := reflect.MakeSlice(into.Type(), len(items), len(items))
	for i, item := range items {
		d.value(list.Index(i), item, path+"["+strconv.Itoa(i)+"]")
	}
	into.Set(list)
}

func (d *decoder) mapping(into reflect.Value, raw jsontext.Value, path string) {
	items := map[string]jsontext.Value{}
	if raw.Kind() != '{' || json.Unmarshal(raw, &items) != nil {
		d.fail(path, "an object")
		return
	}
	m := reflect.MakeMap(into.Type())
	for _, name := range slices.Sorted(maps.Keys(items)) {
		v := reflect.New(into.Type().Elem()).Elem()
		d.value(v, items[name], path+"["+name+"]")
		m.SetMapIndex(reflect.ValueOf(name), v)
	}
	into.Set(m)
}

// setDefault fills an absent member with its default.
func setDefault(into reflect.Value, text string) {
	if text == "" {
		return
	}
	if into.Kind() == reflect.Pointer {
		p := reflect.New(into.Type().Elem())
		setDefault(p.Elem(), text)
		into.Set(p)
		return
	}
	switch into.Kind() {
	case reflect.String:
		into.SetString(text)
	case reflect.Bool:
		into.SetBool(text == "true")
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			panic("api: default " + text + " is no number")
		}
		into.SetInt(n)
	default:
		panic("api: no default is known of a " + into.Kind().String())
	}
}
