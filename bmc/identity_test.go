package bmc_test

import (
	"testing"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

func TestCompareIdentity(t *testing.T) {
	t.Parallel()
	const u, swapped, other = "00112233-4455-6677-8899-aabbccddeeff", "33221100-5544-7766-8899-aabbccddeeff", "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
	id := func(uuid, serial string) fleet.BMCIdentity { return fleet.BMCIdentity{UUID: uuid, Serial: serial} }
	for name, c := range map[string]struct {
		want *fleet.BMCIdentity
		is   fleet.BMCIdentity
		kind bmc.Kind
	}{
		"nothing recorded":     {nil, id(u, "S1"), ""},
		"empty record":         {&fleet.BMCIdentity{}, id(u, "S1"), ""},
		"same":                 {new(id(u, "S1")), id(u, "s1"), ""},
		"other byte order":     {new(id(u, "S1")), id(swapped, "S1"), ""},
		"other UUID":           {new(id(u, "S1")), id(other, "S1"), bmc.KindWrongMachine},
		"other serial":         {new(id(u, "S1")), id(u, "S2"), bmc.KindWrongMachine},
		"UUID not shown":       {new(id(u, "S1")), id("", "S1"), ""},
		"placeholder shown":    {new(id(u, "S1")), id("ffffffff-ffff-ffff-ffff-ffffffffffff", "S1"), ""},
		"nothing shown":        {new(id(u, "S1")), id("", ""), bmc.KindBusy},
		"only serial recorded": {new(id("", "S1")), id(other, "S1"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := bmc.CompareIdentity("compare", c.want, c.is); bmc.KindOf(err) != c.kind {
				t.Errorf("kind %q, want %q: %v", bmc.KindOf(err), c.kind, err)
			}
		})
	}
}

func TestRetryable(t *testing.T) {
	t.Parallel()
	for kind, want := range map[bmc.Kind]bool{bmc.KindBusy: true, bmc.KindUnreachable: true, bmc.KindTimeout: true, bmc.KindProtocol: true,
		bmc.KindAuth: false, bmc.KindTrust: false, bmc.KindWrongMachine: false, bmc.KindNotAllowed: false, bmc.KindRefused: false, bmc.KindUnsupported: false} {
		if got := bmc.Retryable(&bmc.Error{Kind: kind}); got != want {
			t.Errorf("%s: %v", kind, got)
		}
	}
}
