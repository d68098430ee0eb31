package store_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/seal"
	"github.com/bettercompute/compute/store/storetest"
)

// joinRig is a site with tokens.
type joinRig struct {
	*store.Store
	t    *testing.T
	Site string
	n    int
}

func newJoinRig(t *testing.T) *joinRig {
	t.Helper()
	keys, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	s := store.New(storetest.New(t), store.Options{Seal: keys, BootKey: []byte(strings.Repeat("k", 32))})
	r := &joinRig{Store: s, t: t}
	r.exec(`INSERT INTO tenants (id) VALUES ('acme'), ('globex')`)
	r.Site = r.site("acme", `{"tokenOnlyJoin": true}`)
	return r
}

func (r *joinRig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.Pool().Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

func (r *joinRig) site(tenant, spec string) string {
	r.t.Helper()
	id := store.NewID(fleet.KindSite)
	r.exec(`INSERT INTO sites (id, tenant_id, name, spec) VALUES ($1, $2, $1, $3)`, id, tenant, spec)
	return id
}

// token makes a join token and returns its secret.
func (r *joinRig) token(tenant, site string, uses int, ttl time.Duration) string {
	r.t.Helper()
	r.n++
	secret := fmt.Sprintf("secret-%d", r.n)
	sum := sha256.Sum256([]byte(secret))
	r.exec(`INSERT INTO join_tokens (id, tenant_id, site_id, hash, max_uses, expires_at, created_by, labels)
		VALUES ($1, $2, $3, $4, $5, now() + $6::interval, 'dev:owner', '{"rack": "r1"}')`, store.NewID(fleet.KindJoinToken), tenant, site, sum[:], uses, ttl)
	return secret
}

const uuidA = "4c4c4544-0051-3910-8053-b4c04f4e3933"

func key(name string) []byte {
	sum := sha256.Sum256([]byte(name))
	return sum[:]
}

func (r *joinRig) in(token, keyName, uuid string, macs ...string) store.JoinIn {
	r.n++
	return store.JoinIn{Token: token, KeyHash: key(keyName), Serial: fmt.Sprintf("%x", r.n), Hardware: fleet.Hardware{UUID: uuid, MACs: macs}}
}

func (r *joinRig) join(in store.JoinIn) store.Granted {
	r.t.Helper()
	g, err := r.Join(r.t.Context(), in)
	if err != nil {
		r.t.Fatalf("join: %v", err)
	}
	return g
}

// shown says that the machine showed its certificate, so that it counts.
func (r *joinRig) shown(g store.Granted) {
	r.t.Helper()
	r.exec(`UPDATE certificates SET used_at = now() WHERE node_id = $1 AND generation = $2`, g.NodeID, g.Generation)
}

func (r *joinRig) refused(what, reason string, in store.JoinIn) {
	r.t.Helper()
	if g, err := r.Join(r.t.Context(), in); fleet.ReasonOf(err) != reason {
		r.t.Errorf("%s: %+v, %v; want reason %s", what, g, err, reason)
	}
}

func (r *joinRig) count(sql string, args ...any) int {
	r.t.Helper()
	var n int
	if err := r.Pool().QueryRow(r.t.Context(), sql, args...).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// A machine that nobody knows becomes a guarded node in adopting, with the
// token's labels and its first Adopt run.
func TestJoinNew(t *testing.T) {
	t.Parallel()
	r := newJoinRig(t)
	in := r.in(r.token("acme", r.Site, 1, time.Hour), "a", uuidA, "00:1b:21:00:00:01")
	in.Inventory = &fleet.Inventory{Vendor: "Dell", GPUs: []fleet.Device{{Model: "H100", Serial: "G1"}}}
	g := r.join(in)
	n, err := store.LoadNode(t.Context(), r.Pool(), g.NodeID)
	if err != nil {
		t.Fatal(err)
	}
	if n.ProvisionState != fleet.Adopting || !n.Guarded || n.TenantID != "acme" || n.SiteID != r.Site || n.Labels["rack"] != "r1" || n.Operations == nil {
		t.Errorf("node = %+v", n)
	}
	if g.Outcome != fleet.JoinNew || g.Generation != n.IdentityGeneration || g.NotAfter.Sub(g.At) != 24*time.Hour {
		t.Errorf("granted %+v", g)
	}
	if got := r.count(`SELECT count(*) FROM devices WHERE node_id = $1`, g.NodeID); got != 1 {
		t.Errorf("%d devices, want the one of the inventory", got)
	}
	if got := r.count(`SELECT count(*) FROM dispatch WHERE workflow_type = 'Adopt'`); got != 1 {
		t.Errorf("%d Adopt runs asked for, want 1", got)
	}
	if got := r.count(`SELECT count(*) FROM events WHERE type = 'node.adopting' AND private`); got != 1 {
		t.Errorf("%d node.adopting events, want 1, private", got)
	}
	if got := r.count(`SELECT count(*) FROM node_visibility WHERE tenant_id = 'acme' AND node_id = $1`, g.NodeID); got != 1 {
		t.Error("the node's tenant does not see it")
	}
}

// A token past its life, its uses, its revocation, or that is none, lets nobody
// join, and leaves nothing behind.
func TestJoinTokenRefused(t *testing.T) {
	t.Parallel()
	r := newJoinRig(t)
	once := r.token("acme", r.Site, 1, time.Hour)
	r.join(r.in(once, "a", uuidA))
	revoked := r.token("acme", r.Site, 5, time.Hour)
	r.exec(`UPDATE join_tokens SET revoked_at = now() WHERE max_uses = 5`)
	for name, token := range map[string]string{"used up": once, "expired": r.token("acme", r.Site, 1, -time.Second), "revoked": revoked, "none": "x", "empty": ""} {
		r.refused(name, store.ReasonBadJoinToken, r.in(token, "key of "+name, ""))
		if name == "used up" {
			continue // who may be asking again
		}
		// Nothing is told of what the machine matches, and no TPM is challenged.
		r.refused(name+", of a machine that is known", store.ReasonBadJoinToken, r.in(token, "key of "+name, uuidA))
		err := r.Challenge(t.Context(), store.ChallengeIn{Secret: []byte(name), EK: "ek-1", KeyHash: key(name), Token: token})
		if fleet.ReasonOf(err) != store.ReasonBadJoinToken {
			t.Errorf("challenged by a token that is %s: %v", name, err)
		}
	}
	if got := r.count(`SELECT count(*) FROM nodes`); got != 1 {
		t.Errorf("%d nodes, want the one that joined", got)
	}
	strict := r.site("acme", `{}`)
	r.refused("no TPM", fleet.ReasonTPMRequired, r.in(r.token("acme", strict, 1, time.Hour), "b", ""))
	withTPM := r.in(r.token("acme", strict, 1, time.Hour), "c", "")
	withTPM.Proof = []byte("read by the TPM")
	if err := r.Challenge(t.Context(), store.ChallengeIn{Secret: withTPM.Proof, EK: "ek-1", KeyHash: withTPM.KeyHash, Token: withTPM.Token}); err != nil {
		t.Fatal(err)
	}
	if g := r.join(withTPM); g.Outcome != fleet.JoinNew {
		t.Errorf("with a TPM: %+v", g)
	}
}

// The answer to a join can be lost: the machine asks again with its key until it
// has shown a certificate. Then a repeated join is a conflict.
func TestJoinAgain(t *testing.T) {
	t.Parallel()
	r := newJoinRig(t)
	token := r.token("acme", r.Site, 1, time.Hour)
	first := r.join(r.in(token, "a", uuidA))
	second := r.join(r.in(token, "a", uuidA))
	if second.NodeID != first.NodeID || second.Generation != first.Generation+1 || second.Outcome != fleet.JoinNext {
		t.Errorf("asked again: %+v after %+v", second, first)
	}
	if got := r.count(`SELECT count(*) FROM certificates WHERE revoked_at IS NULL`); got != 1 {
		t.Errorf("%d certificates hold, want the last alone", got)
	}
	if got := r.count(`SELECT uses FROM join_tokens`); got != 1 {
		t.Errorf("the token counts %d uses, want 1", got)
	}
	r.shown(second)
	r.refused("replayed", fleet.ReasonHasIdentity, r.in(token, "a", uuidA))
	// Expired within grace it can be renewed, so it still counts; past it not.
	r.exec(`UPDATE certificates SET not_after = now() - interval '29 days'`)
	r.refused("expired within grace", fleet.ReasonHasIdentity, r.in(token, "a", uuidA))
	r.exec(`UPDATE certificates SET not_after = now() - interval '31 days'`)
	r.refused("past grace, not revoked, by the token that is spent", store.ReasonBadJoinToken, r.in(token, "a", uuidA))
	r.exec(`UPDATE certificates SET revoked_at = now(), revoke_reason = 'test'`)
	r.refused("revoked, by the token that is spent", store.ReasonBadJoinToken, r.in(token, "a", uuidA))
	r.refused("past grace, by the token that is spent", store.ReasonBadJoinToken, r.in(token, "a", uuidA))
	if g := r.join(r.in(r.token("acme", r.Site, 1, time.Hour), "a", uuidA)); g.NodeID != first.NodeID || g.Generation != second.Generation+1 {
		t.Errorf("past grace: %+v", g)
	}
}

// A revocation spends a token whose answer was lost, too: the machine needs
// another one.
func TestJoinAgainAfterRevocation(t *testing.T) {
	t.Parallel()
	r := newJoinRig(t)
	token := r.token("acme", r.Site, 1, time.Hour)
	r.join(r.in(token, "a", uuidA))
	r.exec(`UPDATE certificates SET revoked_at = now(), revoke_reason = 'identity revoked'`)
	r.refused("never used, and revoked", store.ReasonBadJoinToken, r.in(token, "a", uuidA))
}

// A machine that matches a node as another machine would.
func TestJoinConflicts(t *testing.T) {
	t.Parallel()
	r := newJoinRig(t)
	token := r.token("acme", r.Site, 100, time.Hour)
	a := r.join(r.in(token, "a", uuidA, "00:1b:21:00:00:01"))
	r.refused("another key", fleet.ReasonKeyDiffers, r.in(token, "b", uuidA))
	r.refused("another key, the UUID in the other byte order", fleet.ReasonKeyDiffers, r.in(token, "b", fleet.SwapUUID(uuidA)))
	r.refused("another key, by MACs", fleet.ReasonKeyDiffers, r.in(token, "b", "", "00:1B:21:00:00:01"))
	other := r.site("acme", `{"tokenOnlyJoin": true}`)
	foreign := r.site("globex", `{"tokenOnlyJoin": true}`)
	for name, site := range map[string][2]string{"another site": {"acme", other}, "another tenant": {"globex", foreign}} {
		in := r.in(r.token(site[0], site[1], 5, time.Hour), "a", uuidA)
		_, err := r.Join(t.Context(), in)
		if fleet.ReasonOf(err) != fleet.ReasonMachineKnown || strings.Contains(fmt.Sprint(err), a.NodeID) {
			t.Errorf("%s: %v, want reason %s and no word of the node", name, err, fleet.ReasonMachineKnown)
		}
	}
	b := r.join(r.in(token, "b", "5c4c4544-0051-3910-8053-b4c04f4e3933", "00:1b:21:00:00:02"))
	r.refused("two nodes", fleet.ReasonAmbiguous, r.in(token, "a", "5c4c4544-0051-3910-8053-b4c04f4e3933"))
	for _, id := range []string{a.NodeID, b.NodeID} {
		if got := r.count(`SELECT count(*) FROM nodes n JOIN conditions c ON c.node_id = n.id WHERE n.id = $1 AND c.type = 'IdentityAmbiguous' AND c.status = 'True'
			AND 'condition:IdentityAmbiguous' = ANY (n.no_schedule_reasons)`, id); got != 1 {
			t.Errorf("node %s is not marked ambiguous", id)
		}
		if got := r.count(`SELECT count(*) FROM events WHERE node_id = $1 AND type = 'security.node.identity-ambiguous'`, id); got != 1 {
			t.Errorf("node %s: %d events, want 1", id, got)
		}
	}
	r.exec(`UPDATE nodes SET provision_state = 'retired' WHERE id = $1`, a.NodeID)
	r.refused("a retired node", fleet.ReasonNodeRetired, r.in(token, "a", uuidA))
}

// Another tenant's token cannot mark nodes that are not its own.
func TestAmbiguousAcrossTenants(t *testing.T) {
	t.Parallel()
	r := newJoinRig(t)
	r.join(r.in(r.token("acme", r.Site, 1, time.Hour), "a", uuidA))
	foreign := r.site("globex", `{"tokenOnlyJoin": true}`)
	token := r.token("globex", foreign, 5, time.Hour)
	r.join(r.in(token, "b", "5c4c4544-0051-3910-8053-b4c04f4e3933"))
	r.refused("one of each", fleet.ReasonMachineKnown, r.in(token, "b", uuidA))
	if got := r.count(`SELECT count(*) FROM conditions`); got != 0 {
		t.Errorf("%d conditions were set, want none", got)
	}
}

// An enrolled node is bound by its own deploy token, or where the site lets a
// join token do it; it stays in its state and gets no second node.
func TestJoinEnrolled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec   string
		deploy bool
		want   string
	}{
		"join token":                {`{"tokenOnlyJoin": true}`, false, fleet.ReasonNotBindable},
		"join token where it binds": {`{"tokenOnlyJoin": true, "joinBindsEnrolled": true}`, false, ""},
		"deploy token":              {`{}`, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, nil)
			r := &joinRig{Store: m.Store, t: t}
			var site string
			if err := m.Pool().QueryRow(t.Context(), `UPDATE sites SET spec = $1 RETURNING id`, c.spec).Scan(&site); err != nil {
				t.Fatal(err)
			}
			token := r.token("acme", site, 5, time.Hour)
			if c.deploy {
				var err error
				if token, err = m.DeployToken(t.Context(), m.Op); err != nil {
					t.Fatal(err)
				}
			}
			g, err := r.Join(t.Context(), r.in(token, "a", uuidA))
			if fleet.ReasonOf(err) != c.want {
				t.Fatalf("%+v, %v; want reason %q", g, err, c.want)
			}
			if got := r.count(`SELECT count(*) FROM nodes`); got != 1 {
				t.Errorf("%d nodes, want 1", got)
			}
			if c.want != "" {
				return
			}
			if g.NodeID != m.Node || g.Outcome != fleet.JoinBind {
				t.Errorf("granted %+v, want node %s bound", g, m.Node)
			}
			if got := r.count(`SELECT count(*) FROM nodes WHERE provision_state = 'deploying' AND NOT guarded`); got != 1 {
				t.Error("the enrolled node left its state")
			}
			if c.deploy {
				r.refused("the deploy token again, by another key", fleet.ReasonKeyDiffers, r.in(token, "b", uuidA))
			}
		})
	}
}

