package api

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
)

const someNode = "node_01j00000000000000000000000"

// Input is strict: each of these texts names the fields that are wrong and
// only those.
func TestDecodeStrict(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body string
		want []string
	}{
		"right":                    {`{"tenantId":"acme","nodeId":"` + someNode + `"}`, nil},
		"nothing":                  {``, []string{""}},
		"not an object":            {`[]`, []string{""}},
		"null":                     {`null`, []string{""}},
		"trailing data":            {`{"tenantId":"acme","nodeId":"` + someNode + `"} x`, []string{""}},
		"second object":            {`{"tenantId":"acme","nodeId":"` + someNode + `"}{}`, []string{""}},
		"double member":            {`{"tenantId":"acme","tenantId":"acme","nodeId":"` + someNode + `"}`, []string{"tenantId"}},
		"unknown member":           {`{"tenantId":"acme","nodeId":"` + someNode + `","nodeid":1}`, []string{"nodeid"}},
		"case of a name":           {`{"TenantId":"acme","nodeId":"` + someNode + `"}`, []string{"tenantId", "TenantId"}},
		"missing":                  {`{}`, []string{"tenantId", "nodeId"}},
		"null is a wrong type":     {`{"tenantId":null,"nodeId":"` + someNode + `"}`, []string{"tenantId"}},
		"number for string":        {`{"tenantId":5,"nodeId":"` + someNode + `"}`, []string{"tenantId"}},
		"bad UTF-8":                {"{\"tenantId\":\"acme\xff\",\"nodeId\":\"" + someNode + "\"}", []string{"tenantId"}},
		"lone surrogate":           {`{"tenantId":"acme\ud800","nodeId":"` + someNode + `"}`, []string{"tenantId"}},
		"U+0000":                   {`{"tenantId":"acme","nodeId":"` + someNode + `","reason":"a\u0000b"}`, []string{"reason"}},
		"U+0000 in a name":         {`{"tenantId":"acme","nodeId":"` + someNode + `","a\u0000":1}`, []string{`a\u0000`}},
		"integer as 5.0":           {`{"tenantId":"acme","nodeId":"` + someNode + `","version":5.0}`, nil},
		"fraction":                 {`{"tenantId":"acme","nodeId":"` + someNode + `","version":5.5}`, []string{"version"}},
		"integer below":            {`{"tenantId":"acme","nodeId":"` + someNode + `","version":0}`, []string{"version"}},
		"fraction past any float":  {`{"tenantId":"acme","nodeId":"` + someNode + `","version":5.` + strings.Repeat("0", 400) + `1}`, []string{"version"}},
		"integer as 50e-1":         {`{"tenantId":"acme","nodeId":"` + someNode + `","version":50e-1}`, nil},
		"integer as 0.5e1":         {`{"tenantId":"acme","nodeId":"` + someNode + `","version":0.5e1}`, nil},
		"huge exponent":            {`{"tenantId":"acme","nodeId":"` + someNode + `","version":1e99999999999999999999}`, nil},
		"tiny exponent":            {`{"tenantId":"acme","nodeId":"` + someNode + `","version":1e-99999999999999999999}`, []string{"version"}},
		"integer past 64 bits":     {`{"tenantId":"acme","nodeId":"` + someNode + `","version":-99999999999999999999}`, []string{"version"}},
		"empty tenant":             {`{"tenantId":"","nodeId":"` + someNode + `"}`, []string{"tenantId"}},
		"reason of 256 characters": {`{"tenantId":"acme","nodeId":"` + someNode + `","reason":"` + strings.Repeat("ä", 256) + `"}`, nil},
		"reason of 257 characters": {`{"tenantId":"acme","nodeId":"` + someNode + `","reason":"` + strings.Repeat("ä", 257) + `"}`, []string{"reason"}},
		"control character":        {`{"tenantId":"acme","nodeId":"` + someNode + `","reason":"a\nb"}`, []string{"reason"}},
		"line break after the id":  {`{"tenantId":"acme","nodeId":"` + someNode + `\n"}`, []string{"nodeId"}},
		"several wrong, all named": {`{"tenantId":"a b","nodeId":"node_1","version":"x","reason":7}`, []string{"nodeId", "reason", "tenantId", "version"}},
		"a letter that ids lack":   {`{"tenantId":"acme","nodeId":"node_01j0000000000000000000000i"}`, []string{"nodeId"}},
		"explicit empty reason":    {`{"tenantId":"acme","nodeId":"` + someNode + `","reason":""}`, nil},
		"tenant of 128 characters": {`{"tenantId":"` + strings.Repeat("a", 128) + `","nodeId":"` + someNode + `"}`, nil},
		"tenant of 129 characters": {`{"tenantId":"` + strings.Repeat("a", 129) + `","nodeId":"` + someNode + `"}`, []string{"tenantId"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, errs := decode[fleet.NodeChangeIn]([]byte(c.body))
			if diff := cmp.Diff(c.want, fieldNames(errs)); diff != "" {
				t.Errorf("offending fields (-want +got):\n%s\n%v", diff, errs)
			}
		})
	}
}

