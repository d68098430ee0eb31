package api_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/bettercompute/compute/fleet"
)

const absentNode = "node_01j00000000000000000000000"

// An enroll records node, sealed password, operation, order to Temporal, event
// and audit together, and no password leaves.
func TestEnrollRecordsAll(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var out fleet.MetalOperationOut
	r.ok("owner", "metal/enroll", enrollIn(r.site, "https://127.0.0.9"), &out)
	if out.Node.ProvisionState != fleet.Enrolling || out.Operation.State != fleet.OpPending || !out.Node.BMC.CredentialsSet {
		t.Errorf("node %s, operation %s, credentials set %v", out.Node.ProvisionState, out.Operation.State, out.Node.BMC.CredentialsSet)
	}
	for what, sql := range map[string]string{
		"dispatch row": `SELECT count(*) FROM dispatch WHERE operation_id = $1 AND kind = 'start' AND workflow_type = 'Enroll'`,
		"event":        `SELECT count(*) FROM events WHERE type = 'node.provision.enrolling' AND data->>'operationId' = $1`,
		"fence":        `SELECT count(*) FROM nodes WHERE provision_op = $1`,
	} {
		if n := r.count(sql, out.Operation.ID); n != 1 {
			t.Errorf("%d %s, want 1", n, what)
		}
	}
	if n := r.count(`SELECT count(*) FROM audit WHERE method = 'metal/enroll' AND outcome = 'OK'`); n != 1 {
		t.Errorf("%d audit rows, want 1", n)
	}
	for where, sql := range map[string]string{"operations": `SELECT count(*) FROM operations WHERE input::text LIKE '%sesame%'`,
		"events": `SELECT count(*) FROM events WHERE data::text LIKE '%sesame%'`, "dispatch": `SELECT count(*) FROM dispatch WHERE payload::text LIKE '%sesame%'`} {
		if n := r.count(sql); n != 0 {
			t.Errorf("the password stands in %s", where)
		}
	}
	if strings.Contains(r.log.String(), "sesame") {
		t.Error("the password stands in the log")
	}
}

// What enroll refuses, and that it changes nothing then.
func TestEnrollRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ok("owner", "metal/enroll", enrollIn(r.site, "https://127.0.0.9"), nil)
	before := r.count(`SELECT count(*) FROM nodes`)
	r.refused("owner", "metal/enroll", enrollIn(r.site, "127.0.0.9"), fleet.CodeConflict, "already-enrolled")
	p := r.refused("owner", "metal/enroll", enrollIn(r.site, "https://10.1.2.3"), fleet.CodeInvalidInput, "")
	if len(p.Fields) != 1 || p.Fields[0].Field != "bmc.address" || !strings.Contains(p.Fields[0].Constraint, "127.0.0.0/8") {
		t.Errorf("fields = %v, want bmc.address with the allowed networks", p.Fields)
	}
	r.refused("owner", "metal/enroll", enrollIn("site_01j00000000000000000000000", "127.0.0.10"), fleet.CodeNotFound, "")
	r.refused("operator", "metal/enroll", enrollIn(r.site, "127.0.0.10"), fleet.CodeAccessDenied, "not-permitted")
	r.refused("stranger", "metal/enroll", enrollIn(r.site, "127.0.0.10"), fleet.CodeAccessDenied, "no-role")
	r.refused("", "metal/enroll", enrollIn(r.site, "127.0.0.10"), fleet.CodeUnauthenticated, "")
	long := enrollIn(r.site, "127.0.0.10")
	long["bmc"].(obj)["driver"], long["bmc"].(obj)["password"] = "ipmi", strings.Repeat("ä", 11)
	r.refused("owner", "metal/enroll", long, fleet.CodeInvalidInput, "")
	if after := r.count(`SELECT count(*) FROM nodes`); after != before {
		t.Errorf("%d nodes, want %d: a refused enroll left one", after, before)
	}
}

