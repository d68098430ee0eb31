package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/bettercompute/compute/fleet"
)

// sides is a constraint of the method table with a value on either side of it.
type sides struct {
	rule        string
	good, wrong any
}

// samples are values that match each pattern, in the table's own words.
var samples = map[string]string{
	"tenantId": "acme", "poolRef": "pool_1", "siteId": "site_01j00000000000000000000000", "nodeId": someNode,
	"operationId": "op_01j00000000000000000000000", "bindingId": "bind_01j00000000000000000000000",
	"serviceTokenId": "svct_01j00000000000000000000000", "joinTokenId": "join_01j00000000000000000000000",
	"allocationId": "alloc_01j00000000000000000000000", "reservationId": "resv_01j00000000000000000000000", "sshNodeId": someNode, "principal": "root", "serial": "1",
	"listCursor": "a", "eventType": "node.", "eventCursor": "1:1", "reason": "why",
	"labelKey": "a/b", "dnsLabel": "rack-1", "hostname": "a.example", "mac": "aa:bb:cc:dd:ee:ff", "checksum": "sha256:" + strings.Repeat("a", 64),
	"fingerprint": "sha256:" + strings.Repeat("a", 64), "identity": "dev:ann", "httpURL": "http://a/b", "uuid": "4c4c4544-0051-3910-8053-b4c04f4e3933",
	"sshKey": "ssh-ed25519 AAAA a", "taintKey": "a",
}

// someSSHKey is a public key without a comment.
const someSSHKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEwkMDxBHOJdPUh2trg66kEcf3o5v8+6732EzIG8ZKrG"

// padded is a key with a comment that makes it n characters long.
func padded(key string, n int) string { return key + " " + strings.Repeat("ä", n-len(key)-1) }

// scalarSides makes both sides of a scalar's constraints.
func scalarSides(t *testing.T, kind reflect.Kind, tag string) []sides {
	t.Helper()
	var out []sides
	pattern := ""
	for rule := range strings.SplitSeq(tag, ",") {
		name, param, _ := strings.Cut(rule, "=")
		n, _ := strconv.Atoi(param)
		switch {
		case name == "pattern":
			pattern = param
			good, ok := samples[param]
			if !ok {
				t.Fatalf("no sample of pattern %s", param)
			}
			out = append(out, sides{rule, good, "\u0001"})
		case name == "oneof" && kind == reflect.String:
			for _, word := range strings.Fields(param) {
				out = append(out, sides{rule, word, strings.ToUpper(word) + "x"})
			}
		case name == "oneof":
			word, _ := strconv.Atoi(strings.Fields(param)[0])
			out = append(out, sides{rule, word, -1})
		case name == "sshcertkey":
			out = append(out, sides{rule, someSSHKey, "ssh-rsa AAAA"})
		case name == "max" && kind == reflect.String && strings.Contains(tag, "sshcertkey"):
			out = append(out, sides{rule, padded(someSSHKey, n), padded(someSSHKey, n+1)})
		case name == "max" && kind == reflect.String:
			out = append(out, sides{rule, strings.Repeat("a", n), strings.Repeat("a", n+1)})
			if !strings.Contains(tag, "pattern=") {
				out = append(out, sides{rule + " in characters", strings.Repeat("ä", n), strings.Repeat("ä", n+1)})
			}
		case name == "min" && kind == reflect.String:
			out = append(out, sides{rule, strings.Repeat("a", n), strings.Repeat("a", n-1)})
		case name == "max":
			out = append(out, sides{rule, n, n + 1})
		case name == "min":
			out = append(out, sides{rule, n, n - 1})
		}
	}
	// A string at its bound has to match the pattern beside it.
	return slices.DeleteFunc(out, func(s sides) bool {
		text, ok := s.good.(string)
		return ok && pattern != "" && !fleet.MatchPattern(pattern, text)
	})
}

// Every scalar of every input of the method table is taken at its bound and
// refused, by name, beyond it.
func TestBothSidesOfEveryBound(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, m := range fleet.Methods {
		t.Run(m.FullName(), func(t *testing.T) {
			for _, f := range members(reflect.TypeOf(m.In)) {
				typ := f.field.Type
				if typ.Kind() == reflect.Pointer {
					typ = typ.Elem()
				}
				tag := f.field.Tag.Get("validate")
				for _, s := range scalarSides(t, typ.Kind(), tag) {
					if typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map || typ.Kind() == reflect.Struct {
						continue
					}
					checked++
					if bad := offending(t, m, f.name, s.good); bad {
						t.Errorf("%s (%s): %.40q is refused", f.name, s.rule, fmt.Sprint(s.good))
					}
					if bad := offending(t, m, f.name, s.wrong); !bad {
						t.Errorf("%s (%s): %.40q is taken", f.name, s.rule, fmt.Sprint(s.wrong))
					}
				}
				for _, wrong := range []any{nil, []any{obj{}}, obj{"no": []any{nil}}} {
					if bad := offending(t, m, f.name, wrong); !bad {
						t.Errorf("%s: %v is taken", f.name, wrong)
					}
				}
			}
			if bad := offending(t, m, "noSuchMember", 1); !bad {
				t.Error("an unknown member is taken")
			}
		})
	}
	if checked < 100 {
		t.Errorf("only %d bounds were checked", checked)
	}
}

type obj = map[string]any

// offending says whether the decoder names a member, or something in it, when
// it has this value.
func offending(t *testing.T, m fleet.Method, name string, value any) bool {
	t.Helper()
	body, err := json.Marshal(obj{name: value})
	if err != nil {
		t.Fatal(err)
	}
	d := &decoder{}
	d.object(reflect.New(reflect.TypeOf(m.In)).Elem(), body, "")
	return slices.ContainsFunc(d.errs, func(e fleet.FieldError) bool {
		return e.Field == name || strings.HasPrefix(e.Field, name+".") || strings.HasPrefix(e.Field, name+"[")
	})
}
