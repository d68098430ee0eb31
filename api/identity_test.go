package api_test

import (
	"strings"
	"testing"

	"github.com/bettercompute/compute/fleet"
)

// A join token's secret is shown once and stored hashed; another tenant sees
// nothing of it; it can be revoked again and again.
func TestJoinTokens(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var made fleet.JoinTokenSecretOut
	in := obj{"tenantId": "acme", "siteId": r.site, "ttlSeconds": 3600, "maxUses": 2, "labels": obj{"rack": "r1"}}
	r.ok("owner", "joinTokens/create", in, &made)
	if !strings.HasPrefix(made.Secret, "bcjoin_") || made.JoinToken.MaxUses != 2 || made.JoinToken.Labels["rack"] != "r1" {
		t.Errorf("made %+v", made)
	}
	var row string
	if err := r.store.Pool().QueryRow(t.Context(), `SELECT string_agg(join_tokens::text, ' ') || (SELECT string_agg(audit::text, ' ') FROM audit) FROM join_tokens`).Scan(&row); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(row, made.Secret) {
		t.Error("the secret itself is stored")
	}
	var page fleet.JoinTokensPage
	r.ok("owner", "joinTokens/list", obj{"tenantId": "acme", "siteId": r.site}, &page)
	if len(page.Items) != 1 || page.Items[0].ID != made.JoinToken.ID {
		t.Errorf("listed %+v", page)
	}
	r.ok("owner2", "joinTokens/list", obj{"tenantId": "globex"}, &page)
	if len(page.Items) != 0 {
		t.Errorf("another tenant lists %+v", page)
	}
	revoke := obj{"tenantId": "acme", "joinTokenId": made.JoinToken.ID}
	var first, again fleet.JoinTokenOut
	r.ok("owner", "joinTokens/revoke", revoke, &first)
	r.ok("owner", "joinTokens/revoke", revoke, &again)
	if first.JoinToken.RevokedAt == nil || !first.JoinToken.RevokedAt.Equal(again.JoinToken.RevokedAt.Time) {
		t.Errorf("revoked %+v, then %+v", first, again)
	}
}

func TestJoinTokensRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	with := func(more obj) obj {
		in := obj{"tenantId": "acme", "siteId": r.site, "ttlSeconds": 3600, "maxUses": 1}
		for k, v := range more {
			in[k] = v
		}
		return in
	}
	for name, c := range map[string]struct {
		subject, method string
		in              obj
		want            fleet.Code
	}{
		"an operator":           {"operator", "create", with(nil), fleet.CodeAccessDenied},
		"another tenant's site": {"owner2", "create", with(obj{"tenantId": "globex"}), fleet.CodeNotFound},
		"no such pool":          {"owner", "create", with(obj{"poolId": "pool_x"}), fleet.CodeNotFound},
		"no use":                {"owner", "create", with(obj{"maxUses": 0}), fleet.CodeInvalidInput},
		"too long a life":       {"owner", "create", with(obj{"ttlSeconds": 2592001}), fleet.CodeInvalidInput},
		"the system's label":    {"owner", "create", with(obj{"labels": obj{"system/x": "1"}}), fleet.CodeInvalidInput},
		"another's token":       {"owner2", "revoke", obj{"tenantId": "globex", "joinTokenId": "join_01arz3ndektsv4rrffq69g5fav"}, fleet.CodeNotFound},
	} {
		if p := r.call(c.subject, "joinTokens/"+c.method, c.in, nil); p == nil || p.Code != c.want {
			t.Errorf("%s: %+v, want %s", name, p, c.want)
		}
	}
}
