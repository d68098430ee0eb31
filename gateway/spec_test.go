package gateway_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/fleet"
)

// now is the NodeSpec that the host was last asked to bring about, and how many
// times it was asked.
func (h *memberHost) now() (fleet.NodeSpec, int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.specs) == 0 {
		return fleet.NodeSpec{}, 0
	}
	return h.specs[len(h.specs)-1], len(h.specs)
}

// keepSpec puts a document in place of a node's NodeSpec, as a restore does.
func (r *rig) keepSpec(node string, spec fleet.NodeSpec) {
	r.t.Helper()
	doc, err := json.Marshal(spec)
	if err != nil {
		r.t.Fatal(err)
	}
	r.exec(`INSERT INTO node_specs (node_id, version, doc, judged) VALUES ($1, $2, $3, 0) ON CONFLICT (node_id) DO UPDATE SET version = $2, doc = $3, judged = 0, applied = NULL`,
		node, spec.Version, doc)
}

// toldOf is what the control plane was told of a node's NodeSpec.
func (r *rig) toldOf(nodeID string) (judged, applied int64, why string, at time.Time) {
	r.t.Helper()
	if err := r.Pool().QueryRow(r.t.Context(), `SELECT coalesce(judged, -1), coalesce(applied, -1), coalesce(apply_error, ''), coalesce(applied_at, 'epoch') FROM node_specs WHERE node_id = $1`,
		nodeID).Scan(&judged, &applied, &why, &at); err != nil {
		r.t.Fatal(err)
	}
	return judged, applied, why, at
}

// A NodeSpec that the host refuses is told, with what stands in the way. It is
// tried again in a while, since nobody tells the agent that the way is free.
func TestSpecRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &memberHost{uuid: "4c4c4544-0051-3910-8053-b4c04f4e3934", failing: true}
	state, id := r.joined(h)
	r.serve(state, h, func(c *agent.ServeConfig) { c.SpecRetry = 10 * time.Millisecond })
	if _, err := r.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "the refusal", func() bool { return condition(r.node(id.NodeID), "SshConflict") == fleet.ConditionTrue })
	if judged, applied, why, _ := r.toldOf(id.NodeID); judged != 1 || applied != 0 || why != "sshd refused it" {
		t.Errorf("judged %d, applied %d, %q", judged, applied, why)
	}
	h.mu.Lock()
	h.failing = false
	h.mu.Unlock()
	await(t, "the way is free", func() bool { return condition(r.node(id.NodeID), "SshConflict") == fleet.ConditionFalse })
}

// What a restored control plane says is brought about, though its version is an
// older one, or the same with other content; what was revoked stays revoked, though
// the control plane has forgotten it.
func TestSpecAfterRestore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &memberHost{uuid: "4c4c4544-0051-3910-8053-b4c04f4e3934"}
	state, id := r.joined(h)
	stop := r.serve(state, h)
	doc := func(version int64, tag string, through string, revoked ...string) fleet.NodeSpec {
		return fleet.NodeSpec{Version: version, Tag: tag, NodeID: id.NodeID, SSH: &fleet.SSHSpec{CAKeys: []string{"k"}, RevokedSerials: revoked, ExpiredThrough: through}}
	}
	for i, c := range []struct {
		spec fleet.NodeSpec
		want []string
	}{
		{doc(50, "a", "100", "105", "90000000000"), []string{"105", "90000000000"}},
		{doc(3, "b", "100", "150"), []string{"105", "150", "90000000000"}},
		{doc(3, "c", "149"), []string{"150", "90000000000"}},
		{doc(4, "", "149"), []string{"150", "90000000000"}}, // as an older release made it
		{doc(5, "d", "99999999999"), nil},
	} {
		if i == 2 { // also by an agent that starts
			_ = stop()
			r.serve(state, h)
		}
		r.keepSpec(id.NodeID, c.spec)
		await(t, "the NodeSpec "+c.spec.Tag, func() bool { got, _ := h.now(); return got.Tag == c.spec.Tag && got.Version == c.spec.Version })
		got, _ := h.now()
		revoked := slices.Sorted(slices.Values(got.SSH.RevokedSerials))
		if !slices.Equal(revoked, c.want) || got.SSH.ExpiredThrough != c.spec.SSH.ExpiredThrough {
			t.Errorf("%d: brought about with %v, want %v", i, revoked, c.want)
		}
		await(t, "the report", func() bool {
			judged, applied, _, _ := r.toldOf(id.NodeID)
			return judged == c.spec.Version && applied == c.spec.Version
		})
	}
	if _, n := h.now(); n > 12 {
		t.Errorf("five NodeSpecs were brought about %d times", n)
	}
}

// While the control plane is away the last good NodeSpec is brought about, by an
// agent that starts then too.
func TestSpecWithoutGateway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &memberHost{uuid: "4c4c4544-0051-3910-8053-b4c04f4e3934"}
	state, id := r.joined(h)
	stop := r.serve(state, h)
	for version, failing := range []bool{false, true} {
		h.mu.Lock()
		h.failing = failing
		h.mu.Unlock()
		r.keepSpec(id.NodeID, fleet.NodeSpec{Version: int64(version) + 7, NodeID: id.NodeID})
		await(t, "the report", func() bool {
			judged, applied, _, _ := r.toldOf(id.NodeID)
			return judged == int64(version)+7 && applied == 7
		})
	}
	_ = stop()
	_, before := h.now()
	h.failing = false
	id.GatewayURL = "https://127.0.0.1:1"
	text, err := json.Marshal(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state.Dir, "identity.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	r.serve(state, h)
	await(t, "the last good NodeSpec", func() bool { got, n := h.now(); return n > before && got.Version == 7 })
}

