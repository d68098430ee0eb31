package fleet_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
)

func TestUniversalMACs(t *testing.T) {
	t.Parallel()
	got := fleet.UniversalMACs([]string{"B8:59:9F:00:00:01", "b8:59:9f:00:00:01", "02:42:ac:11:00:02", "01:00:5e:00:00:01", "00:00:00:00:00:00", "not a mac", "00:1b:21:00:00:01"})
	if diff := cmp.Diff([]string{"00:1b:21:00:00:01", "b8:59:9f:00:00:01"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSameMACs(t *testing.T) {
	t.Parallel()
	a, b, c := "00:1b:21:00:00:01", "00:1b:21:00:00:02", "00:1b:21:00:00:03"
	for name, v := range map[string]struct {
		x, y []string
		want bool
	}{
		"the same":             {[]string{a, b}, []string{b, a}, true},
		"a BMC that lists one": {[]string{a}, []string{a, b}, true},
		"one card moved":       {[]string{a, b}, []string{a, c}, false},
		"none in common":       {[]string{a}, []string{b}, false},
		"none at all":          {nil, nil, false},
		"made-up ones":         {[]string{"02:42:ac:11:00:02"}, []string{"02:42:ac:11:00:02"}, false},
	} {
		if got := fleet.SameMACs(v.x, v.y); got != v.want {
			t.Errorf("%s: %v, want %v", name, got, v.want)
		}
	}
}

// Row by row, and what beats what: the lowest row that fits decides.
func TestDecideJoin(t *testing.T) {
	t.Parallel()
	enrolled := fleet.JoinMatch{NodeID: "n1", TenantID: "acme", SiteID: "s1", State: fleet.Deployed, UUID: true}
	joined := fleet.JoinMatch{NodeID: "n2", TenantID: "acme", SiteID: "s1", State: fleet.Adopted, UUID: true, Key: true, KeyBound: true}
	with := func(m fleet.JoinMatch, change func(*fleet.JoinMatch)) fleet.JoinMatch { change(&m); return m }
	ask := func(m ...fleet.JoinMatch) fleet.JoinAsk {
		return fleet.JoinAsk{TenantID: "acme", SiteID: "s1", TokenOnly: true, Matches: m}
	}
	deploy := func(node string, m ...fleet.JoinMatch) fleet.JoinAsk {
		a := ask(m...)
		a.DeployNode, a.TokenOnly = node, false
		return a
	}
	for name, c := range map[string]struct {
		ask          fleet.JoinAsk
		outcome, why string
	}{
		"1 no match":                                              {ask(), fleet.JoinNew, ""},
		"2 enrolled, the site lets it":                            {ask(with(enrolled, func(m *fleet.JoinMatch) { m.BindsEnrolled = true })), fleet.JoinBind, ""},
		"2 enrolled, by MACs":                                     {ask(with(enrolled, func(m *fleet.JoinMatch) { m.UUID, m.MACs, m.BindsEnrolled = false, true, true })), fleet.JoinBind, ""},
		"2 enrolled, the site does not":                           {ask(enrolled), "", fleet.ReasonNotBindable},
		"2 enrolled, its deploy token":                            {deploy("n1", enrolled), fleet.JoinBind, ""},
		"2 another's deploy token":                                {deploy("n9", enrolled), "", fleet.ReasonMachineKnown},
		"3 key without a certificate":                             {ask(joined), fleet.JoinNext, ""},
		"3 its deploy token, a TPM's key":                         {deploy("n2", joined), fleet.JoinNext, ""},
		"4 key with a certificate":                                {ask(with(joined, func(m *fleet.JoinMatch) { m.CertValid = true })), "", fleet.ReasonHasIdentity},
		"5 another key":                                           {ask(with(joined, func(m *fleet.JoinMatch) { m.Key = false })), "", fleet.ReasonKeyDiffers},
		"5 another key, with a certificate":                       {ask(with(joined, func(m *fleet.JoinMatch) { m.Key, m.CertValid = false, true })), "", fleet.ReasonKeyDiffers},
		"5 another key, enrolled":                                 {ask(with(enrolled, func(m *fleet.JoinMatch) { m.KeyBound, m.BindsEnrolled = true, true })), "", fleet.ReasonKeyDiffers},
		"6 retired":                                               {ask(with(joined, func(m *fleet.JoinMatch) { m.State = fleet.Retired })), "", fleet.ReasonNodeRetired},
		"6 retired beats another key":                             {ask(with(joined, func(m *fleet.JoinMatch) { m.State, m.Key = fleet.Retired, false })), "", fleet.ReasonNodeRetired},
		"7 two nodes":                                             {ask(enrolled, joined), "", fleet.ReasonAmbiguous},
		"7 two nodes beat a retired one":                          {ask(with(enrolled, func(m *fleet.JoinMatch) { m.State = fleet.Retired }), joined), "", fleet.ReasonAmbiguous},
		"another tenant's node":                                   {ask(with(joined, func(m *fleet.JoinMatch) { m.TenantID = "globex" })), "", fleet.ReasonMachineKnown},
		"another site's node":                                     {ask(with(joined, func(m *fleet.JoinMatch) { m.SiteID = "s2" })), "", fleet.ReasonMachineKnown},
		"one of two is another tenant's":                          {ask(enrolled, with(joined, func(m *fleet.JoinMatch) { m.TenantID = "globex" })), "", fleet.ReasonMachineKnown},
		"3 the bound TPM, another key":                            {ask(with(joined, func(m *fleet.JoinMatch) { m.Key, m.EK, m.EKBound = false, true, true })), fleet.JoinNext, ""},
		"4 the bound TPM, another key, a certificate":             {ask(with(joined, func(m *fleet.JoinMatch) { m.Key, m.EK, m.EKBound, m.CertValid = false, true, true, true })), "", fleet.ReasonHasIdentity},
		"5 the key without the TPM that is bound":                 {ask(with(joined, func(m *fleet.JoinMatch) { m.EKBound = true })), "", fleet.ReasonKeyDiffers},
		"5 its deploy token without the TPM that is bound":        {deploy("n2", with(joined, func(m *fleet.JoinMatch) { m.KeyBound, m.Key, m.EKBound = false, false, true })), "", fleet.ReasonKeyDiffers},
		"no TPM where one is needed":                              {fleet.JoinAsk{TenantID: "acme", SiteID: "s1"}, "", fleet.ReasonTPMRequired},
		"a TPM where one is needed":                               {fleet.JoinAsk{TenantID: "acme", SiteID: "s1", TPM: true}, fleet.JoinNew, ""},
		"a deploy token on a machine unknown":                     {deploy("n1"), "", fleet.ReasonWrongMachine},
		"a deploy token of a node that nothing tells from others": {func() fleet.JoinAsk { a := deploy("n1"); a.DeployBare = true; return a }(), fleet.JoinBind, ""},
		"a deploy token of such a node, another's machine":        {func() fleet.JoinAsk { a := deploy("n1", joined); a.DeployBare = true; return a }(), "", fleet.ReasonMachineKnown},
	} {
		outcome, node, err := fleet.DecideJoin(c.ask)
		if outcome != c.outcome || fleet.ReasonOf(err) != c.why {
			t.Errorf("%s: %q %v, want %q %q", name, outcome, err, c.outcome, c.why)
		}
		want := c.ask.DeployNode
		if len(c.ask.Matches) > 0 {
			want = c.ask.Matches[0].NodeID
		}
		if outcome != "" && outcome != fleet.JoinNew && node != want {
			t.Errorf("%s: node %q", name, node)
		}
	}
}
