package api_test

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// joined makes a node of a host that joined, in the middle of its first adopt.
func (r *rig) joined(uuid string) fleet.Node {
	r.t.Helper()
	var site fleet.SiteOut
	r.ok("owner", "sites/update", obj{"tenantId": "acme", "siteId": r.site, "tokenOnlyJoin": true}, &site)
	var token fleet.JoinTokenSecretOut
	r.ok("owner", "joinTokens/create", obj{"tenantId": "acme", "siteId": r.site, "maxUses": 1, "ttlSeconds": 600}, &token)
	serial := fmt.Sprintf("%x", rand.Text())
	granted, err := r.store.Join(r.t.Context(), store.JoinIn{Token: token.Secret, KeyHash: []byte(serial), Serial: serial,
		Hardware: fleet.Hardware{UUID: uuid, MACs: []string{"00:1b:21:00:00:01"}}, Inventory: &fleet.Inventory{UUID: uuid}})
	if err != nil {
		r.t.Fatal(err)
	}
	return r.nodeOf(granted.NodeID)
}

func (r *rig) nodeOf(id string) fleet.Node {
	r.t.Helper()
	var out fleet.NodeOut
	r.ok("owner", "nodes/get", obj{"tenantId": "acme", "nodeId": id}, &out)
	return out.Node
}

const hostUUID = "4c4c4544-0051-3910-8053-b4c04f4e3934"

// adopt starts a new run: a live one gives way, an adopted node goes back to
// adopting, what runs on it stays, and the event is node.adopting.
func TestAdopt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.joined(hostUUID)
	if n.ProvisionState != fleet.Adopting || !n.Guarded || n.Operations.Provision == "" {
		t.Fatalf("joined: %+v", n)
	}
	first := n.Operations.Provision
	if _, err := r.store.BeginOperation(t.Context(), first, "run-1"); err != nil {
		t.Fatal(err)
	}
	command, err := r.store.SendNodeCommand(t.Context(), first, fleet.CommandIn{Key: "0", Type: "accept", Args: obj{}, Expires: 1e12})
	if err != nil {
		t.Fatal(err)
	}
	before := len(r.events(n.ID))
	var out fleet.NodeOut
	r.ok("owner", "nodes/adopt", obj{"tenantId": "acme", "nodeId": n.ID, "reason": "again"}, &out)
	if out.Node.ProvisionState != fleet.Adopting || out.Node.Operations.Provision == first || out.Node.Operations.Provision == "" || out.Node.Version != n.Version {
		t.Errorf("adopting again: %+v", out.Node)
	}
	var op fleet.OperationOut
	r.ok("owner", "operations/get", obj{"tenantId": "acme", "operationId": first}, &op)
	if op.Operation.State != fleet.OpAborted || op.Operation.Error == nil || op.Operation.Error.Code != "superseded" {
		t.Errorf("the first run: %+v", op.Operation)
	}
	if c, err := r.store.Command(t.Context(), command); err != nil || c.State != store.CommandCancelled {
		t.Errorf("its command: %+v, %v", c, err)
	}
	if err := r.store.SetWaiting(t.Context(), first, nil); fleet.ReasonOf(err) != store.ReasonSuperseded {
		t.Errorf("the first run still writes: %v", err)
	}

	second := out.Node.Operations.Provision
	if _, err := r.store.BeginOperation(t.Context(), second, "run-2"); err != nil {
		t.Fatal(err)
	}
	if err := r.store.SucceedOperation(t.Context(), second, fleet.OperationResult{}); err != nil {
		t.Fatal(err)
	}
	adopted := r.nodeOf(n.ID)
	if adopted.ProvisionState != fleet.Adopted || !adopted.Guarded {
		t.Fatalf("adopted: %+v", adopted)
	}
	r.exec(`INSERT INTO allocations (id, tenant_id, pool_id, node_id, holder, gpus, state) VALUES ('alloc_1', 'acme', $1, $2, 'job', 1, 'active')`, r.pool(r.site, "p"), n.ID)
	r.refused("owner", "nodes/adopt", obj{"tenantId": "acme", "nodeId": n.ID, "version": adopted.Version + 1}, fleet.CodeConflict, "version")
	r.refused("viewer", "nodes/adopt", obj{"tenantId": "acme", "nodeId": n.ID}, fleet.CodeAccessDenied, "not-permitted")
	r.ok("owner", "nodes/adopt", obj{"tenantId": "acme", "nodeId": n.ID, "version": adopted.Version}, &out)
	if out.Node.ProvisionState != fleet.Adopting || out.Node.Version != adopted.Version+1 {
		t.Errorf("an adopted node: %+v", out.Node)
	}
	if live := r.count(`SELECT count(*) FROM allocations WHERE node_id = $1 AND state = 'active'`, n.ID); live != 1 {
		t.Errorf("%d live allocations, want the one", live)
	}
	want := []string{"node.adopting", "node.operation.succeeded", "node.provision.adopted", "node.adopting"}
	got := slices.DeleteFunc(r.events(n.ID)[before:], func(e string) bool { return strings.HasPrefix(e, "node.condition") })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// Only adopting and adopted nodes are adopted.
func TestAdoptRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, state := range []fleet.ProvisionState{fleet.Ready, fleet.Deployed, fleet.Enrolling} {
		n := r.enrolled("127.0.0."+map[fleet.ProvisionState]string{fleet.Ready: "9", fleet.Deployed: "10", fleet.Enrolling: "11"}[state], state)
		p := r.refused("owner", "nodes/adopt", obj{"tenantId": "acme", "nodeId": n.ID}, fleet.CodeInvalidState, "")
		if !strings.Contains(p.Detail, "adopting, adopted") {
			t.Errorf("%s: %s", state, p.Detail)
		}
	}
}

// Each run that is live is superseded, however many call at once: one stays.
func TestAdoptRaces(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.joined(hostUUID)
	done := make(chan *problem)
	for range 8 {
		go func() { done <- r.call("owner", "nodes/adopt", obj{"tenantId": "acme", "nodeId": n.ID}, nil) }()
	}
	for range 8 {
		if p := <-done; p != nil {
			t.Errorf("refused: %+v", p)
		}
	}
	if live := r.count(`SELECT count(*) FROM operations WHERE node_id = $1 AND verb = 'adopt' AND state IN ('pending', 'running', 'waiting')`, n.ID); live != 1 {
		t.Errorf("%d live runs, want 1", live)
	}
	if starts := r.count(`SELECT count(*) FROM dispatch d JOIN operations o ON o.id = d.operation_id WHERE o.node_id = $1 AND d.kind = 'start'`, n.ID); starts != 1 {
		t.Errorf("%d starts are queued, want that of the live run", starts)
	}
}
