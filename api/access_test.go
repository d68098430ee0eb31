package api_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/api"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// as makes calls of a subject carry a secret in place of a session.
func (r *rig) as(subject, secret string) {
	if r.tokens == nil {
		r.tokens = map[string]string{}
	}
	r.tokens[subject] = secret
}

func issueIn(name, role string, more ...any) obj {
	in := obj{"tenantId": "acme", "name": name, "role": role, "on": obj{"tenantId": "acme"}, "ttlSeconds": 600}
	for i := 0; i+1 < len(more); i += 2 {
		in[more[i].(string)] = more[i+1]
	}
	return in
}

// A service token works within its role until it is revoked or over, is never
// shown again, and never stands for a second factor.
func TestServiceTokens(t *testing.T) {
	t.Parallel()
	r := newSSHRig(t, api.SSHOptions{})
	var made fleet.ServiceTokenSecretOut
	r.ok("owner", "access/issueToken", issueIn("ci", "operator"), &made)
	id := made.ServiceToken.ID
	r.as("ci", made.Secret)
	r.ok("ci", "nodes/cordon", on(r.node), nil)
	r.refused("ci", "nodes/adopt", on(r.node), fleet.CodeAccessDenied, "not-permitted")
	r.refused("ci", "nodes/get", obj{"tenantId": "globex", "nodeId": r.node}, fleet.CodeAccessDenied, "no-role")
	if got := r.text(`SELECT identity FROM audit WHERE method = 'nodes/cordon' AND outcome = 'OK'`); got != "svc:"+id {
		t.Errorf("the audit says %s, want svc:%s", got, id)
	}
	if n := r.count(`SELECT count(*) FROM service_tokens WHERE hash::text LIKE '%' || $1 || '%'`, made.Secret[8:]); n != 0 {
		t.Error("the secret is kept")
	}
	var list fleet.ServiceTokensPage
	r.ok("owner", "access/listTokens", obj{"tenantId": "acme"}, &list)
	if len(list.Items) != 1 || list.Items[0].Name != "ci" || list.Items[0].CreatedBy != "dev:owner" || list.Items[0].RevokedAt != nil {
		t.Errorf("tokens: %+v", list.Items)
	}

	r.ok("owner", "access/grant", obj{"tenantId": "acme", "identity": "svc:" + id, "role": "break-glass", "on": obj{"tenantId": "acme"}}, nil)
	r.refused("ci", "nodes/issueSshCert", r.ask(), fleet.CodeAccessDenied, "mfa-required")

	for range 2 { // again is no error
		r.ok("owner", "access/revokeToken", obj{"tenantId": "acme", "serviceTokenId": id}, nil)
		r.refused("ci", "nodes/get", on(r.node), fleet.CodeUnauthenticated, "")
	}
	r.ok("owner", "access/issueToken", issueIn("short", "viewer"), &made)
	r.as("short", made.Secret)
	r.ok("short", "nodes/get", on(r.node), nil)
	r.exec(`UPDATE service_tokens SET expires_at = now() WHERE id = $1`, made.ServiceToken.ID)
	r.refused("short", "nodes/get", on(r.node), fleet.CodeUnauthenticated, "")

	for name, in := range map[string]obj{"too long": issueIn("x", "viewer", "ttlSeconds", 90*24*3600+1), "too short": issueIn("x", "viewer", "ttlSeconds", 59),
		"no such role": issueIn("x", "break-glass"), "two places": issueIn("x", "viewer", "on", obj{"tenantId": "acme", "nodeId": r.node})} {
		if p := r.call("owner", "access/issueToken", in, nil); p == nil || p.Code != fleet.CodeInvalidInput {
			t.Errorf("%s: %+v", name, p)
		}
	}
	r.grant("acme", "provisioner", fleet.RoleProvisioner)
	r.refused("provisioner", "access/issueToken", issueIn("x", "viewer"), fleet.CodeAccessDenied, "not-permitted")
	r.refused("owner2", "access/revokeToken", obj{"tenantId": "globex", "serviceTokenId": id}, fleet.CodeNotFound, "")
}

