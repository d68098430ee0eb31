package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/bettercompute/compute/api"
	"github.com/bettercompute/compute/fleet"
)

// samples are values that match each pattern, in the table's own words.
var samples = map[string]string{
	"tenantId": "acme", "poolRef": "pool_1", "siteId": "site_01j00000000000000000000000", "nodeId": absentNode,
	"operationId": "op_01j00000000000000000000000", "bindingId": "bind_01j00000000000000000000000",
	"serviceTokenId": "svct_01j00000000000000000000000", "joinTokenId": "join_01j00000000000000000000000",
	"allocationId": "alloc_01j00000000000000000000000", "reservationId": "resv_01j00000000000000000000000", "sshNodeId": absentNode, "principal": "root", "serial": "1",
	"listCursor": "a", "eventType": "node.", "eventCursor": "1:1", "reason": "why",
	"labelKey": "a/b", "dnsLabel": "rack-1", "hostname": "a.example", "mac": "aa:bb:cc:dd:ee:ff", "checksum": "sha256:" + strings.Repeat("a", 64),
	"fingerprint": "sha256:" + strings.Repeat("a", 64), "identity": "dev:ann", "httpURL": "http://a/b", "uuid": "4c4c4544-0051-3910-8053-b4c04f4e3933",
	"sshKey": testSSHKey, "taintKey": "a",
}

// padded is a key with a comment that makes it n characters long.
func padded(key string, n int) string { return key + " " + strings.Repeat("ä", n-len(key)-1) }

// side is a value of a member, by its path, on one side of a constraint.
type side struct {
	path, rule string
	value      any
	taken      bool
	body       obj
}

// sidesOf collects both sides of every constraint of a type, of what is nested in
// it too: put makes the whole input of a value at the path.
type sidesOf struct {
	t   *testing.T
	all []side
}

func (s *sidesOf) add(put func(any) obj, path, rule string, taken bool, values ...any) {
	for _, v := range values {
		s.all = append(s.all, side{path, rule, v, taken, put(v)})
	}
}

// cutRules takes a tag apart: the rules of the value itself, of a map's keys, and
// of its elements.
func cutRules(tag string) (own []string, keys, elements string) {
	head, elements, _ := strings.Cut(tag, ",dive")
	elements = strings.TrimPrefix(elements, ",")
	if rest, ok := strings.CutPrefix(elements, "keys,"); ok {
		keys, elements, _ = strings.Cut(rest, ",endkeys")
		elements = strings.TrimPrefix(elements, ",")
	}
	return strings.Split(head, ","), keys, elements
}

func (s *sidesOf) value(typ reflect.Type, tag, path string, put func(any) obj) {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if typ == reflect.TypeFor[fleet.Time]() {
		s.add(put, path, "a time", true, "2100-01-01T00:00:00Z", "2100-01-01T00:00:00.123456789+02:00", "9999-12-31T23:59:59Z", "0000-01-01T00:00:00Z")
		s.add(put, path, "a time", false, nil, 5, "tomorrow", "2100-01-01", "2100-01-01T00:00:00", "9999-12-31T23:59:59-01:00", "0000-01-01T00:00:00+01:00")
		return
	}
	switch typ.Kind() {
	case reflect.Struct:
		s.add(put, path, "an object", false, nil, "a", 5, []any{}, obj{"noSuchMember": 1})
		for i := range typ.NumField() {
			s.member(typ.Field(i), path, put)
		}
	case reflect.Slice:
		s.list(typ.Elem(), tag, path, put)
	case reflect.Map:
		s.mapping(typ.Elem(), tag, path, put)
	case reflect.Bool:
		s.add(put, path, "a boolean", true, true, false)
		s.add(put, path, "a boolean", false, nil, "true", 1, []any{true})
	case reflect.Int, reflect.Int64:
		s.add(put, path, "a number", false, nil, "5", true, 5.5, []any{5}, obj{})
		s.number(tag, path, put)
	case reflect.String:
		s.add(put, path, "a string", false, nil, 5, true, []any{"a"}, obj{}, raw(`"\u0000"`), raw(`"a\ud800"`))
		s.text(tag, path, put)
	default:
		s.t.Fatalf("%s is a %s", path, typ)
	}
}

func (s *sidesOf) member(f reflect.StructField, path string, put func(any) obj) {
	if f.Anonymous {
		for i := range f.Type.NumField() {
			s.member(f.Type.Field(i), path, put)
		}
		return
	}
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	at := name
	if path != "" {
		at = path + "." + name
	}
	tag := f.Tag.Get("validate")
	in := func(v any) obj { return put(obj{name: v}) }
	if strings.HasPrefix(tag, "required") {
		s.all = append(s.all, side{at, "required", "nothing", false, put(obj{})})
	}
	s.value(f.Type, tag, at, in)
}

