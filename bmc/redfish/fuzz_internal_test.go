package redfish

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"time"
)

// FuzzClassify: whatever a BMC answers is judged, and what it asks to wait is a
// time that a person would wait.
func FuzzClassify(f *testing.F) {
	f.Add(503, "30", `{"error":{"@Message.ExtendedInfo":[{"MessageId":"IDRAC.2.8.SYS518","MessageArgs":["30"]}]}}`)
	f.Add(400, "", `{"error":{"@Message.ExtendedInfo":[{"MessageId":"iLO.2.14.UnableToModifyDuringSystemPOST"}]}}`)
	f.Add(409, "Wed, 21 Oct 2065 07:28:00 GMT", `<html>`)
	f.Add(401, "99999999999999999", `{"Messages":[{"MessageID":7}],"error":[]}`)
	f.Add(202, "-1", ``)
	f.Fuzz(func(t *testing.T, status int, after, body string) {
		v := classify(&answer{status: status, header: http.Header{"Retry-After": {after}}, body: []byte(body)})
		if v.hint < 0 || v.hint > maxHint {
			t.Fatalf("it is to be waited %s", v.hint)
		}
		if done := status >= 200 && status < 300; done != (v.class == classDone) {
			t.Fatalf("%d is class %d", status, v.class)
		}
	})
}

// FuzzDecodeAnswer: of any JSON the part that fits is kept; what is said to be
// dropped is not there.
func FuzzDecodeAnswer(f *testing.F) {
	for _, s := range []string{`{"Id":"1","PowerState":null,"Boot":{"BootSourceOverrideTarget":["x"]},"MemorySummary":{"TotalSystemMemoryGiB":"64"}}`, `[]`, `{"Id":{}}`, `nul`, `{"Links":{"Chassis":[{"@odata.id":7}]}}`} {
		f.Add([]byte(s))
	}
	type resource struct {
		ID            string `json:"Id"`
		MemorySummary struct{ TotalSystemMemoryGiB float64 }
		Links         struct {
			Chassis []struct {
				ODataID string `json:"@odata.id"`
			}
		}
		When time.Time
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, dropped, err := decode[resource](raw)
		if err == nil && v == nil {
			t.Fatal("neither a value nor an error")
		}
		if json.Unmarshal(raw, new(resource)) == nil && (err != nil || len(dropped) > 0) {
			t.Fatalf("%s fits whole, yet %v, %v", raw, dropped, err)
		}
		if !slices.IsSorted(dropped) {
			t.Fatalf("dropped in no order: %v", dropped)
		}
		messagesOf(raw)
	})
}