// fieldNames lists each offending field once, unknown ones last.
func fieldNames(errs []fleet.FieldError) []string {
	var out []string
	seen := map[string]bool{}
	for _, e := range errs {
		if !seen[e.Field] {
			seen[e.Field] = true
			out = append(out, e.Field)
		}
	}
	if len(out) > 2 {
		// The order of members is the type's; the test states them sorted.
		slices.Sort(out)
	}
	return out
}

// Lists and maps: counts, repeats and the patterns of keys and elements.
func TestDecodeCollections(t *testing.T) {
	t.Parallel()
	base := `{"tenantId":"acme","nodeId":"` + someNode + `",`
	for name, c := range map[string]struct {
		in   string
		want []string
	}{
		"labels":           {`"set":{"a/b":"x","c.d":""}}`, nil},
		"label key":        {`"set":{"-a":"x"}}`, []string{"set[-a]"}},
		"label value type": {`"set":{"a":1}}`, []string{"set[a]"}},
		"remove repeats":   {`"remove":["a","a"]}`, []string{"remove"}},
		"remove of 65":     {`"remove":[` + list(65) + `]}`, []string{"remove"}},
		"remove of 64":     {`"remove":[` + list(64) + `]}`, nil},
		"null list":        {`"remove":null}`, []string{"remove"}},
		"null in list":     {`"remove":[null]}`, []string{"remove[0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, errs := decode[fleet.NodesLabelIn]([]byte(base + c.in))
			if diff := cmp.Diff(c.want, fieldNames(errs)); diff != "" {
				t.Errorf("offending fields (-want +got):\n%s\n%v", diff, errs)
			}
		})
	}
	_, errs := decode[fleet.NodesTaintIn]([]byte(base + `"add":[""]}`))
	if diff := cmp.Diff([]string{"add[0]"}, fieldNames(errs)); diff != "" {
		t.Errorf("an empty taint key (-want +got):\n%s", diff)
	}
}

func list(n int) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = `"k` + strings.Repeat("x", i) + `"`
	}
	return strings.Join(parts, ",")
}

// Defaults fill what is absent, nested inputs name their members by path.
func TestDecodeDefaultsAndPaths(t *testing.T) {
	t.Parallel()
	in, errs := decode[fleet.MetalInspectIn]([]byte(`{"tenantId":"acme","nodeId":"` + someNode + `"}`))
	if len(errs) > 0 || in.Mode != "outOfBand" {
		t.Errorf("mode = %q, errs %v; want the default", in.Mode, errs)
	}
	_, errs = decode[fleet.MetalEnrollIn]([]byte(`{"tenantId":"acme","siteId":"site_01j00000000000000000000000","bmc":{"address":"","tls":{"mode":"no"},"port":1}}`))
	want := []string{"bmc.address", "bmc.password", "bmc.port", "bmc.tls.mode", "bmc.username"}
	if diff := cmp.Diff(want, fieldNames(errs)); diff != "" {
		t.Errorf("offending fields (-want +got):\n%s\n%v", diff, errs)
	}
}