// Joins that race for one machine make one node, whatever they are known by.
func TestJoinsRace(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]func(r *joinRig, token string, i int) store.JoinIn{
		"same key":            func(r *joinRig, token string, _ int) store.JoinIn { return r.in(token, "a", uuidA) },
		"two keys, same UUID": func(r *joinRig, token string, i int) store.JoinIn { return r.in(token, fmt.Sprint(i), uuidA) },
		"both byte orders": func(r *joinRig, token string, i int) store.JoinIn {
			return r.in(token, fmt.Sprint(i), []string{uuidA, fleet.SwapUUID(uuidA)}[i%2])
		},
		"no UUID, the same MACs": func(r *joinRig, token string, i int) store.JoinIn {
			return r.in(token, fmt.Sprint(i), "", "00:1b:21:00:00:01")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newJoinRig(t)
			token := r.token("acme", r.Site, 1000, time.Hour)
			ins := make([]store.JoinIn, 20)
			for i := range ins {
				ins[i] = in(r, token, i)
			}
			errs := make([]error, len(ins))
			var wg sync.WaitGroup
			for i := range ins {
				wg.Go(func() { _, errs[i] = r.Join(t.Context(), ins[i]) })
			}
			wg.Wait()
			if i := slices.IndexFunc(errs, func(err error) bool { return err != nil && fleet.CodeOf(err) != fleet.CodeConflict }); i >= 0 {
				t.Errorf("a racing join ended with %v", errs[i])
			}
			if got := r.count(`SELECT count(*) FROM nodes`); got != 1 {
				t.Errorf("%d nodes for one machine", got)
			}
			if got := r.count(`SELECT count(*) FROM certificates WHERE revoked_at IS NULL`); got != 1 {
				t.Errorf("%d certificates hold, want 1", got)
			}
		})
	}
}

// Joins that race for a token's last use: it is used no more than it may be.
func TestTokenUsesRace(t *testing.T) {
	t.Parallel()
	r := newJoinRig(t)
	token := r.token("acme", r.Site, 3, time.Hour)
	ins := make([]store.JoinIn, 20)
	for i := range ins {
		ins[i] = r.in(token, fmt.Sprint(i), "")
	}
	errs := make([]error, len(ins))
	var wg sync.WaitGroup
	for i := range ins {
		wg.Go(func() { _, errs[i] = r.Join(t.Context(), ins[i]) })
	}
	wg.Wait()
	if err := errors.Join(errs...); fleet.ReasonOf(err) != store.ReasonBadJoinToken {
		t.Errorf("the others: %v", err)
	}
	rows, err := r.Pool().Query(t.Context(), `SELECT count(*) FROM nodes UNION ALL SELECT uses FROM join_tokens`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int64{3, 3}, got); diff != "" {
		t.Errorf("nodes and uses (-want +got):\n%s", diff)
	}
}