// Another tenant's node and one that is not there are told in the same words.
func TestForeignNodeIsNotThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	for _, method := range []string{"nodes/get", "nodes/events", "nodes/cordon", "nodes/uncordon", "metal/get", "metal/inspect", "metal/retire", "metal/retry", "metal/abort"} {
		foreign := r.refused("owner2", method, obj{"tenantId": "globex", "nodeId": n.ID}, fleet.CodeNotFound, "")
		absent := r.refused("owner2", method, obj{"tenantId": "globex", "nodeId": absentNode}, fleet.CodeNotFound, "")
		if foreign.Detail != absent.Detail || foreign.HTTP != absent.HTTP || foreign.Title != absent.Title {
			t.Errorf("%s tells a foreign node (%q) from an absent one (%q)", method, foreign.Detail, absent.Detail)
		}
	}
}

// A verb is judged by the table, names what is live, and a stale version is a
// conflict before the state is judged.
func TestVerbJudged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	on := obj{"tenantId": "acme", "nodeId": n.ID}
	r.refused("owner", "metal/rescue", obj{"tenantId": "acme", "nodeId": n.ID, "sshKeys": []string{"ssh-ed25519 AAAA"}}, fleet.CodeInvalidState, "")
	r.refused("owner", "metal/rescue", obj{"tenantId": "acme", "nodeId": n.ID, "version": n.Version + 1, "sshKeys": []string{"ssh-ed25519 AAAA"}}, fleet.CodeConflict, "version")
	r.refused("operator", "metal/inspect", on, fleet.CodeAccessDenied, "not-permitted")
	r.refused("owner", "metal/retry", on, fleet.CodeInvalidState, "")
	var out fleet.MetalOperationOut
	r.ok("owner", "metal/inspect", on, &out)
	if out.Node.ProvisionState != fleet.Inspecting || out.Node.Version != n.Version+1 {
		t.Errorf("state %s version %d, want inspecting %d", out.Node.ProvisionState, out.Node.Version, n.Version+1)
	}
	r.refused("owner", "metal/commission", on, fleet.CodeInvalidState, "operation-in-progress")
	var aborted fleet.MetalOperationOut
	r.ok("owner", "metal/abort", on, &aborted)
	if aborted.Operation.State != fleet.OpAborted || aborted.Node.ProvisionState != fleet.Failed || aborted.Node.Failed.From != fleet.Inspecting {
		t.Errorf("an abort before the start: operation %s, node %s", aborted.Operation.State, aborted.Node.ProvisionState)
	}
	if n := r.count(`SELECT count(*) FROM dispatch WHERE operation_id = $1`, out.Operation.ID); n != 0 {
		t.Errorf("%d dispatch rows of an operation that ended before its start", n)
	}
}

// A dry run answers the plan and writes nothing but a marked audit row.
func TestDryRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	events, ops := r.count(`SELECT count(*) FROM events`), r.count(`SELECT count(*) FROM operations`)
	var out fleet.MetalOperationOut
	r.ok("owner", "metal/inspect", obj{"tenantId": "acme", "nodeId": n.ID, "dryRun": true}, &out)
	if out.Plan == nil || len(out.Plan.Steps) == 0 || out.Operation != nil {
		t.Errorf("plan = %v, operation = %v", out.Plan, out.Operation)
	}
	r.ok("owner", "metal/enroll", func() obj { in := enrollIn(r.site, "127.0.0.77"); in["dryRun"] = true; return in }(), nil)
	r.refused("owner", "metal/enroll", func() obj { in := enrollIn(r.site, "127.0.0.9"); in["dryRun"] = true; return in }(), fleet.CodeConflict, "already-enrolled")
	r.refused("owner", "metal/release", obj{"tenantId": "acme", "nodeId": n.ID, "dryRun": true}, fleet.CodeInvalidState, "")
	if e, o := r.count(`SELECT count(*) FROM events`), r.count(`SELECT count(*) FROM operations`); e != events || o != ops {
		t.Errorf("a dry run wrote %d events and %d operations", e-events, o-ops)
	}
	if n := r.count(`SELECT count(*) FROM nodes`); n != 1 {
		t.Errorf("%d nodes after a dry enroll, want 1", n)
	}
	if n := r.count(`SELECT count(*) FROM audit WHERE dry_run`); n != 4 {
		t.Errorf("%d marked audit rows, want 4", n)
	}
}