func (s *sidesOf) number(tag, path string, put func(any) obj) {
	own, _, _ := cutRules(tag)
	for _, rule := range own {
		name, param, _ := strings.Cut(rule, "=")
		n, _ := strconv.ParseInt(param, 10, 64)
		switch name {
		case "min":
			s.add(put, path, rule, true, n, raw(fmt.Sprintf("%d.0", n)), raw(fmt.Sprintf("%de0", n)))
			s.add(put, path, rule, false, n-1, raw("-1e400"))
		case "max":
			s.add(put, path, rule, true, n)
			s.add(put, path, rule, false, n+1, raw("1e400"))
		case "oneof":
			for _, w := range strings.Fields(param) {
				s.add(put, path, rule, true, raw(w))
			}
			s.add(put, path, rule, false, -1, 1<<40)
		}
	}
}

func (s *sidesOf) text(tag, path string, put func(any) obj) {
	own, _, _ := cutRules(tag)
	fits := func(v string) bool { return true }
	if i := slices.IndexFunc(own, func(r string) bool { return strings.HasPrefix(r, "pattern=") }); i >= 0 {
		pattern := strings.TrimPrefix(own[i], "pattern=")
		sample, ok := samples[pattern]
		if !ok {
			s.t.Fatalf("no sample of pattern %s", pattern)
		}
		re := oracle(fleet.Patterns[pattern])
		fits = re.MatchString
		s.add(put, path, own[i], true, sample)
		least, most := lengthOf("min=", own, 0), lengthOf("max=", own, math.MaxInt)
		for _, v := range near(s.t, re) {
			n := utf8.RuneCountInString(v)
			s.add(put, path, own[i], re.MatchString(v) && least <= n && n <= most, v)
		}
	}
	for _, rule := range own {
		name, param, _ := strings.Cut(rule, "=")
		n, _ := strconv.Atoi(param)
		switch {
		case name == "oneof":
			for _, w := range strings.Fields(param) {
				s.add(put, path, rule, true, w)
				s.add(put, path, rule, false, strings.ToUpper(w)+"x", w+" ", "")
			}
		case name == "cidr":
			s.add(put, path, rule, true, "10.0.0.0/8", "2001:db8::/32")
			s.add(put, path, rule, false, "10.0.0.0", "10.0.0.0/33", "a/8", "")
		case name == "sshcertkey":
			s.add(put, path, rule, true, testSSHKey)
			s.add(put, path, rule, false, "ssh-rsa AAAA", "")
		case name == "max" && slices.Contains(own, "sshcertkey"):
			s.add(put, path, rule, true, padded(testSSHKey, n))
			s.add(put, path, rule, false, padded(testSSHKey, n+1))
		case name == "max":
			for _, c := range []string{"a", "ä", "\U0001F600"} { // characters, not bytes
				s.add(put, path, rule, fits(strings.Repeat(c, n)), strings.Repeat(c, n))
				s.add(put, path, rule, false, strings.Repeat(c, n+1))
			}
		case name == "min":
			s.add(put, path, rule, fits(strings.Repeat("a", n)), strings.Repeat("a", n))
			s.add(put, path, rule, false, strings.Repeat("a", n-1))
		}
	}
}

// lengthOf is how many characters a rule says, or what is so without one.
func lengthOf(rule string, rules []string, without int) int {
	for _, r := range rules {
		if text, ok := strings.CutPrefix(r, rule); ok {
			n, _ := strconv.Atoi(text)
			return n
		}
	}
	return without
}

// distinct are n elements that differ, none when the rules know fewer.
func distinct(n int, rules string) []any {
	out := make([]any, n)
	for i := range out {
		switch {
		case strings.Contains(rules, "oneof="):
			return nil
		case strings.Contains(rules, "cidr"):
			out[i] = fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)
		case strings.Contains(rules, "sshKey"):
			out[i] = testSSHKey + " " + strconv.Itoa(i)
		default:
			out[i] = "k" + strconv.Itoa(i)
		}
	}
	return out
}

func (s *sidesOf) list(elem reflect.Type, tag, path string, put func(any) obj) {
	s.add(put, path, "a list", false, nil, "a", 5, obj{}, []any{nil})
	own, _, elements := cutRules(tag)
	for _, rule := range own {
		name, param, _ := strings.Cut(rule, "=")
		n, _ := strconv.Atoi(param)
		switch name {
		case "max":
			if most := distinct(n, elements); most != nil {
				s.add(put, path, rule, true, most)
				s.add(put, path, rule, false, distinct(n+1, elements))
			}
		case "min":
			s.add(put, path, rule, false, distinct(n-1, elements))
		case "unique":
			one := distinct(1, elements)
			if one == nil {
				one = []any{raw(`3`), raw(`"memory"`)}[b2i(elem.Kind() == reflect.String):][:1]
			}
			s.add(put, path, rule, true, one)
			s.add(put, path, rule, false, append(slices.Clone(one), one...))
		}
	}
	s.value(elem, elements, path+"[0]", func(v any) obj { return put([]any{v}) })
}

