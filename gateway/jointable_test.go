package gateway_test

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/store"
)

// tryJoin asks to join as a machine does.
func (r *rig) tryJoin(key *ecdsa.PrivateKey, uuid, token string, macs ...string) (int, map[string]any) {
	r.t.Helper()
	return r.asMachine(nil, "/node/v1/join", "", map[string]any{"token": token, "csr": csrOf(r.t, key), "hardware": map[string]any{"uuid": uuid, "macs": macs}})
}

// enrolledNode makes a node that was enrolled by its BMC, with nothing live.
func (r *rig) enrolledNode(site, uuid string, state fleet.ProvisionState) string {
	r.t.Helper()
	id := store.NewID(fleet.KindNode)
	r.exec(`INSERT INTO nodes (id, tenant_id, site_id, provision_state) SELECT $1, tenant_id, id, $3 FROM sites WHERE id = $2`, id, site, state)
	r.exec(`INSERT INTO bmcs (node_id, site_id, address, system, driver, username, tls_mode, identity) VALUES ($1, $2, $1, '', 'auto', 'u', 'pin', jsonb_build_object('uuid', $3::text))`, id, site, uuid)
	return id
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.Pool().Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatal(err)
	}
}

// siteOf makes a site of a tenant with a token for it.
func (r *rig) siteOf(tenant, spec string) (site, token string) {
	r.t.Helper()
	site, token = store.NewID(fleet.KindSite), "secret of "+store.NewID("token")
	sum := sha256.Sum256([]byte(token))
	r.exec(`INSERT INTO tenants (id) VALUES ($1) ON CONFLICT DO NOTHING`, tenant)
	r.exec(`INSERT INTO sites (id, tenant_id, name, spec) VALUES ($1, $2, $1, $3)`, site, tenant, spec)
	r.exec(`INSERT INTO join_tokens (id, tenant_id, site_id, hash, max_uses, expires_at, created_by) VALUES ($1, $2, $3, $4, 100, now() + interval '1 hour', 'dev:owner')`,
		store.NewID(fleet.KindJoinToken), tenant, site, sum[:])
	return site, token
}

// machineNumber is a UUID of its own for each machine of a test.
func machineNumber(n int) string {
	return fmt.Sprintf("4c4c4544-0051-3910-8053-%012x", 0xb4c04f000000+n)
}

// The table of joins, row by row, over the gateway.
func TestJoinTable(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lenient, binds := r.siteOf("acme", `{"tokenOnlyJoin": true, "joinBindsEnrolled": true}`)
	_, foreign := r.siteOf("globex", `{"tokenOnlyJoin": true}`)
	token := r.joinToken(100)
	key, first := newKey(t), machineNumber(1)

	refused := func(row string, status int, out map[string]any, reason string, ways ...any) {
		t.Helper()
		if status != http.StatusConflict || out["reason"] != reason || out["certificate"] != nil {
			t.Errorf("%s: %d %v, want 409 %s", row, status, out, reason)
		}
		if got, _ := out["youCan"].([]any); !cmp.Equal(got, ways) && len(got)+len(ways) > 0 {
			t.Errorf("%s: youCan %v, want %v", row, got, ways)
		}
	}
	cert, node := r.rawJoin(key, first, token)
	if n := r.node(node); n.ProvisionState != fleet.Adopting || !n.Guarded || n.Operations.Provision == "" {
		t.Errorf("no match: %+v", n)
	}

	enrolled := r.enrolledNode(r.Site, machineNumber(2), fleet.Ready)
	status, out := r.tryJoin(newKey(t), machineNumber(2), token)
	refused("enrolled, the site does not let a join token bind", status, out, fleet.ReasonNotBindable, "set joinBindsEnrolled", "deploy")
	bound := r.enrolledNode(lenient, machineNumber(3), fleet.Ready)
	if status, out := r.tryJoin(newKey(t), fleet.SwapUUID(machineNumber(3)), binds); status != 200 || out["nodeId"] != bound {
		t.Errorf("enrolled, the site lets a join token bind: %d %v, want node %s", status, out, bound)
	}
	if n := r.node(bound); n.ProvisionState != fleet.Ready || n.Guarded {
		t.Errorf("bound: %+v", n)
	}

	if status, out := r.asMachine(cert, "/node/v1/session", "", map[string]any{}); status != 200 {
		t.Fatalf("session: %d %v", status, out)
	}
	status, out = r.tryJoin(key, first, token)
	refused("the key, a valid certificate", status, out, fleet.ReasonHasIdentity, "revokeIdentity", "delete")
	r.revoke(node)
	if status, out := r.tryJoin(key, first, r.joinToken(1)); status != 200 || out["nodeId"] != node || out["generation"] != 3.0 {
		t.Errorf("the key, revoked: %d %v, want node %s of generation 3", status, out, node)
	}

	status, out = r.tryJoin(newKey(t), first, token)
	refused("the UUID, another key", status, out, fleet.ReasonKeyDiffers, "delete")
	if strings.Contains(fmt.Sprint(out), node) {
		t.Errorf("the other node is shown: %v", out)
	}
	r.enrolledNode(r.Site, machineNumber(4), fleet.Retired)
	status, out = r.tryJoin(newKey(t), machineNumber(4), token)
	refused("a retired node", status, out, fleet.ReasonNodeRetired, "delete")
	status, out = r.tryJoin(newKey(t), first, foreign)
	refused("another tenant's token", status, out, fleet.ReasonMachineKnown)
	if strings.Contains(fmt.Sprint(out), node) || strings.Contains(fmt.Sprint(out), "acme") {
		t.Errorf("another tenant's node is shown: %v", out)
	}

	status, out = r.tryJoin(key, machineNumber(2), token)
	refused("two nodes", status, out, fleet.ReasonAmbiguous)
	for _, id := range []string{node, enrolled} {
		if condition(r.node(id), "IdentityAmbiguous") != fleet.ConditionTrue {
			t.Errorf("node %s is not told that it is ambiguous", id)
		}
		if n := r.count(`SELECT count(*) FROM events WHERE node_id = $1 AND type = 'security.node.identity-ambiguous'`, id); n != 1 {
			t.Errorf("%d events of node %s, want 1", n, id)
		}
	}
}