// A role is given by who holds it, works at once, is taken away at once, and all
// of it stands in the audit.
func TestBindings(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n, other := r.enrolled("127.0.0.9", fleet.Ready), r.enrolled("127.0.0.10", fleet.Ready)
	give := func(identity, role string, where obj) obj {
		return obj{"tenantId": "acme", "identity": identity, "role": role, "on": where}
	}
	onNode := obj{"nodeId": n.ID}
	r.refused("bob", "nodes/cordon", on(n.ID), fleet.CodeAccessDenied, "no-role")
	var out fleet.BindingOut
	r.ok("owner", "access/grant", give("dev:bob", "operator", onNode), &out)
	r.ok("bob", "nodes/cordon", on(n.ID), nil)
	r.refused("bob", "nodes/cordon", on(other.ID), fleet.CodeAccessDenied, "not-permitted")
	r.refused("bob", "access/grant", give("dev:eve", "viewer", onNode), fleet.CodeAccessDenied, "not-permitted")
	r.refused("owner", "access/grant", give("dev:bob", "operator", onNode), fleet.CodeConflict, "already-granted")
	r.refused("owner", "access/grant", give("dev:owner", "break-glass", obj{"tenantId": "acme"}), fleet.CodeAccessDenied, "not-to-oneself")
	r.refused("owner", "access/grant", give("dev:bob", "viewer", obj{"nodeId": absentNode}), fleet.CodeNotFound, "")
	if p := r.refused("owner", "access/grant", give("dev:bob", "viewer", obj{"tenantId": "globex"}), fleet.CodeInvalidInput, ""); len(p.Fields) != 1 || p.Fields[0].Field != "on.tenantId" {
		t.Errorf("another tenant: %+v", p)
	}
	r.refused("owner", "access/grant", give("dev:bob", "viewer", obj{"tenantId": "acme", "nodeId": n.ID}), fleet.CodeInvalidInput, "")
	pool := r.pool(r.site, "p")
	r.offer(pool, 1)
	r.refused("owner2", "access/grant", obj{"tenantId": "globex", "identity": "dev:bob", "role": "viewer", "on": obj{"poolId": pool}}, fleet.CodeNotFound, "")
	r.refused("owner2", "access/revoke", obj{"tenantId": "globex", "bindingId": out.Binding.ID}, fleet.CodeNotFound, "")
	r.ok("owner", "access/revoke", obj{"tenantId": "acme", "bindingId": out.Binding.ID}, nil)
	r.refused("bob", "nodes/uncordon", on(n.ID), fleet.CodeAccessDenied, "no-role")

	var list fleet.BindingsPage
	r.ok("owner", "access/list", obj{"tenantId": "acme", "identity": "dev:bob"}, &list)
	if len(list.Items) != 0 {
		t.Errorf("bindings of who has none: %+v", list.Items)
	}
	var audit fleet.AuditPage
	r.ok("owner", "access/audit", obj{"tenantId": "acme", "identity": "dev:bob"}, &audit)
	var got []string
	for _, e := range audit.Items {
		got = append(got, e.Method+" "+e.Outcome)
	}
	for _, want := range []string{"nodes/cordon OK", "nodes/cordon ACCESS_DENIED", "access/grant ACCESS_DENIED", "nodes/uncordon ACCESS_DENIED"} {
		if !slices.Contains(got, want) {
			t.Errorf("the audit of bob lacks %q: %q", want, got)
		}
	}
	r.ok("owner", "access/audit", on(n.ID), &audit)
	for _, e := range audit.Items {
		if e.NodeID != n.ID {
			t.Errorf("the audit of one node shows %+v", e)
		}
	}
	if len(audit.Items) == 0 || audit.Items[0].At.Before(time.Now().Add(-time.Hour)) {
		t.Errorf("the audit of the node: %+v", audit.Items)
	}
	r.refused("bob", "access/audit", obj{"tenantId": "acme"}, fleet.CodeAccessDenied, "no-role")
}

// A call that waited is decided by what holds when its turn comes: a role that was
// taken away meanwhile counts no more.
func TestRoleTakenWhileWaiting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	r.grant("acme", "operator", fleet.RoleViewer)
	done := make(chan *problem, 1)
	err := r.store.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if err := store.LockNode(ctx, tx, n.ID); err != nil {
			return err
		}
		go func() { done <- r.call("operator", "nodes/cordon", on(n.ID), nil) }()
		r.lockWaits(1)
		r.exec(`DELETE FROM bindings WHERE identity = 'dev:operator' AND role = 'operator'`)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if p := <-done; p == nil || p.Code != fleet.CodeAccessDenied || p.Reason != "not-permitted" {
		t.Errorf("%+v, want ACCESS_DENIED", p)
	}
	if r.nodeOf(n.ID).Cordoned {
		t.Error("the node was cordoned all the same")
	}
}

// lockWaits waits until so many of the rig's calls wait for an advisory lock.
func (r *rig) lockWaits(n int) {
	r.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		if r.count(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) >= n {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("no %d calls wait", n)
		}
	}
}

// Nobody gives what it does not hold, also where an operator's own policies let
// others than owners give.
func TestGrantOfWhatIsNotHeld(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	builtin, err := os.ReadFile(filepath.Join("..", "authz", "policies.cedar"))
	if err != nil {
		t.Fatal(err)
	}
	own := r.withPolicies(string(builtin) + `
		permit (principal, action in Action::"group:access", resource) when { context.roles.contains("operator") };`)
	own.ok("operator", "access/grant", obj{"tenantId": "acme", "identity": "dev:bob", "role": "viewer", "on": obj{"tenantId": "acme"}}, nil)
	for _, role := range []string{"provisioner", "owner"} {
		own.refused("operator", "access/grant", obj{"tenantId": "acme", "identity": "dev:bob", "role": role, "on": obj{"tenantId": "acme"}}, fleet.CodeAccessDenied, "not-held")
		own.refused("operator", "access/issueToken", issueIn("t", role), fleet.CodeAccessDenied, "not-held")
	}
}