// A host is looked after: what changed there is told, and nothing is told again
// while nothing changes.
func TestSpecLookedAfter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &memberHost{uuid: "4c4c4544-0051-3910-8053-b4c04f4e3934"}
	state, id := r.joined(h)
	r.serve(state, h, func(c *agent.ServeConfig) { c.SpecCheck, c.SpecRetry = 10*time.Millisecond, 10*time.Millisecond })
	r.keepSpec(id.NodeID, fleet.NodeSpec{Version: 1, NodeID: id.NodeID})
	again := func() {
		_, n := h.now()
		await(t, "another look", func() bool { _, now := h.now(); return now > n+3 })
	}
	await(t, "the report", func() bool { _, applied, _, _ := r.toldOf(id.NodeID); return applied == 1 })
	_, _, _, at := r.toldOf(id.NodeID)
	again()
	if _, _, _, now := r.toldOf(id.NodeID); !now.Equal(at) {
		t.Errorf("told at %s and, without a change, at %s", at, now)
	}
	// A new session is told, since the control plane may have forgotten.
	r.exec(`UPDATE node_specs SET applied = NULL WHERE node_id = $1`, id.NodeID)
	r.exec(`UPDATE sessions SET epoch = epoch + 1 WHERE node_id = $1`, id.NodeID)
	await(t, "the report of another session", func() bool { _, applied, _, _ := r.toldOf(id.NodeID); return applied == 1 })
	fail := func(failing bool, want fleet.ConditionStatus) {
		h.mu.Lock()
		h.failing = failing
		h.mu.Unlock()
		await(t, "what changed on the host", func() bool { return condition(r.node(id.NodeID), "SshConflict") == want })
	}
	fail(true, fleet.ConditionTrue)
	fail(false, fleet.ConditionFalse)
}

// A report that was lost is made again by the next session, not with the next
// NodeSpec.
func TestSpecReportLost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &memberHost{uuid: "4c4c4544-0051-3910-8053-b4c04f4e3934"}
	state, id := r.joined(h)
	h.applying = func(fleet.NodeSpec) {
		if len(h.specs) == 0 {
			r.exec(`ALTER TABLE node_specs RENAME COLUMN apply_error TO away`)
		}
	}
	r.serve(state, h)
	r.keepSpec(id.NodeID, fleet.NodeSpec{Version: 1, NodeID: id.NodeID})
	await(t, "the session breaks", func() bool { return r.logged("the session broke") })
	r.exec(`ALTER TABLE node_specs RENAME COLUMN away TO apply_error`)
	await(t, "the report", func() bool { _, applied, _, _ := r.toldOf(id.NodeID); return applied == 1 })
}

// The NodeSpec of another node is not brought about.
func TestSpecOfAnotherNode(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &memberHost{uuid: "4c4c4544-0051-3910-8053-b4c04f4e3934"}
	state, id := r.joined(h)
	r.serve(state, h)
	r.keepSpec(id.NodeID, fleet.NodeSpec{Version: 1, NodeID: "node_01arz3ndektsv4rrffq69g5fav"})
	await(t, "the refusal", func() bool {
		_, applied, why, _ := r.toldOf(id.NodeID)
		return applied == 0 && strings.Contains(why, "it is the NodeSpec of node_01arz3ndektsv4rrffq69g5fav")
	})
	if _, n := h.now(); n != 0 {
		t.Error("it was brought about")
	}
}

// The address that an agent tells is kept when others can reach it.
func TestAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cert, node := r.rawJoin(newKey(t), "4c4c4544-0051-3910-8053-b4c04f4e3934", r.joinToken(1))
	r.keepSpec(node, fleet.NodeSpec{Version: 1, NodeID: node})
	if status, out := r.asMachine(cert, "/node/v1/session", "", map[string]any{}); status != http.StatusOK {
		t.Fatalf("session: %d %v", status, out)
	}
	for told, want := range map[string]string{"10.1.2.3": "10.1.2.3", "2001:db8::5": "2001:db8::5", "::ffff:10.1.2.4": "10.1.2.4", "": "", "127.0.0.1": "", "::1": "", "0.0.0.0": "",
		"fe80::1": "", "fe80::1%eth0": "", "2001:db8::5%eth0": "", "224.0.0.1": "", "host.example": "", "-oProxyCommand=x": "", "10.1.2.3 -v": ""} {
		if status, out := r.asMachine(cert, "/node/v1/session/spec", "1", map[string]any{"version": 1, "applied": 1, "address": told}); status != http.StatusNoContent {
			t.Fatalf("report: %d %v", status, out)
		}
		if n := r.count(`SELECT count(*) FROM node_specs WHERE node_id = $1 AND coalesce(address, '') = $2`, node, want); n != 1 {
			t.Errorf("told %q, not kept as %q", told, want)
		}
	}
}
