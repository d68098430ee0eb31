package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/fleet"
)

// field is a member of a method's input that has a flag.
type field struct {
	// path are the JSON names from the input down.
	path     []string
	flag     string
	kind     reflect.Type
	doc      string
	required bool
	secret   bool
	// values are all that it takes, where they are few.
	values []string
}

// fieldsOf lists the members of an input type that a flag can give: scalars,
// lists of strings and numbers, maps of strings; nested objects by their
// members. What is left goes through --input.
func fieldsOf(t reflect.Type, path []string) []field {
	var out []field
	for i := range t.NumField() {
		sf := t.Field(i)
		if sf.Anonymous {
			out = append(out, fieldsOf(sf.Type, path)...)
			continue
		}
		name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		at := append(append([]string{}, path...), name)
		ft := sf.Type
		if ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		if ft.Kind() == reflect.Struct && ft != reflect.TypeFor[fleet.Time]() {
			if len(path) < 3 && ft != t {
				out = append(out, fieldsOf(ft, at)...)
			}
			continue
		}
		if !flaggable(ft) {
			continue
		}
		words := make([]string, len(at))
		for i, w := range at {
			words[i] = fleet.Kebab(strings.ReplaceAll(w, "GiB", "Gib")) // the unit is one word
		}
		out = append(out, field{path: at, flag: strings.Join(words, "-"), kind: ft, doc: sf.Tag.Get("doc"),
			required: strings.HasPrefix(sf.Tag.Get("validate"), "required"), secret: sf.Tag.Get("secret") == "true",
			values: valuesOf(sf.Tag.Get("validate"))})
	}
	return out
}

// valuesOf are the values that a constraint names.
func valuesOf(constraint string) []string {
	_, list, ok := strings.Cut(constraint, "oneof=")
	if !ok {
		return nil
	}
	list, _, _ = strings.Cut(list, ",")
	return strings.Fields(list)
}

func flaggable(t reflect.Type) bool {
	if t == reflect.TypeFor[fleet.Time]() {
		return true
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64:
		return true
	case reflect.Slice:
		return t.Elem().Kind() == reflect.String || t.Elem().Kind() == reflect.Int
	case reflect.Map:
		return t.Elem().Kind() == reflect.String
	default:
		return false
	}
}

// many says that the flag may be given several times.
func (f field) many() bool { return f.kind.Kind() == reflect.Slice || f.kind.Kind() == reflect.Map }

// addFlag gives a member its flag. A secret is never on the command line: its
// flag names a file, - for standard input.
func (f field) addFlag(cmd *cobra.Command) {
	fs := cmd.Flags()
	doc := strings.TrimSuffix(f.doc, ".")
	if len(f.values) > 0 {
		doc += " (" + strings.Join(f.values, ", ") + ")"
	}
	if f.required {
		doc += " (needed)"
	}
	switch {
	case f.secret:
		fs.String(f.name(), "", doc+"; a file, - for standard input")
	case f.kind.Kind() == reflect.Bool:
		fs.Bool(f.flag, false, doc)
	case f.kind.Kind() == reflect.Slice:
		fs.StringArray(f.flag, nil, doc+"; may be given several times")
	case f.kind.Kind() == reflect.Map:
		fs.StringArray(f.flag, nil, doc+"; KEY=VALUE, may be given several times")
	case f.kind == reflect.TypeFor[fleet.Time]():
		fs.String(f.flag, "", doc+"; RFC 3339, or a duration from now")
	default:
		fs.String(f.flag, "", doc)
	}
}

// name is the flag as it is typed, without the dashes.
func (f field) name() string {
	if f.secret {
		return f.flag + "-file"
	}
	return f.flag
}

// value reads the flag, and whether it was given.
func (f field) value(cmd *cobra.Command, a *app) (any, bool, error) {
	name := f.name()
	if !cmd.Flags().Changed(name) {
		return nil, false, nil
	}
	raw := cmd.Flags().Lookup(name).Value.String()
	switch {
	case f.secret:
		v, err := a.readSecret(raw)
		return v, true, err
	case f.kind.Kind() == reflect.Bool:
		return raw == "true", true, nil
	case f.kind.Kind() == reflect.Slice, f.kind.Kind() == reflect.Map:
		list, err := cmd.Flags().GetStringArray(name)
		if err != nil {
			return nil, false, usageError{err}
		}
		v, err := many(f.kind, name, list)
		return v, true, err
	case f.kind == reflect.TypeFor[fleet.Time]():
		v, err := moment(raw, a.now())
		return v, true, err
	case f.kind.Kind() == reflect.Int, f.kind.Kind() == reflect.Int64:
		n, err := strconv.ParseInt(raw, 10, 64)
		if err != nil {
			return nil, false, usagef("--%s: %q is not a whole number", name, raw)
		}
		return n, true, nil
	default:
		return raw, true, nil
	}
}

func many(kind reflect.Type, name string, list []string) (any, error) {
	if kind.Kind() == reflect.Map {
		m := map[string]string{}
		for _, kv := range list {
			k, v, ok := strings.Cut(kv, "=")
			if !ok {
				return nil, usagef("--%s: %q is not KEY=VALUE", name, kv)
			}
			m[k] = v
		}
		return m, nil
	}
	if kind.Elem().Kind() == reflect.String {
		return list, nil
	}
	numbers := make([]int64, len(list))
	for i, s := range list {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return nil, usagef("--%s: %q is not a whole number", name, s)
		}
		numbers[i] = n
	}
	return numbers, nil
}

func moment(raw string, now time.Time) (string, error) {
	if d, err := time.ParseDuration(raw); err == nil {
		return now.Add(d).UTC().Format(fleet.TimeFormat), nil
	}
	t, err := time.Parse(time.RFC3339Nano, raw)
	if err != nil {
		return "", usagef("%q is neither a time (RFC 3339) nor a duration such as 2h", raw)
	}
	return t.UTC().Format(fleet.TimeFormat), nil
}

// readSecret reads a file, or standard input for -, without its last line
// break.
func (a *app) readSecret(path string) (string, error) {
	var b []byte
	var err error
	if path == "-" {
		b, err = io.ReadAll(io.LimitReader(a.in, 1<<20))
	} else {
		b, err = os.ReadFile(path)
	}
	if err != nil {
		return "", fmt.Errorf("read the secret: %w", err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}

// readInput reads --input: a JSON object, from a file or standard input.
func (a *app) readInput(path string) (map[string]any, error) {
	in := map[string]any{}
	if path == "" {
		return in, nil
	}
	raw, err := a.readSecret(path)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(raw), &in); err != nil {
		return nil, usagef("--input %s: %w", path, err)
	}
	return in, nil
}

// put sets a member of an input by its path.
func put(in map[string]any, path []string, v any) {
	for _, name := range path[:len(path)-1] {
		next, ok := in[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			in[name] = next
		}
		in = next
	}
	in[path[len(path)-1]] = v
}
