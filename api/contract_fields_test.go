package api_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/bettercompute/compute/api"
)

// raw is a member's value as it is sent.
type raw = json.RawMessage

// attempt is a value of a member and whether the reference takes it.
type attempt struct {
	value raw
	taken bool
}

func quoted(s string) raw {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string can be written
	}
	return b
}

// oracle is a pattern of the reference as Go reads it, translated here and not
// by what is tested.
func oracle(pattern string) *regexp.Regexp {
	body := strings.TrimSuffix(strings.TrimPrefix(pattern, "^"), "$")
	body = strings.NewReplacer(`\u0000`, `\x00`, `\u001f`, `\x1f`, `\u0020`, `\x20`, `\u007f`, `\x7f`).Replace(body)
	return regexp.MustCompile(`\A(?:` + body + `)\z`)
}

// matches is a pattern's shortest match, or its longest; what may repeat without
// end is repeated a few times.
func matches(re *syntax.Regexp, longest bool) string {
	var b strings.Builder
	repeat := func(sub *syntax.Regexp, least, most int) {
		n := least
		if longest {
			n = most
			if most < 0 {
				n = least + 3
			}
		}
		for range n {
			b.WriteString(matches(sub, longest))
		}
	}
	switch re.Op {
	case syntax.OpLiteral:
		b.WriteString(string(re.Rune))
	case syntax.OpCharClass:
		r := re.Rune[len(re.Rune)-2] // the first of the last range
		if longest && r < utf8.RuneSelf {
			r = re.Rune[len(re.Rune)-1]
		}
		b.WriteRune(r)
	case syntax.OpStar:
		repeat(re.Sub[0], 0, -1)
	case syntax.OpPlus:
		repeat(re.Sub[0], 1, -1)
	case syntax.OpQuest:
		repeat(re.Sub[0], 0, 1)
	case syntax.OpRepeat:
		repeat(re.Sub[0], re.Min, re.Max)
	case syntax.OpConcat, syntax.OpCapture:
		for _, sub := range re.Sub {
			b.WriteString(matches(sub, longest))
		}
	case syntax.OpAlternate:
		b.WriteString(matches(re.Sub[0], longest))
	default: // the ends of the text
	}
	return b.String()
}

// near are strings at a pattern's edges and one step over them. Which of them
// match is asked of the oracle.
func near(t *testing.T, re *regexp.Regexp) []string {
	t.Helper()
	tree, err := syntax.Parse(re.String(), syntax.Perl)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{""}
	for _, longest := range []bool{false, true} {
		s := matches(tree, longest)
		if !re.MatchString(s) {
			t.Fatalf("%q was to match %s", s, re)
		}
		out = append(out, s, s+s[max(len(s)-1, 0):], s+"a", s+"\n", "\n"+s, " "+s, s+" ", s+"é", strings.ToUpper(s), s+"\u007f", s+"\t", s+s)
		if s != "" {
			_, size := utf8.DecodeLastRuneInString(s)
			out = append(out, s[:len(s)-size], s[1:], "!"+s[1:], s[:len(s)-size]+"l", s[:len(s)-size]+"0", s[:len(s)-size]+".")
		}
	}
	return slices.DeleteFunc(out, func(s string) bool { return !utf8.ValidString(s) })
}

