package api_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/api"
	"github.com/bettercompute/compute/devidp"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// An identity gets so many certificates an hour, over all nodes and API
// processes, however its calls race.
func TestSSHCertRate(t *testing.T) {
	t.Parallel()
	const most, calls = 20, 40 // 20 by default
	r := newSSHRig(t, api.SSHOptions{})
	_, second := r.serveWith(api.Options{CallsPerSecond: 1e6, SSH: api.SSHOptions{CA: r.ca}})
	nodes := []string{r.node}
	for i := range 5 { // the calls on one node are in order by its row
		nodes = append(nodes, r.enrolled(fmt.Sprintf("127.0.0.%d", 42+i), fleet.Adopted).ID)
	}
	// Refused calls do not count.
	for range most + 1 {
		r.refused("oncall", "nodes/issueSshCert", r.ask("nodeId", absentNode), fleet.CodeNotFound, "")
	}
	var wg sync.WaitGroup
	got := make([]*problem, calls)
	for i := range calls {
		q := *r.rig
		if i%2 == 1 {
			q.url = second
		}
		node := nodes[i%len(nodes)]
		wg.Go(func() { got[i] = q.call("oncall", "nodes/issueSshCert", on(node, "publicKey", r.key), nil) })
	}
	wg.Wait()
	issued := 0
	for _, p := range got {
		switch {
		case p == nil:
			issued++
		case p.Code != fleet.CodeRateLimited || p.HTTP != 429 || p.Reason != "ssh-certs-per-hour":
			t.Errorf("refused: %+v", *p)
		default:
			if wait, err := strconv.Atoi(p.RetryAfter); err != nil || wait < 3500 || wait > 3600 {
				t.Errorf("Retry-After %q, want just under the hour", p.RetryAfter)
			}
		}
	}
	if issued != most || r.count(`SELECT count(*) FROM ssh_certs`) != most {
		t.Errorf("%d were issued, want %d", issued, most)
	}
	// It is judged last, and of one identity alone.
	r.refused("oncall", "nodes/issueSshCert", r.ask("nodeId", absentNode), fleet.CodeNotFound, "")
	r.session("oncall", devidp.Token{TTL: time.Hour})
	r.refused("oncall", "nodes/issueSshCert", r.ask(), fleet.CodeAccessDenied, "mfa-required")
	r.session("oncall", devidp.Token{MFA: true, TTL: time.Hour})
	r.grant("acme", "second", fleet.RoleBreakGlass)
	r.session("second", devidp.Token{MFA: true, TTL: time.Hour})
	r.ok("second", "nodes/issueSshCert", r.ask(), nil)
	// The oldest leaves the hour, and one more fits.
	r.exec(`UPDATE ssh_certs SET created_at = created_at - interval '1 hour' WHERE serial = (SELECT serial FROM ssh_certs WHERE issued_by = 'dev:oncall' ORDER BY created_at LIMIT 1)`)
	r.issue()
	r.refused("oncall", "nodes/issueSshCert", r.ask(), fleet.CodeRateLimited, "ssh-certs-per-hour")
}

