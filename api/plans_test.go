package api_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/storetest"
)

// background does once what the worker does again and again.
func background(r *rig, nodeID string) {
	r.t.Helper()
	ctx, s := r.t.Context(), r.store
	var op string
	if err := s.Pool().QueryRow(ctx, `SELECT provision_op FROM nodes WHERE id = $1`, nodeID).Scan(&op); err != nil {
		r.t.Fatal(err)
	}
	for _, c := range []struct {
		doing string
		do    func() error
	}{
		{"deliver", func() error {
			_, err := s.Deliver(ctx, 10, func(context.Context, store.Dispatch) error { return nil })
			return err
		}},
		{"operations", func() error { _, err := s.ClaimOpenOperations(ctx, time.Minute, 10); return err }},
		{"known", func() error { _, err := s.OperationsKnown(ctx, []string{op}); return err }},
		{"bmcs", func() error {
			_, err := s.ClaimDueBMCs(ctx, "w", 10, time.Minute, time.Minute, time.Minute)
			return err
		}},
		{"looks", func() error {
			return s.RecordLooks(ctx, []store.BMCLook{{NodeID: nodeID, Reachable: true, Power: fleet.PowerOn, Next: time.Hour}})
		}},
		{"power", func() error { return s.RecordPower(ctx, nodeID, "system", fleet.PowerOn, time.Now()) }},
		{"condition", func() error {
			return s.SetCondition(ctx, nodeID, fleet.Condition{Type: "BmcReachable", Status: fleet.ConditionFalse})
		}},
		{"holds", func() error { _, err := s.EndHolds(ctx); return err }},
		{"identities", func() error { _, err := s.SettleIdentities(ctx); return err }},
		{"reconcile", func() error { _, err := s.Reconcile(ctx); return err }},
		{"forget", func() error { return s.ForgetOld(ctx) }},
		{"begin", func() error { _, err := s.BeginOperation(ctx, op, "run"); return err }},
		{"step", func() error { _, err := s.StartStep(ctx, op, "read", 0); return err }},
		{"step ended", func() error { return s.EndStep(ctx, op, "read", fleet.StepDone, "") }},
		{"safe point", func() error { _, err := s.CheckSafePoint(ctx, op, ""); return err }},
		{"abort", func() error { return s.AbortOperation(ctx, op, "a test", nil) }},
	} {
		if err := c.do(); err != nil && fleet.ReasonOf(err) != store.ReasonSuperseded {
			r.t.Errorf("%s: %v", c.doing, err)
		}
	}
}

// No call reads a table in proportion to the fleet: what is sent to the
// database while every list, read and node verb is called is explained, and
// none of it scans a table that grows with the fleet. Nor does what the worker
// asks again and again.
func TestPlans(t *testing.T) {
	t.Parallel()
	pool, sent := storetest.Recorded(t)
	r := newRigOn(t, pool)
	gpus := r.pool(r.site, "h100")
	storetest.Fill(t, pool, "acme", r.site, gpus, 10_000)
	node := r.enrolled("https://127.0.0.9", fleet.Ready)
	sent.Forget()

	deep := fmt.Sprintf("node_%026d", 3000)
	on := obj{"tenantId": "acme", "nodeId": node.ID}
	var page fleet.NodesPage
	r.ok("owner", "nodes/list", obj{"tenantId": "acme"}, &page)
	var events fleet.EventsPage
	r.ok("owner", "nodes/events", obj{"tenantId": "acme", "nodeId": deep, "limit": 2}, &events)
	var ops fleet.OperationsPage
	r.ok("owner", "operations/list", obj{"tenantId": "acme"}, &ops)
	for _, c := range []struct {
		method string
		in     obj
	}{
		{"nodes/list", obj{"cursor": page.NextCursor}},
		{"nodes/list", obj{"poolId": gpus, "siteId": r.site, "cordoned": true, "provisionState": "retired"}},
		{"nodes/get", on},
		{"nodes/events", obj{"nodeId": deep, "cursor": events.NextCursor, "type": "node."}},
		{"nodes/cordon", on}, {"nodes/uncordon", on},
		{"nodes/label", obj{"nodeId": node.ID, "set": obj{"a": "b"}}},
		{"nodes/taint", obj{"nodeId": node.ID, "add": []string{"k"}}},
		{"metal/get", on},
		{"metal/list", obj{"name": "n77"}}, {"metal/list", obj{"serial": "s" + deep}}, {"metal/list", obj{"mac": "02:00:00:00:00:77"}},
		{"metal/list", obj{"bmcAddress": "127.0.0.9"}}, {"metal/list", obj{"labels": obj{"rack": "r7"}}},
		{"metal/list", obj{"provisionState": "failed", "failedFrom": "deploying"}},
		{"metal/hold", obj{"nodeId": node.ID, "reason": "r"}}, {"metal/unhold", on},
		{"metal/inspect", on},
		{"operations/list", obj{"cursor": ops.NextCursor}}, {"operations/list", obj{"nodeId": deep}},
		{"operations/list", obj{"state": "running"}}, {"operations/list", obj{"poolId": gpus, "siteId": r.site}},
		{"operations/get", obj{"operationId": ops.Items[0].ID, "evidence": true}},
		{"pools/list", obj{}}, {"pools/get", obj{"poolId": gpus}}, {"sites/list", obj{}}, {"sites/get", obj{"siteId": r.site}},
		{"access/list", obj{}}, {"access/audit", obj{}}, {"access/audit", obj{"nodeId": deep}},
	} {
		in := obj{"tenantId": "acme"}
		for k, v := range c.in {
			in[k] = v
		}
		r.ok("owner", c.method, in, nil)
	}
	r.stream("owner", "cursor=0:0&nodeId="+deep, func(sse) bool { return true })
	r.stream("owner", "cursor=0:0", func(sse) bool { return true })
	background(r, node.ID)
	if n := sent.Count(); n < 60 {
		t.Errorf("%d statements were recorded, want those of all calls", n)
	}
	for sql, tables := range sent.SeqScans(t, pool.Config().ConnString(), storetest.BigTables...) {
		t.Errorf("reads %v from end to end:\n%s", tables, sql)
	}
}