// Of fifty clients that begin something on one node at once, one does.
func TestOneVerbWins(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	var won, lost atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			p := r.call("owner", "metal/inspect", obj{"tenantId": "acme", "nodeId": n.ID}, nil)
			switch {
			case p == nil:
				won.Add(1)
			case p.Code == fleet.CodeInvalidState && p.Reason == "operation-in-progress":
				lost.Add(1)
			default:
				t.Errorf("a loser got %+v", *p)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || lost.Load() != 49 {
		t.Errorf("%d won, %d lost; want 1 and 49", won.Load(), lost.Load())
	}
}

// A repeat with the same key answers the same and does nothing; another body
// under the key is a conflict; fifty at once make one.
func TestIdempotency(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var first, again fleet.MetalOperationOut
	in := enrollIn(r.site, "127.0.0.9")
	if p := r.call("owner", "metal/enroll", in, &first, "Idempotency-Key", "k1"); p != nil {
		t.Fatalf("%+v", *p)
	}
	if p := r.call("owner", "metal/enroll", in, &again, "Idempotency-Key", "k1"); p != nil {
		t.Fatalf("the repeat: %+v", *p)
	}
	if first.Operation.ID != again.Operation.ID || first.Node.ID != again.Node.ID {
		t.Errorf("the repeat made another: %s, %s", first.Node.ID, again.Node.ID)
	}
	if p := r.call("owner", "metal/enroll", enrollIn(r.site, "127.0.0.10"), nil, "Idempotency-Key", "k1"); p == nil || p.Reason != "key-reused" {
		t.Errorf("another body under the key: %+v", p)
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			p := r.call("owner", "metal/enroll", enrollIn(r.site, "127.0.0.11"), nil, "Idempotency-Key", "k2")
			if p != nil && p.Reason != "key-in-use" {
				t.Errorf("%+v", *p)
			}
		})
	}
	wg.Wait()
	if n := r.count(`SELECT count(*) FROM nodes`); n != 2 {
		t.Errorf("%d nodes, want 2", n)
	}
	in2 := obj{"tenantId": "acme", "name": "ci", "role": "viewer", "on": obj{"tenantId": "acme"}, "ttlSeconds": 600}
	if p := r.call("owner", "access/issueToken", in2, nil, "Idempotency-Key", "k3"); p != nil {
		t.Fatalf("%+v", *p)
	}
	if p := r.call("owner", "access/issueToken", in2, nil, "Idempotency-Key", "k3"); p == nil || p.Reason != "answer-not-kept" {
		t.Errorf("the repeat of a secret's answer: %+v", p)
	}
}

// An operation of another tenant's node is told in the same words as one that
// is not there.
func TestForeignOperationIsNotThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var out fleet.MetalOperationOut
	r.ok("owner", "metal/enroll", enrollIn(r.site, "https://127.0.0.9"), &out)
	for _, method := range []string{"operations/get", "operations/wait"} {
		in := func(id string) obj {
			o := obj{"tenantId": "globex", "operationId": id}
			if method == "operations/wait" {
				o["timeoutSeconds"] = 1
			}
			return o
		}
		foreign := r.refused("owner2", method, in(out.Operation.ID), fleet.CodeNotFound, "")
		absent := r.refused("owner2", method, in("op_01j00000000000000000000000"), fleet.CodeNotFound, "")
		if foreign.Detail != absent.Detail {
			t.Errorf("%s tells a foreign operation (%q) from an absent one (%q)", method, foreign.Detail, absent.Detail)
		}
	}
	r.ok("viewer", "operations/get", obj{"tenantId": "acme", "operationId": out.Operation.ID}, nil)
}
