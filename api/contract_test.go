package api_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

	"github.com/bettercompute/compute/api"
	"github.com/bettercompute/compute/fleet"
)

// contractMethods are the methods of the nodes group, which the reference fixes.
var contractMethods = []string{"list", "get", "events", "cordon", "uncordon", "drain", "label", "taint", "adopt", "revokeIdentity", "delete",
	"issueSshCert", "revokeSshCert", "listSshCerts"}

// contract is one file of testdata/contract: a method as the reference has it.
type contract struct {
	Method, Post, Kind, Authorization, Module, Phase string
	// Input is the reference's table: field | type | required | constraints.
	Input string
	Cases []contractCase
}

// contractField is one row of a contract's table, read from the reference's
// words. The zero value of a bound is none.
type contractField struct {
	name, typ string
	required  bool
	oneOf     []string
	pattern   string
	keys      string
	// min and max bound a number; length bounds characters; items and entries
	// bound lists and maps.
	min, max               *int
	length, items, entries int
	unique                 bool
	def                    any
}

func contracts(t *testing.T) []contract {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "contract", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var out []contract
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var c contract
		dec := yaml.NewDecoder(bytes.NewReader(raw))
		dec.KnownFields(true)
		if err := dec.Decode(&c); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		out = append(out, c)
	}
	return out
}

// fields reads the contract's table.
func (c contract) fields(t *testing.T) []contractField {
	t.Helper()
	var out []contractField
	for row := range strings.Lines(c.Input) {
		cells := strings.SplitN(strings.TrimSpace(row), " | ", 4)
		if len(cells) != 4 {
			t.Fatalf("%s: row %q", c.Method, row)
		}
		f := contractField{name: cells[0], typ: cells[1], required: cells[2] == "yes"}
		if words, ok := strings.CutPrefix(f.typ, "one of "); ok {
			f.typ, f.oneOf = "string", strings.Split(words, ", ")
		}
		if cells[3] != "-" {
			for words := range strings.SplitSeq(cells[3], "; ") {
				f.read(t, words)
			}
		}
		out = append(out, f)
	}
	return out
}

// read reads one constraint in the reference's words.
func (f *contractField) read(t *testing.T, words string) {
	t.Helper()
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("%s: constraint %q", f.name, words)
		}
		return n
	}
	w := strings.Fields(words)
	last := w[len(w)-1]
	switch {
	case strings.HasPrefix(words, "matches "):
		f.pattern = last
	case strings.HasPrefix(words, "keys match "):
		f.keys = last
	case words == "no repeats":
		f.unique = true
	case w[0] == "default":
		if err := json.Unmarshal([]byte(last), &f.def); err != nil {
			t.Fatalf("%s: constraint %q", f.name, words)
		}
	case strings.HasPrefix(words, "at least "):
		n := number(last)
		f.min = &n
	case strings.HasPrefix(words, "at most ") && last == "characters":
		f.length = number(w[2])
	case strings.HasPrefix(words, "at most ") && last == "entries":
		f.entries = number(w[2])
	case last == "items":
		_, most, _ := strings.Cut(w[0], "-")
		f.items = number(most)
	default:
		least, most, ok := strings.Cut(words, "-")
		if !ok {
			t.Fatalf("%s: constraint %q", f.name, words)
		}
		lo, hi := number(least), number(most)
		f.min, f.max = &lo, &hi
	}
}

// schema is the field in JSON Schema's words.
func (f contractField) schema() obj {
	s := obj{}
	put := func(at obj, name string, v any, given bool) {
		if given {
			at[name] = v
		}
	}
	switch f.typ {
	case "map of string":
		s["type"], s["additionalProperties"] = "object", obj{"type": "string"}
	case "list of string":
		s["type"], s["items"] = "array", obj{"type": "string"}
	default:
		s["type"] = f.typ
	}
	put(s, "enum", toAny(f.oneOf), f.oneOf != nil)
	put(s, "pattern", f.pattern, f.pattern != "")
	put(s, "propertyNames", obj{"pattern": f.keys}, f.keys != "")
	put(s, "maxLength", float64(f.length), f.length != 0)
	put(s, "maxItems", float64(f.items), f.items != 0)
	put(s, "maxProperties", float64(f.entries), f.entries != 0)
	put(s, "uniqueItems", true, f.unique)
	put(s, "default", f.def, f.def != nil)
	if f.min != nil {
		s["minimum"] = float64(*f.min)
	}
	if f.max != nil {
		s["maximum"] = float64(*f.max)
	}
	return s
}