// attempts are values on both sides of everything that a row says.
func (f contractField) attempts(t *testing.T) []attempt {
	t.Helper()
	out := []attempt{{raw(`null`), false}}
	add := func(taken bool, values ...string) {
		for _, v := range values {
			out = append(out, attempt{raw(v), taken})
		}
	}
	switch f.typ {
	case "boolean":
		add(true, `true`, `false`)
		add(false, `"true"`, `1`, `[]`)
	case "integer":
		add(false, `"5"`, `true`, `[5]`, `5.5`)
		lo, hi := *f.min, math.MaxInt64
		if f.max != nil {
			hi = *f.max
			add(false, strconv.Itoa(hi+1))
		}
		add(f.max == nil, `9223372036854775808`, `1e400`) // what has no upper bound has none at 64 bits either
		add(true, strconv.Itoa(lo), strconv.Itoa(hi), strconv.Itoa(lo)+".0", strconv.Itoa(lo)+"e0")
		add(false, strconv.Itoa(lo-1), strconv.Itoa(lo)+".5", "-"+strconv.Itoa(lo))
	case "string":
		add(false, `5`, `true`, `["a"]`, `{}`, `"a\u0000"`, `"\ud800"`, `"a\udc00a"`)
		out = append(out, f.strings(t)...)
	case "list of string":
		add(false, `"a"`, `{}`, `[5]`, `[null]`, `["a","a"]`, `["a\u0000"]`, `["\ud800"]`)
		out = append(out, attempt{list(f.items), true}, attempt{list(f.items + 1), false})
	case "map of string":
		add(false, `"a"`, `[]`, `{"a":5}`, `{"a":null}`, `{"a":"1","a":"2"}`, `{"a":"\u0000"}`, `{"a\ud800":"1"}`)
		add(true, `{"a":""}`, `{"a":`+string(quoted(strings.Repeat("ä", 5000)))+`}`)
		out = append(out, attempt{mapping(f.entries), true}, attempt{mapping(f.entries + 1), false})
		re := oracle(f.keys)
		for _, s := range near(t, re) {
			out = append(out, attempt{raw(`{` + string(quoted(s)) + `:"1"}`), re.MatchString(s)})
		}
	default:
		t.Fatalf("%s is a %s", f.name, f.typ)
	}
	return out
}

// strings are attempts of a string: its words, its pattern, its length in
// characters.
func (f contractField) strings(t *testing.T) []attempt {
	t.Helper()
	var out []attempt
	for _, w := range f.oneOf {
		out = append(out, attempt{quoted(w), true}, attempt{quoted(strings.ToUpper(w)), false}, attempt{quoted(w + " "), false}, attempt{quoted(""), false})
	}
	if f.oneOf != nil {
		return out
	}
	var candidates []string
	re := regexp.MustCompile("")
	if f.pattern != "" {
		re = oracle(f.pattern)
		candidates = near(t, re)
	}
	for _, n := range []int{f.length, f.length + 1} {
		if f.length > 0 {
			candidates = append(candidates, strings.Repeat("a", n), strings.Repeat("ä", n), strings.Repeat("\U0001F600", n))
		}
	}
	for _, s := range candidates {
		fits := f.length == 0 || utf8.RuneCountInString(s) <= f.length
		out = append(out, attempt{quoted(s), fits && re.MatchString(s)})
	}
	return out
}

func list(n int) raw {
	items := make([]string, n)
	for i := range items {
		items[i] = fmt.Sprintf("k%d", i)
	}
	b, _ := json.Marshal(items)
	return b
}

func mapping(n int) raw {
	items := map[string]string{}
	for i := range n {
		items[fmt.Sprintf("k%d", i)] = "1"
	}
	b, _ := json.Marshal(items)
	return b
}

// meantElsewhere are values that the table takes and the prose does not: what
// names nothing, a key that is none of ours, another list's cursor.
func meantElsewhere(method, field string, a attempt) bool {
	switch method + "." + field {
	case "list.cursor", "listSshCerts.cursor", "issueSshCert.publicKey", "issueSshCert.principal":
		return a.taken
	case "events.cursor": // 20 digits can be more than 64 bits
		return a.taken && len(a.value) > 40
	}
	return false
}

// Both sides of every constraint of the reference's tables, through HTTP: what
// it takes is not refused for that field, and what it does not take is refused
// with that field, and no other, named.
func TestContractFields(t *testing.T) {
	t.Parallel()
	for _, c := range contracts(t) {
		t.Run(c.Method, func(t *testing.T) {
			t.Parallel()
			r := newSSHRig(t, api.SSHOptions{PerHour: 1e6, Accounts: []string{"root"}})
			r.rig.t = t
			fields := c.fields(t)
			base := r.base(t, c.Method, fields)
			tried := 0
			for _, f := range fields {
				for _, a := range f.attempts(t) {
					if meantElsewhere(c.Method, f.name, a) {
						continue
					}
					tried++
					in := maps.Clone(base)
					in[f.name] = a.value
					r.tried(t, c.Method, f.name, in, a.taken)
				}
			}
			if tried < 10*len(fields) {
				t.Errorf("%d attempts at %d fields", tried, len(fields))
			}
			r.wholeBody(t, c.Method, fields, base)
		})
	}
}

