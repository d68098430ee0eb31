package main

import (
	"context"
	"testing"
	"time"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/sim"
)

// node is the node as nodes/get shows it.
func (h *host) shown() fleet.Node {
	h.t.Helper()
	var out fleet.NodeOut
	if err := h.r.call(h.t, "nodes/get", obj{"nodeId": h.node}, &out); err != nil {
		h.t.Fatal(err)
	}
	return out.Node
}

// count counts rows of the rig's database.
func (r *rig) count(t testing.TB, sql string, args ...any) int {
	t.Helper()
	var n int
	if err := r.store.Pool().QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Machines that run an agent, each with a machine of the rack.
func TestAgents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var site fleet.SiteOut
	r.ok("sites/update", obj{"siteId": r.site, "tokenOnlyJoin": true, "boot": obj{"installAgent": true}}, &site)
	r.startWorker()
	t.Run("manage", func(t *testing.T) { t.Parallel(); testManage(t, r) })
	for _, profile := range []string{"supermicro", "generic"} {
		t.Run(profile, func(t *testing.T) { t.Parallel(); testInstalled(t, r, profile) })
	}
}

// Where a site says so, the system that a deploy installs joins as its node, by
// a token that is good once, and a deploy can wait for its session. Each deploy
// and the release revoke what was before and raise the generation. A machine
// that is off has no session.
func testInstalled(t *testing.T, r *rig, profile string) {
	h := r.add(t, sim.MachineSpec{Profile: profile, Seed: 11})
	h.mustEnd(h.enroll(obj{"advance": "ready"}))
	h.mustEnd(h.do("deploy", r.deployIn(t, obj{"expect": "session"})))
	first := h.shown()
	if first.Session == nil || first.Session.DisconnectedAt != nil || h.condition("Connected") != fleet.ConditionTrue || first.Guarded {
		t.Fatalf("deployed: %+v", first)
	}
	if m := h.metal(); m.Image == nil || m.Image.Confirmed != "session" {
		t.Errorf("image %+v", m.Image)
	}
	if profile != "generic" {
		return
	}
	h.mustEnd(h.do("power", obj{"action": "off"}))
	for _, sql := range []string{`UPDATE sessions SET last_seen_at = now() - interval '1 hour' WHERE node_id = $1`, `UPDATE gateways SET since = now() - interval '1 hour' WHERE $1 <> ''`} {
		if _, err := r.store.Pool().Exec(context.Background(), sql, h.node); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(rigPatience); h.condition("Connected") != fleet.ConditionFalse; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("a machine that is off is in session: %+v", h.shown())
		}
	}
	h.mustEnd(h.do("power", obj{"action": "on"}))
	for deadline := time.Now().Add(rigPatience); h.condition("Connected") != fleet.ConditionTrue; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("a machine that is on again has no session: %+v", h.shown())
		}
	}
	if again := h.shown(); again.IdentityGeneration != first.IdentityGeneration || again.Session.Epoch <= first.Session.Epoch {
		t.Errorf("on again: generation %d, session %+v; was %d, %+v", again.IdentityGeneration, again.Session, first.IdentityGeneration, first.Session)
	}

	h.mustEnd(h.do("release", nil))
	released := h.shown()
	if released.IdentityGeneration <= first.IdentityGeneration || h.condition("Connected") != "" {
		t.Errorf("released: %+v", released)
	}
	if n := r.count(t, `SELECT count(*) FROM certificates WHERE node_id = $1 AND revoked_at IS NULL`, h.node); n != 0 {
		t.Errorf("%d certificates of a released node hold", n)
	}
	h.mustEnd(h.do("deploy", r.deployIn(t, obj{"expect": "session"})))
	second := h.shown()
	if second.ID != first.ID || second.IdentityGeneration <= released.IdentityGeneration || second.Session == nil || second.Session.DisconnectedAt != nil {
		t.Errorf("deployed again: %+v", second)
	}
}

// mustEnd fails the test unless the operation ended well.
func (h *host) mustEnd(o fleet.Operation) {
	h.t.Helper()
	if o.State != fleet.OpSucceeded {
		h.t.Fatalf("%s of %s: %s, %+v", o.Verb, h.ID(), o.State, o.Error)
	}
}
