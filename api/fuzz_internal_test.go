package api

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/bettercompute/compute/fleet"
)

// FuzzDecode: no body makes the decoder panic, a refusal names what broke, and
// an input that was taken is taken again as it was understood.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"tenantId":"t","nodeId":"node_01jd00000000000000000000aa"}`, `{"tenantId":"t","nodeId":"n","nodeId":"n"}`,
		`{"tenantId":"t","limit":5.0}`, `{"tenantId":"t","limit":5e0,"cordoned":null}`, `{"tenantId":"\ud800"}`, `[1]`, `{"a":{"b":[{}]}}`,
		`{"tenantId":"t","siteId":"s","bmc":{"address":"https://h","username":"u","password":"p","tls":{"mode":"pin"}},"inUse":true}`,
		`{"tenantId":"t","nodeId":"n","set":{"a":"b"},"remove":["a","a"]}`, "{\"tenantId\":\"a\\u0000\"}", `{"tenantId":"t"} x`, ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		decodesTwice[fleet.NodesListIn](t, body)
		decodesTwice[fleet.NodesLabelIn](t, body)
		decodesTwice[fleet.MetalEnrollIn](t, body)
		decodesTwice[fleet.MetalDeployIn](t, body)
	})
}

func decodesTwice[In any](t *testing.T, body []byte) {
	t.Helper()
	in, wrong := decode[In](body)
	for _, w := range wrong {
		if w.Constraint == "" {
			t.Fatalf("%q is refused without a constraint", w.Field)
		}
	}
	if wrong != nil {
		return
	}
	again, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	twice, wrong := decode[In](again)
	if wrong != nil || !reflect.DeepEqual(in, twice) {
		t.Fatalf("%s was taken; what was understood, %s, is read as %+v with %+v", body, again, twice, wrong)
	}
}

// FuzzCursor: a list takes only the cursors that it gave.
func FuzzCursor(f *testing.F) {
	type filters struct{ TenantID string }
	first, err := newPager("nodes/list", fleet.PageIn{}, filters{"t"}, idCursor("nodeId"))
	if err != nil {
		f.Fatal(err)
	}
	const key = "node_01jd00000000000000000000aa"
	f.Add(key+"."+first.tag, true)
	f.Add(key, false)
	f.Add("."+first.tag, true)
	f.Add("..", false)
	f.Fuzz(func(t *testing.T, cursor string, same bool) {
		tenant := map[bool]string{true: "t", false: "other"}[same]
		pg, err := newPager("nodes/list", fleet.PageIn{Cursor: &cursor}, filters{tenant}, idCursor("nodeId"))
		if err != nil {
			if fleet.CodeOf(err) != fleet.CodeInvalidInput {
				t.Fatal(err)
			}
			return
		}
		if !same || !fleet.MatchPattern("nodeId", pg.after) || pg.after+"."+first.tag != cursor {
			t.Fatalf("%q was taken as %+v", cursor, pg)
		}
	})
}