// Machines that race to join as one, and one that races with itself: one node,
// whatever the interleaving, and one certificate.
func TestJoinsRaceOverHTTP(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, c := range map[string]struct {
		uuid string
		macs []string
		keys int
	}{
		"one machine asking again":      {uuid: machineNumber(11), keys: 1},
		"two keys for one UUID":         {uuid: machineNumber(12), keys: 2},
		"keys for one set of addresses": {macs: []string{"00:1b:21:00:00:aa", "00:1b:21:00:00:ab"}, keys: 4},
	} {
		t.Run(name, func(t *testing.T) {
			before := r.count(`SELECT count(*) FROM nodes`)
			keys := make([]*ecdsa.PrivateKey, c.keys)
			for i := range keys {
				keys[i] = newKey(t)
			}
			token := r.joinToken(100)
			var mu sync.Mutex
			var nodes, winners []string
			var wg sync.WaitGroup
			for i := range 12 {
				wg.Go(func() {
					status, out := r.tryJoin(keys[i%c.keys], c.uuid, token, c.macs...)
					mu.Lock()
					defer mu.Unlock()
					switch status {
					case 200:
						nodes = append(nodes, fmt.Sprint(out["nodeId"]))
						winners = append(winners, fmt.Sprint(i%c.keys))
					case http.StatusConflict, http.StatusServiceUnavailable:
					default:
						t.Errorf("%d %v", status, out)
					}
				})
			}
			wg.Wait()
			slices.Sort(nodes)
			slices.Sort(winners)
			if len(slices.Compact(nodes)) != 1 || len(slices.Compact(winners)) != 1 {
				t.Errorf("nodes %v, keys %v: want one of each", nodes, winners)
			}
			if n := r.count(`SELECT count(*) FROM nodes`) - before; n != 1 {
				t.Errorf("%d nodes were made, want 1", n)
			}
			if n := r.count(`SELECT count(*) FROM certificates c JOIN nodes n ON n.id = c.node_id WHERE c.node_id = $1 AND c.revoked_at IS NULL`, nodes[0]); n != 1 {
				t.Errorf("%d certificates hold, want 1", n)
			}
		})
	}
}

// A flood of joins by bad tokens is slowed, makes nothing, and holds up nobody who
// shows a node's certificate.
func TestJoinFlood(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cert, node := r.rawJoin(newKey(t), machineNumber(31), r.joinToken(1))
	before := r.count(`SELECT count(*) FROM nodes`)
	body := map[string]any{"token": "guess", "csr": csrOf(t, newKey(t)), "hardware": map[string]any{"uuid": machineNumber(32)}}
	var slowed atomic.Bool
	var wg sync.WaitGroup
	deadline := time.Now().Add(time.Minute)
	for range 8 {
		wg.Go(func() {
			for !slowed.Load() && time.Now().Before(deadline) {
				status, _ := r.post("/node/v1/join", "", body)
				switch status {
				case http.StatusTooManyRequests:
					slowed.Store(true)
				case http.StatusForbidden, http.StatusServiceUnavailable:
				default:
					t.Errorf("a bad token: %d", status)
					return
				}
			}
		})
	}
	wg.Wait()
	if !slowed.Load() {
		t.Fatal("a flood of joins is never refused")
	}
	if status, out := r.asMachine(cert, "/node/v1/session", "", map[string]any{}); status != http.StatusOK || out["nodeId"] != node {
		t.Errorf("a node in a flood of joins: %d %v", status, out)
	}
	if n := r.count(`SELECT count(*) FROM nodes`); n != before {
		t.Errorf("%d nodes, were %d", n, before)
	}
}

// An agent whose machine was off for days, longer than its certificate, renews
// it and is in session again without joining.
func TestRenewalAfterDays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &memberHost{uuid: machineNumber(21)}
	state, id := r.joined(h)
	r.ageCertificate(state, id, 10*24*time.Hour)
	r.serve(state, h)
	r.awaitEpoch(id.NodeID, 1)
	if n := r.node(id.NodeID); n.IdentityGeneration != id.Generation {
		t.Errorf("generation %d, was %d", n.IdentityGeneration, id.Generation)
	}
}

// ageCertificate makes a joined host's certificate one that ended a while ago.
func (r *rig) ageCertificate(state agent.State, id agent.Identity, since time.Duration) {
	r.t.Helper()
	file := filepath.Join(state.Dir, "cert.pem")
	raw, err := os.ReadFile(file)
	if err != nil {
		r.t.Fatal(err)
	}
	block, _ := pem.Decode(raw)
	have, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		r.t.Fatal(err)
	}
	// The CA of the test is an hour old; when the certificate ended is the
	// database's to say.
	end := time.Now().Add(-30 * time.Minute)
	aged, err := r.issuer.Issue(have.PublicKey, identity.Grant{NodeID: id.NodeID, Generation: id.Generation, Serial: have.SerialNumber.Text(16), At: end.Add(-24 * time.Hour), NotAfter: end})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(file, aged, 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.exec(`UPDATE certificates SET not_after = now() - $2::interval WHERE node_id = $1`, id.NodeID, since)
}