func (s *sidesOf) mapping(elem reflect.Type, tag, path string, put func(any) obj) {
	s.add(put, path, "an object", false, nil, "a", 5, []any{})
	own, keys, elements := cutRules(tag)
	good := map[reflect.Kind]any{reflect.String: "1", reflect.Struct: obj{}, reflect.Map: obj{}}[elem.Kind()]
	of := func(n int) obj {
		out := obj{}
		for _, k := range distinct(n, "") {
			out[k.(string)] = good
		}
		return out
	}
	for _, rule := range own {
		if n, ok := strings.CutPrefix(rule, "max="); ok {
			most, _ := strconv.Atoi(n)
			s.add(put, path, rule, true, of(most))
			s.add(put, path, rule, false, of(most+1))
		}
	}
	if pattern, ok := strings.CutPrefix(keys, "pattern="); ok {
		re := oracle(fleet.Patterns[pattern])
		for _, k := range near(s.t, re) {
			s.add(put, path, keys, re.MatchString(k), obj{k: good})
		}
	}
	s.value(elem, elements, path+"[k]", func(v any) obj { return put(obj{"k": v}) })
}

func allSides(t *testing.T, m fleet.Method) []side {
	t.Helper()
	s := &sidesOf{t: t}
	s.value(reflect.TypeOf(m.In), "", "", func(v any) obj {
		if o, ok := v.(obj); ok {
			return o
		}
		return nil
	})
	// The body as a whole is another test's.
	return slices.DeleteFunc(s.all, func(x side) bool { return x.body == nil || x.path == "" })
}

// Every constraint of every member of every input of the method table, nested
// ones too: what is within is taken, what is beyond is refused by the member's
// name.
func TestBothSidesOfEveryBound(t *testing.T) {
	t.Parallel()
	for _, m := range fleet.Methods {
		t.Run(m.FullName(), func(t *testing.T) {
			t.Parallel()
			for _, x := range allSides(t, m) {
				body, err := json.Marshal(x.body)
				if err != nil {
					t.Fatal(err)
				}
				errs := api.Decode(m, body)
				refused := slices.ContainsFunc(errs, func(e fleet.FieldError) bool { return ofMember(e.Field, x.path) })
				if refused == x.taken {
					t.Errorf("%s (%s): %.60q is taken %v, want %v: %v", x.path, x.rule, fmt.Sprint(x.value), !refused, x.taken, errs)
				}
			}
			if errs := api.Decode(m, []byte(`{"noSuchMember":1}`)); !slices.ContainsFunc(errs, func(e fleet.FieldError) bool { return e.Field == "noSuchMember" }) {
				t.Error("an unknown member is taken")
			}
		})
	}
}

// ofMember says whether a field is a member or something in it. A member of a map
// is written in brackets by who knows that it is one.
func ofMember(field, path string) bool {
	plain := strings.NewReplacer("[", ".", "]", "").Replace
	field, path = plain(field), plain(path)
	return field == path || strings.HasPrefix(field, path+".")
}

// What the decoder takes of each member, put into a call that is right otherwise,
// comes to an answer or a refusal: never to an error of ours, and nothing of ours
// leaves.
func TestTakenIsAnswered(t *testing.T) {
	t.Parallel()
	r := newMatrixRig(t)
	for n, c := range matrixCases(t) {
		if c.title != c.FullName() || c.FullName() == "operations/wait" {
			continue
		}
		_, base := r.input(c, "own", n)
		delete(base, "version")
		subject := "owner"
		if c.FullName() == "nodes/issueSshCert" {
			subject = caller("acme", "b", true)
		}
		for i, x := range allSides(t, c.Method) {
			if !x.taken {
				continue
			}
			in := maps.Clone(base)
			maps.Copy(in, nestedInto(base, x.body))
			if c.FullName() == "metal/enroll" {
				in["dryRun"] = true
			}
			body, err := json.Marshal(in)
			if err != nil {
				t.Fatal(err)
			}
			a := r.do("POST", r.url+c.Path(), body, "Authorization", "Bearer "+r.token(subject), "Content-Type", "application/json")
			if a.status == 500 || a.status == 503 && !bytes.Contains(a.body, []byte("no-capacity")) || bytes.Contains(a.body, []byte("SQLSTATE")) || bytes.Contains(a.body, []byte(".go:")) {
				t.Errorf("%s with %s (%s, %d) %.60q: %d %s", c.FullName(), x.path, x.rule, i, fmt.Sprint(x.value), a.status, a.body)
			}
		}
	}
}

// nestedInto puts the members of an input over those of another, object by object.
func nestedInto(base, over obj) obj {
	out := obj{}
	for name, v := range over {
		b, ok1 := base[name].(obj)
		o, ok2 := v.(obj)
		if ok1 && ok2 {
			merged := maps.Clone(b)
			maps.Copy(merged, nestedInto(b, o))
			v = merged
		}
		out[name] = v
	}
	return out
}
