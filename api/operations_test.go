package api_test

import (
	"slices"
	"testing"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// operations/wait returns when the state changes, at once when nothing more
// comes, and as it is when the time is over.
func TestOperationsWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	var began fleet.MetalOperationOut
	r.ok("owner", "metal/inspect", on(n.ID), &began)
	id := began.Operation.ID
	wait := func(seconds int) fleet.OperationState {
		var out fleet.OperationOut
		r.ok("viewer", "operations/wait", obj{"tenantId": "acme", "operationId": id, "timeoutSeconds": seconds}, &out)
		return out.Operation.State
	}
	if got := wait(1); got != fleet.OpPending {
		t.Errorf("after the time it is %s", got)
	}
	// The state changes again and again, so that it does after the call has read
	// it: the call returns with a change, not with its time.
	seen := make(chan fleet.OperationState, 1)
	go func() { seen <- wait(60) }()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for changes, returned := 0, false; !returned; changes++ {
		r.exec(`UPDATE operations SET state = CASE state WHEN 'running' THEN 'waiting' ELSE 'running' END WHERE id = $1`, id)
		if changes == 100 {
			t.Fatal("a hundred changes of the state, and the call has not returned")
		}
		select {
		case <-seen:
			returned = true
		case <-tick.C:
		}
	}
	r.exec(`UPDATE operations SET state = 'failed', parked = true WHERE id = $1`, id)
	if got := wait(60); got != fleet.OpFailed { // parked: nothing more comes by itself
		t.Errorf("parked it is %s", got)
	}
	r.refused("viewer", "operations/wait", obj{"tenantId": "acme", "operationId": id, "timeoutSeconds": 61}, fleet.CodeInvalidInput, "")
}

// What an operation tells: its end expected from five runs of its steps on the
// same hardware, a share of steps, and on request what a failure left to look at.
func TestOperationTells(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	var began fleet.MetalOperationOut
	r.ok("owner", "metal/inspect", on(n.ID), &began)
	id := began.Operation.ID
	r.exec(`UPDATE operations SET state = 'running', hardware_model = 'M1', steps = '[{"name": "identify", "state": "done", "attempts": 1},
		{"name": "read-inventory", "state": "pending", "attempts": 0}]', evidence = '{"exchanges": [{"method": "GET", "path": "/redfish/v1", "status": 500}]}' WHERE id = $1`, id)
	get := func(evidence bool) fleet.Operation {
		var out fleet.OperationOut
		r.ok("viewer", "operations/get", obj{"tenantId": "acme", "operationId": id, "evidence": evidence}, &out)
		return out.Operation
	}
	sample := func(model string, seconds int) {
		r.exec(`INSERT INTO step_samples (verb, step, hardware_model, seconds) VALUES ('inspect', 'read-inventory', $1, $2)`, model, seconds)
	}
	for range 4 {
		sample("M1", 3600)
		sample("M2", 10)
	}
	sample("M2", 10)
	if o := get(false); o.ExpectedEnd != nil || o.Percent == nil || *o.Percent != 50 || o.Evidence != nil {
		t.Errorf("of four samples: expected end %v, %v %%, evidence %v", o.ExpectedEnd, *o.Percent, o.Evidence)
	}
	sample("M1", 3600)
	if o := get(false); o.ExpectedEnd == nil || time.Until(o.ExpectedEnd.Time) < 50*time.Minute || time.Until(o.ExpectedEnd.Time) > time.Hour {
		t.Errorf("of five samples of an hour: expected end %v", o.ExpectedEnd)
	}
	if o := get(true); o.Evidence == nil || len(o.Evidence.Exchanges) != 1 {
		t.Errorf("evidence %+v", o.Evidence)
	}
}

// Machines are found by each of the filters, alone and together, and by none of
// another tenant.
func TestMetalListFilters(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	one, two := r.enrolled("127.0.0.9", fleet.Ready), r.enrolled("https://127.0.0.10:8443", fleet.Ready)
	r.exec(`UPDATE nodes SET name = 'gpu-1', labels = '{"rack": "r1", "row": "a"}' WHERE id = $1`, one.ID)
	r.exec(`UPDATE nodes SET name = 'gpu-2', labels = '{"rack": "r1"}', cordoned = true, boot_mac = '02:00:00:00:00:0b',
		provision_state = 'failed', failed = '{"from": "deploying", "step": "s", "cause": "c", "remedy": "r", "at": "2026-01-01T00:00:00Z"}' WHERE id = $1`, two.ID)
	r.exec(`INSERT INTO inventories (node_id, doc, serial, macs, inspected_at) VALUES ($1, '{}', 'S1', '{02:00:00:00:00:0a}', now())`, one.ID)
	r.exec(`UPDATE bmcs SET identity = '{"serial": "S2"}' WHERE node_id = $1`, two.ID)
	both := []string{one.ID, two.ID}
	slices.Sort(both)
	for name, c := range map[string]struct {
		filter obj
		want   []string
	}{
		"none":                {obj{}, both},
		"name":                {obj{"name": "gpu-1"}, []string{one.ID}},
		"serial, inspected":   {obj{"serial": "S1"}, []string{one.ID}},
		"serial, of the BMC":  {obj{"serial": "S2"}, []string{two.ID}},
		"MAC, inspected":      {obj{"mac": "02:00:00:00:00:0A"}, []string{one.ID}},
		"MAC, to boot from":   {obj{"mac": "02:00:00:00:00:0b"}, []string{two.ID}},
		"BMC's address":       {obj{"bmcAddress": "127.0.0.9"}, []string{one.ID}},
		"written otherwise":   {obj{"bmcAddress": "https://127.0.0.9:443/"}, []string{one.ID}},
		"with its port":       {obj{"bmcAddress": "127.0.0.10:8443"}, []string{two.ID}},
		"a label":             {obj{"labels": obj{"rack": "r1"}}, both},
		"labels":              {obj{"labels": obj{"rack": "r1", "row": "a"}}, []string{one.ID}},
		"failed from":         {obj{"failedFrom": "deploying"}, []string{two.ID}},
		"failed from another": {obj{"failedFrom": "releasing"}, nil},
		"state":               {obj{"provisionState": "ready"}, []string{one.ID}},
		"cordoned":            {obj{"cordoned": true}, []string{two.ID}},
		"two that agree":      {obj{"name": "gpu-2", "cordoned": true}, []string{two.ID}},
		"two that do not":     {obj{"name": "gpu-1", "cordoned": true}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for subject, tenant := range map[string]string{"viewer": "acme", "owner2": "globex"} {
				in := obj{"tenantId": tenant}
				for k, v := range c.filter {
					in[k] = v
				}
				var page fleet.MetalPage
				r.ok(subject, "metal/list", in, &page)
				var got []string
				for _, n := range page.Items {
					got = append(got, n.ID)
				}
				want := c.want
				if tenant == "globex" {
					want = nil
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s finds %v, want %v", tenant, got, want)
				}
			}
		})
	}
}