// The count waits for a certificate that another process is issuing to the same
// identity, on whatever node.
func TestSSHCertRateWaits(t *testing.T) {
	t.Parallel()
	r := newSSHRig(t, api.SSHOptions{PerHour: 1})
	other := r.enrolled("127.0.0.34", fleet.Adopted).ID
	var got *problem
	done := make(chan struct{})
	err := r.store.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if err := store.LockSSHIssuer(ctx, tx, "dev:oncall"); err != nil {
			return err
		}
		if err := store.LockNode(ctx, tx, other); err != nil {
			return err
		}
		go func() { defer close(done); got = r.call("oncall", "nodes/issueSshCert", r.ask(), nil) }()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for r.count(`SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database AND d.datname = current_database() WHERE l.locktype = 'advisory' AND NOT l.granted`) == 0 {
			select {
			case <-done:
				return errors.New("the call did not wait")
			case <-tick.C:
			}
		}
		_, err := store.InsertSSHCert(ctx, tx, store.NewSSHCert{NodeID: other, TenantID: "acme", Principal: "root@" + other, IssuedBy: "dev:oncall", KeyHash: "h",
			ValidAfter: time.Now(), ValidBefore: time.Now().Add(time.Hour)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	<-done
	if got == nil || got.Code != fleet.CodeRateLimited {
		t.Errorf("after it: %+v, want RATE_LIMITED", got)
	}
}

// A repeat with the same Idempotency-Key answers the same certificate, and no
// second one is made.
func TestIssueSSHCertAgain(t *testing.T) {
	t.Parallel()
	r := newSSHRig(t, api.SSHOptions{PerHour: 1})
	var first, again fleet.IssuedSSHCertOut
	for _, out := range []*fleet.IssuedSSHCertOut{&first, &again} {
		if p := r.call("oncall", "nodes/issueSshCert", r.ask(), out, "Idempotency-Key", "k1"); p != nil {
			t.Fatalf("%+v", *p)
		}
	}
	if first.Certificate == "" || first.Certificate != again.Certificate || first.SSHCert != again.SSHCert {
		t.Errorf("first %+v, then %+v", first, again)
	}
	p := r.call("oncall", "nodes/issueSshCert", r.ask("ttlSeconds", 60), nil, "Idempotency-Key", "k1")
	if p == nil || p.Code != fleet.CodeConflict || p.Reason != "key-reused" {
		t.Errorf("another call with the key: %+v", p)
	}
}

// Who gets a certificate is told where the node is, and why its sshd may not take
// it.
func TestSSHReach(t *testing.T) {
	t.Parallel()
	r := newSSHRig(t, api.SSHOptions{})
	for _, c := range []struct{ sql, address, warning string }{
		{`SELECT $1::text`, "", "has joined"},
		{`INSERT INTO node_keys (hash, node_id) VALUES ('h', $1)`, "", "has not said yet"},
		{`INSERT INTO node_specs (node_id, version, doc, applied, address) VALUES ($1, 1, '{}', 0, '10.0.0.5')`, "10.0.0.5", "has not said yet"},
		{`UPDATE node_specs SET applied = 1 WHERE node_id = $1`, "10.0.0.5", ""},
		{`INSERT INTO conditions (node_id, type, status, message) VALUES ($1, 'SshConflict', 'True', 'sshd_config line 3')`, "10.0.0.5", "sshd_config line 3"},
		{`UPDATE conditions SET status = 'False' WHERE node_id = $1 AND type = 'SshConflict'`, "10.0.0.5", ""},
	} {
		r.exec(c.sql, r.node)
		out := r.issue()
		if out.Address != c.address || !strings.Contains(out.Warning, c.warning) || c.warning == "" && out.Warning != "" {
			t.Errorf("after %s: address %q, warning %q; want %q, %q", c.sql, out.Address, out.Warning, c.address, c.warning)
		}
	}
}

// A revocation is made once and stays; it queues the node's next NodeSpec.
func TestRevokeSSHCert(t *testing.T) {
	t.Parallel()
	r := newSSHRig(t, api.SSHOptions{})
	serial := r.issue().SSHCert.Serial
	var first, again fleet.RevokedSSHCertOut
	r.ok("oncall", "nodes/revokeSshCert", on(r.node, "serial", serial, "reason", "laptop lost\nin a train"), &first)
	c := first.SSHCert
	if c.State != fleet.SSHCertRevoked || c.RevokedAt == nil || c.RevokedBy != "dev:oncall" || c.RevokeReason != "laptop lost\nin a train" || !strings.Contains(first.Note, "no session") {
		t.Errorf("revoked %+v", first)
	}
	r.grant("acme", "second", fleet.RoleBreakGlass) // neither MFA nor a long session is asked for
	r.session("second", devidp.Token{TTL: 30 * time.Second})
	r.ok("second", "nodes/revokeSshCert", on(r.node, "serial", serial, "reason", "again"), &again)
	if again.SSHCert.RevokedBy != c.RevokedBy || again.SSHCert.RevokeReason != c.RevokeReason || !again.SSHCert.RevokedAt.Equal(c.RevokedAt.Time) {
		t.Errorf("again: %+v, want %+v", again, first)
	}
	if n := r.count(`SELECT count(*) FROM events WHERE type = 'node.ssh-cert.revoked'`); n != 1 {
		t.Errorf("%d events of one revocation", n)
	}
	if n := r.count(`SELECT count(*) FROM reconcile_wanted WHERE node_id = $1`, r.node); n != 1 {
		t.Error("the node's reconciler was not queued")
	}
	// It stays revoked after its end.
	r.exec(`UPDATE ssh_certs SET valid_before = now() - interval '1 minute'`)
	var page fleet.SSHCertsPage
	r.ok("viewer", "nodes/listSshCerts", on(r.node, "includeExpired", true), &page)
	if len(page.Items) != 1 || page.Items[0].State != fleet.SSHCertRevoked || page.Items[0].RevokedBy != "dev:oncall" {
		t.Errorf("after its end: %+v", page.Items)
	}
}

// What is no certificate of the node is NOT_FOUND.
func TestRevokeSSHCertRefused(t *testing.T) {
	t.Parallel()
	r := newSSHRig(t, api.SSHOptions{})
	serial := r.issue().SSHCert.Serial
	other := r.enrolled("127.0.0.33", fleet.Adopted).ID
	for name, c := range map[string]struct {
		who  string
		in   obj
		want fleet.Code
	}{
		"another node's":     {"oncall", on(other, "serial", serial), fleet.CodeNotFound},
		"never issued":       {"oncall", on(r.node, "serial", "1"), fleet.CodeNotFound},
		"zero":               {"oncall", on(r.node, "serial", "0"), fleet.CodeNotFound},
		"past 64 bits":       {"oncall", on(r.node, "serial", "18446744073709551616"), fleet.CodeNotFound},
		"20 nines":           {"oncall", on(r.node, "serial", strings.Repeat("9", 20)), fleet.CodeNotFound},
		"the greatest":       {"oncall", on(r.node, "serial", "18446744073709551615"), fleet.CodeNotFound},
		"21 digits":          {"oncall", on(r.node, "serial", strings.Repeat("1", 21)), fleet.CodeInvalidInput},
		"hexadecimal":        {"oncall", on(r.node, "serial", "0x1"), fleet.CodeInvalidInput},
		"a number":           {"oncall", on(r.node, "serial", 1), fleet.CodeInvalidInput},
		"negative":           {"oncall", on(r.node, "serial", "-1"), fleet.CodeInvalidInput},
		"a long reason":      {"oncall", on(r.node, "serial", serial, "reason", strings.Repeat("ä", 501)), fleet.CodeInvalidInput},
		"an owner":           {"owner", on(r.node, "serial", serial), fleet.CodeAccessDenied},
		"another tenant's":   {"owner2", on(r.node, "serial", serial, "tenantId", "globex"), fleet.CodeNotFound},
		"no node that it is": {"oncall", on(absentNode, "serial", serial), fleet.CodeNotFound},
	} {
		if p := r.call(c.who, "nodes/revokeSshCert", c.in, nil); p == nil || p.Code != c.want {
			t.Errorf("%s: %+v, want %s", name, p, c.want)
		}
	}
	if n := r.count(`SELECT count(*) FROM ssh_certs WHERE revoked_at IS NOT NULL`); n != 0 {
		t.Errorf("%d were revoked", n)
	}
}

// The list is newest first, in pages, without what ended unless asked for.
func TestListSSHCerts(t *testing.T) {
	t.Parallel()
	r := newSSHRig(t, api.SSHOptions{})
	var serials []string
	for range 7 {
		serials = append([]string{r.issue("ttlSeconds", 60+60*len(serials)).SSHCert.Serial}, serials...)
	}
	r.exec(`UPDATE ssh_certs SET valid_before = now() - interval '1 second' WHERE serial = $1::text::numeric`, serials[2])
	r.issue("nodeId", r.enrolled("127.0.0.35", fleet.Adopted).ID) // of another node
	list := func(limit int, more ...any) (got []string, pages int) {
		in := on(r.node, append([]any{"limit", limit}, more...)...)
		for {
			var page fleet.SSHCertsPage
			r.ok("viewer", "nodes/listSshCerts", in, &page)
			pages++
			for _, c := range page.Items {
				got = append(got, c.Serial)
			}
			if page.NextCursor == "" {
				return got, pages
			}
			if len(page.NextCursor) > 128 {
				t.Fatalf("the cursor %q is longer than cursors may be", page.NextCursor)
			}
			in["cursor"] = page.NextCursor
		}
	}
	if got, pages := list(3, "includeExpired", true); !slices.Equal(got, serials) || pages != 3 {
		t.Errorf("all: %v in %d pages, want %v", got, pages, serials)
	}
	if got, _ := list(500); !slices.Equal(got, slices.Concat(serials[:2], serials[3:])) {
		t.Errorf("live: %v, want all but the third of %v", got, serials)
	}
	var page fleet.SSHCertsPage
	r.ok("viewer", "nodes/listSshCerts", on(r.node, "limit", 1), &page)
	good := page.NextCursor
	for name, cursor := range map[string]any{
		"none": "", "of events": "1:1", "not ours": "x", "past 64 bits": "18446744073709551616:1." + strings.Split(good, ".")[1],
		"of no time": "0:1." + strings.Split(good, ".")[1], "cut": good[:len(good)-1],
		"too long": strings.Repeat("1", 129), "a number": 1, "of another filter": nil,
	} {
		in := on(r.node, "cursor", cursor)
		if cursor == nil {
			in["cursor"], in["includeExpired"] = good, true
		}
		if p := r.call("viewer", "nodes/listSshCerts", in, nil); p == nil || p.Code != fleet.CodeInvalidInput || p.Fields[0].Field != "cursor" {
			t.Errorf("cursor %s: %+v", name, p)
		}
	}
	// One past every certificate is well-formed.
	r.ok("viewer", "nodes/listSshCerts", on(r.node, "limit", 1, "cursor", "18446744073709551615:18446744073709551615."+strings.Split(good, ".")[1]), nil)
	for _, limit := range []int{0, 501} {
		r.refused("viewer", "nodes/listSshCerts", on(r.node, "limit", limit), fleet.CodeInvalidInput, "")
	}
	r.refused("owner2", "nodes/listSshCerts", on(r.node, "tenantId", "globex"), fleet.CodeNotFound, "")
}

// offered makes globex see acme's node through a pool, with break-glass granted
// by name to globex's dev:guest.
func (r *sshRig) offered() (pool string) {
	r.t.Helper()
	var p fleet.PoolOut
	r.ok("owner", "pools/create", obj{"tenantId": "acme", "siteId": r.site, "name": "p", "gpuModel": "NVIDIA H100 80GB HBM3"}, &p)
	pool = p.Pool.ID
	r.exec(`UPDATE nodes SET pool_id = $2 WHERE id = $1`, r.node, pool)
	r.exec(`INSERT INTO pool_visibility (tenant_id, pool_id) VALUES ('globex', $1)`, pool)
	r.grant("globex", "guest", fleet.RoleViewer)
	r.ok("owner", "access/grant", obj{"tenantId": "acme", "identity": "dev:guest", "role": "break-glass", "on": obj{"nodeId": r.node}}, nil)
	r.session("guest", devidp.Token{MFA: true, TTL: time.Hour})
	return pool
}

// A tenant lists what it issued itself; the node's own tenant can revoke what
// others were let issue, and both hear of it.
func TestSSHCertsOfAnotherTenant(t *testing.T) {
	t.Parallel()
	r := newSSHRig(t, api.SSHOptions{})
	pool := r.offered()
	mine := r.issue().SSHCert.Serial
	var theirs fleet.IssuedSSHCertOut
	r.ok("guest", "nodes/issueSshCert", r.ask("tenantId", "globex"), &theirs)
	for who, want := range map[string]string{"viewer": mine, "guest": theirs.SSHCert.Serial} {
		tenant := map[string]string{"viewer": "acme", "guest": "globex"}[who]
		var page fleet.SSHCertsPage
		r.ok(who, "nodes/listSshCerts", on(r.node, "tenantId", tenant), &page)
		if len(page.Items) != 1 || page.Items[0].Serial != want {
			t.Errorf("%s lists %+v, want %s", who, page.Items, want)
		}
	}
	r.refused("guest", "nodes/revokeSshCert", on(r.node, "tenantId", "globex", "serial", mine), fleet.CodeNotFound, "")
	r.ok("oncall", "nodes/revokeSshCert", on(r.node, "serial", theirs.SSHCert.Serial, "reason", "enough"), nil)
	// Events are readable once no older transaction of the cluster runs.
	events := func(who, tenant string, want int) (got []string) {
		tick, late := time.NewTicker(50*time.Millisecond), time.Now().Add(time.Minute)
		defer tick.Stop()
		for ; ; <-tick.C {
			var page fleet.EventsPage
			r.ok(who, "nodes/events", on(r.node, "tenantId", tenant, "type", "node.ssh-cert."), &page)
			got = nil
			for _, e := range page.Items {
				got = append(got, fmt.Sprint(e.Type, " ", e.Actor, " ", e.Data["serial"], " ", e.Data["reason"]))
			}
			if len(got) >= want || time.Now().After(late) {
				return got
			}
		}
	}
	s := theirs.SSHCert.Serial
	want := []string{"node.ssh-cert.issued dev:guest " + s + " <nil>", "node.ssh-cert.revoked dev:oncall " + s + " enough"}
	if got := events("viewer", "acme", 3); len(got) != 3 {
		t.Errorf("acme hears %v, want all three", got)
	}
	if got := events("guest", "globex", 2); !slices.Equal(got, want) {
		t.Errorf("globex hears %v, want %v", got, want)
	}
	// The stream goes by the audience alone.
	if n := r.count(`SELECT count(*) FROM events WHERE type LIKE 'node.ssh-cert.%' AND audience @> '{acme}'`); n != 3 {
		t.Errorf("acme is in the audience of %d events, want all three", n)
	}
	// A third tenant that sees the node hears of neither.
	if _, err := r.store.CreateTenant(t.Context(), "initech", "dev:owner3"); err != nil {
		t.Fatal(err)
	}
	r.exec(`INSERT INTO pool_visibility (tenant_id, pool_id) VALUES ('initech', $1)`, pool)
	if got := events("owner3", "initech", 0); len(got) != 0 {
		t.Errorf("initech hears %v", got)
	}
}

// Who loses the right to a certificate loses the certificate: a role taken back,
// an offer withdrawn, a service token revoked.
func TestSSHReauthorization(t *testing.T) {
	t.Parallel()
	r := newSSHRig(t, api.SSHOptions{WithoutMFA: true})
	r.offered()
	var theirs fleet.IssuedSSHCertOut
	r.ok("guest", "nodes/issueSshCert", r.ask("tenantId", "globex"), &theirs)
	mine := r.issue()
	ended := r.issue().SSHCert.Serial
	r.exec(`UPDATE ssh_certs SET valid_before = now() - interval '1 second' WHERE serial = $1::text::numeric`, ended)
	again := func(want int) {
		t.Helper()
		if n, err := r.srv.ReauthorizeSSH(t.Context()); err != nil || n != want {
			t.Errorf("%d were revoked (%v), want %d", n, err, want)
		}
	}
	again(0)
	r.exec(`DELETE FROM pool_visibility WHERE tenant_id = 'globex'`)
	again(1)
	r.exec(`DELETE FROM bindings WHERE identity = 'dev:oncall'`)
	again(1)
	again(0)
	for _, serial := range []string{mine.SSHCert.Serial, theirs.SSHCert.Serial} {
		if by := r.text(`SELECT revoked_by || ' ' || revoke_reason FROM ssh_certs WHERE serial = $1::text::numeric`, serial); by != "iam the right to it was taken back" {
			t.Errorf("%s was revoked by %s", serial, by)
		}
	}
	if n := r.count(`SELECT count(*) FROM events WHERE type = 'node.ssh-cert.revoked' AND actor = 'iam'`); n != 2 {
		t.Errorf("%d events of it", n)
	}
	if n := r.count(`SELECT count(*) FROM audit WHERE method = 'nodes/revokeSshCert' AND identity = 'iam' AND reason = 'right-lost' AND node_id = $1`, r.node); n != 2 {
		t.Errorf("%d audit rows of it", n)
	}
	var token fleet.ServiceTokenSecretOut
	r.ok("owner", "access/issueToken", obj{"tenantId": "acme", "name": "ci", "role": "viewer", "on": obj{"tenantId": "acme"}, "ttlSeconds": 3600}, &token)
	if _, err := r.store.AdminGrant(t.Context(), "acme", "svc:"+token.ServiceToken.ID, fleet.RoleBreakGlass); err != nil {
		t.Fatal(err)
	}
	r.tokens["ci"] = token.Secret
	r.ok("ci", "nodes/issueSshCert", r.ask(), nil)
	again(0)
	r.ok("owner", "access/revokeToken", obj{"tenantId": "acme", "serviceTokenId": token.ServiceToken.ID}, nil)
	again(1)
}

// A right that was given back while the node's row was waited for is kept.
func TestSSHReauthorizationUnderLock(t *testing.T) {
	t.Parallel()
	r := newSSHRig(t, api.SSHOptions{})
	r.issue()
	r.exec(`DELETE FROM bindings WHERE identity = 'dev:oncall'`)
	revoked := -1
	done := make(chan error, 1)
	err := r.store.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if err := store.LockNode(ctx, tx, r.node); err != nil {
			return err
		}
		go func() {
			var err error
			revoked, err = r.srv.ReauthorizeSSH(context.Background())
			done <- err
		}()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for r.count(`SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database AND d.datname = current_database() WHERE l.locktype = 'advisory' AND NOT l.granted`) == 0 {
			select {
			case err := <-done:
				return errors.Join(errors.New("it did not wait"), err)
			case <-tick.C:
			}
		}
		r.grant("acme", "oncall", fleet.RoleBreakGlass)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || revoked != 0 {
		t.Errorf("%d were revoked (%v), want none", revoked, err)
	}
}
