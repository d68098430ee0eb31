package gateway_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/store"
)

// forget makes the database one that was restored from a backup older than the
// node's last certificate: it knows only the one before.
func (r *rig) forget(nodeID string) {
	r.t.Helper()
	r.exec(`UPDATE certificates SET serial = 'before-' || serial WHERE node_id = $1`, nodeID)
}

// A restored database has forgotten the certificates that were issued since its
// backup. An agent that shows one gets the next by its key, and is back without
// a person.
func TestRestoredDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &memberHost{uuid: "4c4c4544-0051-3910-8053-b4c04f4e3936"}
	state, id := r.joined(h)
	stop := r.serve(state, h)
	r.awaitEpoch(id.NodeID, 1)
	r.forget(id.NodeID)
	r.awaitEpoch(id.NodeID, 2)
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("the agent ended: %v", err)
	}
	if n := r.count(`SELECT count(*) FROM certificates WHERE node_id = $1`, id.NodeID); n != 2 {
		t.Errorf("%d certificates, want the former and its renewal", n)
	}
}

// Each alone keeps a forgotten certificate from being renewed, and a session it
// is never good for.
func TestForgottenCertificate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	key := newKey(t)
	cert, node := r.rawJoin(key, "4c4c4544-0051-3910-8053-b4c04f4e3937", r.joinToken(1))
	r.forget(node)
	ask := func(path string) int {
		status, _ := r.asMachine(cert, path, "", map[string]any{"csr": csrOf(t, key)})
		return status
	}
	if got := ask("/node/v1/session"); got != 401 {
		t.Errorf("a session by a forgotten certificate: %d, want 401", got)
	}
	for name, sql := range map[string][2]string{
		"another key":            {`UPDATE certificates SET key_hash = '\x00' || key_hash WHERE node_id = $1`, `UPDATE certificates SET key_hash = substring(key_hash FROM 2) WHERE node_id = $1`},
		"revoked":                {`UPDATE certificates SET revoked_at = now() WHERE node_id = $1`, `UPDATE certificates SET revoked_at = NULL WHERE node_id = $1`},
		"an old generation":      {`UPDATE nodes SET identity_generation = identity_generation + 1 WHERE id = $1`, `UPDATE nodes SET identity_generation = identity_generation - 1 WHERE id = $1`},
		"of another generation":  {`UPDATE certificates SET generation = generation + 1 WHERE node_id = $1`, `UPDATE certificates SET generation = generation - 1 WHERE node_id = $1`},
		"a node that is deleted": {`UPDATE nodes SET deleted_at = now() WHERE id = $1`, `UPDATE nodes SET deleted_at = NULL WHERE id = $1`},
	} {
		r.exec(sql[0], node)
		if got := ask("/node/v1/renew"); got != 401 {
			t.Errorf("%s: %d, want 401", name, got)
		}
		r.exec(sql[1], node)
	}
	if got := ask("/node/v1/renew"); got != 200 {
		t.Errorf("a forgotten certificate of the same key: %d, want 200", got)
	}
}

// A forgotten certificate is renewed within the same grace as any other.
func TestForgottenCertificateEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	key := newKey(t)
	_, node := r.rawJoin(key, "4c4c4544-0051-3910-8053-b4c04f4e3938", r.joinToken(1))
	hash, err := identity.KeyHash(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	r.forget(node)
	for _, c := range []struct {
		past time.Duration
		want bool
	}{{store.RenewGrace - time.Hour, true}, {store.RenewGrace + time.Hour, false}} {
		shown := store.ShownCert{NodeID: node, Generation: 1, Serial: "unknown", KeyHash: hash, NotAfter: time.Now().Add(-c.past)}
		_, err := r.Renew(t.Context(), shown, hash, "next-"+c.past.String(), nil)
		if (err == nil) != c.want {
			t.Errorf("expired %s ago: %v, want renewed %v", c.past, err, c.want)
		}
	}
}