// base is an input that is right.
func (r *sshRig) base(t *testing.T, method string, fields []contractField) map[string]raw {
	t.Helper()
	in := map[string]raw{"tenantId": quoted("acme")}
	if fields[1].name == "nodeId" {
		in["nodeId"] = quoted(r.node)
	}
	for name, v := range required["nodes/"+method] {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		in[name] = b
	}
	if method == "issueSshCert" {
		in["publicKey"] = quoted(r.key)
	}
	if p := r.send("owner", method, in); p != nil && p.HTTP == 400 {
		t.Fatalf("the right input is refused: %+v", *p)
	}
	return in
}

func (r *sshRig) send(subject, method string, in map[string]raw) *problem {
	r.t.Helper()
	parts := make([]string, 0, len(in))
	for _, name := range slices.Sorted(maps.Keys(in)) {
		parts = append(parts, string(quoted(name))+":"+string(in[name]))
	}
	return r.call(subject, "nodes/"+method, []byte("{"+strings.Join(parts, ",")+"}"), nil)
}

func (r *sshRig) tried(t *testing.T, method, field string, in map[string]raw, taken bool) {
	t.Helper()
	p := r.send("owner", method, in)
	var names []string
	if p != nil && p.HTTP == 400 {
		for _, f := range p.Fields {
			names = append(names, f.Field)
		}
	}
	if p != nil && (p.HTTP >= 500 && p.HTTP != 501) {
		t.Errorf("%s %.80s: %+v", field, in[field], *p)
	}
	of := func(name string) bool {
		return name == field || strings.HasPrefix(name, field+"[") || strings.HasPrefix(name, field+".")
	}
	switch {
	case taken && slices.ContainsFunc(names, of):
		t.Errorf("%s: %.120q is refused: %v", field, in[field], p.Fields)
	case !taken && (len(names) == 0 || slices.ContainsFunc(names, func(n string) bool { return !of(n) })):
		t.Errorf("%s: %.120q: refused for %v (%+v), want for %s alone", field, in[field], names, p, field)
	}
}

// wholeBody tries what is wrong with a body as a whole.
func (r *sshRig) wholeBody(t *testing.T, method string, fields []contractField, base map[string]raw) {
	t.Helper()
	with := func(name, value string) map[string]raw {
		in := maps.Clone(base)
		in[name] = raw(value)
		return in
	}
	r.tried(t, method, "more", with("more", `1`), false)
	r.tried(t, method, "TenantId", with("TenantId", `"acme"`), false) // names match in case too
	for _, f := range fields {
		if !f.required {
			continue
		}
		in := maps.Clone(base)
		delete(in, f.name)
		r.tried(t, method, f.name, in, false)
	}
	body, err := json.Marshal(base)
	if err != nil {
		t.Fatal(err)
	}
	double := append([]byte(`{"tenantId":"acme",`), body[1:]...)
	for what, b := range map[string][]byte{"a member twice": double, "trailing data": append(slices.Clone(body), " {}"...), "nothing": {},
		"a list": []byte(`[]`), "null": []byte(`null`), "half": body[:len(body)-1], "bad UTF-8": append([]byte("{\"a\":\"\xff\","), body[1:]...),
		"a comment": append([]byte(`/**/`), body...)} {
		if p := r.call("owner", "nodes/"+method, b, nil); p == nil || p.HTTP != 400 || p.Code != "INVALID_INPUT" {
			t.Errorf("%s: %+v, want INVALID_INPUT", what, p)
		}
	}
	// All wrong at once: all are named, and nothing else.
	all := map[string]raw{}
	var want []string
	for _, f := range fields {
		all[f.name] = raw(`null`)
		want = append(want, f.name)
	}
	var got []string
	if p := r.send("owner", method, all); p != nil {
		for _, f := range p.Fields {
			got = append(got, f.Field)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("all wrong: fields %v, want %v", got, want)
	}
}