func toAny(list []string) []any {
	var out []any
	for _, s := range list {
		out = append(out, s)
	}
	return out
}

// beyondTheTable are rules of the prose that the OpenAPI document says with the
// field: an empty taint key, and the kinds of keys that are certified.
var beyondTheTable = map[string]obj{
	"taint.add":              {"items": obj{"type": "string", "minLength": float64(1)}},
	"taint.remove":           {"items": obj{"type": "string", "minLength": float64(1)}},
	"issueSshCert.publicKey": {"format": "ssh-public-key"},
}

// The reference, the method table and the OpenAPI document say the same of each
// method of the group, and no method of it is without a file or a handler.
func TestContractIsTheTable(t *testing.T) {
	t.Parallel()
	raw, err := api.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths      map[string]struct{ Post map[string]any }
		Components struct{ Schemas map[string]obj }
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range contracts(t) {
		names = append(names, c.Method)
		m, ok := fleet.FindMethod("nodes", c.Method)
		if !ok {
			t.Errorf("nodes/%s is in the reference and not in the method table", c.Method)
			continue
		}
		c.compareMethod(t, m)
		post := doc.Paths[c.Post].Post
		if post == nil {
			t.Errorf("%s has no path in the OpenAPI document", c.Post)
			continue
		}
		ref := post["requestBody"].(obj)["content"].(obj)["application/json"].(obj)["schema"].(obj)["$ref"].(string)
		c.compareSchema(t, doc.Components.Schemas[strings.TrimPrefix(ref, "#/components/schemas/")])
	}
	slices.Sort(names)
	if diff := cmp.Diff(slices.Sorted(slices.Values(contractMethods)), names); diff != "" {
		t.Errorf("files of methods (-reference +found):\n%s", diff)
	}
	for _, m := range fleet.Methods {
		if m.Group == "nodes" && !slices.Contains(contractMethods, m.Name) {
			t.Errorf("%s is in the method table and not in the reference", m.FullName())
		}
	}
}

func (c contract) compareMethod(t *testing.T, m fleet.Method) {
	t.Helper()
	authorization := string(m.Permission) + " @ " + string(m.Resource)
	if m.Items {
		authorization += " + items"
	}
	if !strings.Contains(c.Authorization, "@") { // listSshCerts, whose prose says on what
		authorization = string(m.Permission)
	}
	phase := m.Phase
	if phase == "" {
		phase = "—"
	}
	got := []string{m.Path(), string(m.Kind), authorization, m.Module, phase}
	if diff := cmp.Diff([]string{c.Post, c.Kind, c.Authorization, c.Module, c.Phase}, got); diff != "" {
		t.Errorf("nodes/%s (-reference +table):\n%s", c.Method, diff)
	}
}

func (c contract) compareSchema(t *testing.T, schema obj) {
	t.Helper()
	want, needed := obj{}, []any{}
	for _, f := range c.fields(t) {
		s := f.schema()
		for name, v := range beyondTheTable[c.Method+"."+f.name] {
			s[name] = v
		}
		want[f.name] = s
		if f.required {
			needed = append(needed, f.name)
		}
	}
	got := obj{}
	for name, v := range schema["properties"].(obj) {
		s := v.(obj)
		delete(s, "description")
		got[name] = s
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("input of nodes/%s (-reference +OpenAPI):\n%s", c.Method, diff)
	}
	if !reflect.DeepEqual(needed, schema["required"]) || schema["additionalProperties"] != false {
		t.Errorf("nodes/%s requires %v, more members %v; want %v, false", c.Method, schema["required"], schema["additionalProperties"], needed)
	}
}
