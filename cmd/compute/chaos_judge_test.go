//go:build chaos

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/bettercompute/compute/fleet"
)

// chaosLeft are rows that must not be left once all has come to rest.
var chaosLeft = []struct{ what, sql string }{
	{"operations without an end", `SELECT count(*) FROM operations WHERE ended_at IS NULL`},
	{"rows to deliver to Temporal", `SELECT count(*) FROM dispatch`},
	{"nodes to reconcile", `SELECT count(*) FROM reconcile_wanted`},
	{"commands that nobody waits for", `SELECT count(*) FROM commands WHERE state IN ('pending', 'delivered')`},
	{"boots of ended operations", `SELECT count(*) FROM boots WHERE voided_at IS NULL`},
	{"secrets of ended operations", `SELECT count(*) FROM operation_secrets`},
	{"places of ended operations", `SELECT count(*) FROM operations WHERE place IS NOT NULL OR place_wanted IS NOT NULL`},
	{"fences of ended operations", `SELECT count(*) FROM nodes WHERE provision_op IS NOT NULL OR drain_op IS NOT NULL`},
	{"nodes that nothing drains any more", `SELECT count(*) FROM nodes WHERE 'draining' = ANY (no_schedule_reasons) AND deleted_at IS NULL`},
	{"leases of BMCs", `SELECT count(*) FROM bmc_leases WHERE holder IS NOT NULL AND expires_at > now()`},
	{"workflows that Postgres does not know", `SELECT count(*) FROM unknown_workflows`},
	{"steps under way", `SELECT count(*) FROM operations o, jsonb_array_elements(o.steps) s WHERE s->>'state' = 'running'`},
	{"provision events told twice", `SELECT count(*) FROM (SELECT FROM events WHERE type LIKE 'node.provision.%' OR type LIKE 'node.operation.%'
		GROUP BY node_id, type, version, data->>'operationId' HAVING count(*) > 1) twice`},
	{"events behind a later version", `SELECT count(*) FROM (SELECT version, max(version) OVER (PARTITION BY node_id ORDER BY tx, seq) AS latest
		FROM events WHERE node_id IS NOT NULL) e WHERE version < latest`},
}

// judge looks at all that is left once every life has come to its end.
func (c *chaos) judge(events *follower) {
	for _, l := range chaosLeft {
		until(c.t, func() string {
			n := c.query(l.sql)
			return missing(n > 0, "left: %d %s", n, l.what)
		})
	}
	want := c.cursors()
	until(c.t, func() string {
		got := events.seen()
		return missing(len(got) < len(want), "the stream brought %d events of %d", len(got), len(want))
	})
	if diff := cmp.Diff(want, events.seen()); diff != "" {
		c.t.Errorf("events of the stream (-table +stream):\n%s", diff)
	}
	operations := c.operations()
	for _, o := range operations {
		if o.lane != "drain" && !c.told[o.id] {
			c.t.Errorf("%s %s was made, and no caller was told", o.verb, o.id)
		}
	}
	if len(operations) < len(c.told) {
		c.t.Errorf("of %d operations that callers were told of, %d are there", len(c.told), len(operations))
	}
	c.judgeWorkflows(operations)
	c.judgeMachines(operations)
}

// chaosOperation is an operation as the judge sees it.
type chaosOperation struct {
	id, verb, lane, state, address string
	created, ended                 time.Time
}

func (c *chaos) operations() map[string]chaosOperation {
	c.t.Helper()
	rows, err := c.pool.Query(c.t.Context(), `SELECT o.id, o.verb, o.lane, o.state, coalesce(n.name, ''), o.created_at, o.ended_at
		FROM operations o JOIN nodes n ON n.id = o.node_id`)
	if err != nil {
		c.t.Fatal(err)
	}
	list := map[string]chaosOperation{}
	var o chaosOperation
	_, err = pgx.ForEachRow(rows, []any{&o.id, &o.verb, &o.lane, &o.state, &o.address, &o.created, &o.ended}, func() error {
		list[fleet.WorkflowID(o.id)] = o
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return list
}

// judgeWorkflows sees that Temporal runs nothing for an operation that ended,
// and that no workflow ended in another way than its operation.
func (c *chaos) judgeWorkflows(operations map[string]chaosOperation) {
	client := c.temporal()
	until(c.t, func() string {
		var token []byte
		for {
			list, err := client.ListWorkflow(c.t.Context(), &workflowservice.ListWorkflowExecutionsRequest{
				Namespace: c.env["TEMPORAL_NAMESPACE"], Query: "WorkflowId STARTS_WITH 'op/'", NextPageToken: token})
			if err != nil {
				return err.Error()
			}
			for _, e := range list.GetExecutions() {
				id := e.GetExecution().GetWorkflowId()
				o, known := operations[id]
				switch {
				case !known:
					c.t.Errorf("workflow %s has no operation", id)
				case e.GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING:
					return fmt.Sprintf("workflow %s still runs, its %s ended %s", id, o.verb, o.state)
				case e.GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED:
					c.t.Errorf("workflow %s is %s, its %s ended %s", id, e.GetStatus(), o.verb, o.state)
				}
			}
			if token = list.GetNextPageToken(); len(token) == 0 {
				return ""
			}
		}
	})
}

// chaosPowerOns are how often a verb that ends well switches its machine on, at
// most. Our image is booted anew where the rack was killed under it.
var chaosPowerOns = map[string]int{"deploy": 2, "rescue": 1, "unrescue": 1, "release": 1, "commission": 1, "power": 1, "inspect": 0, "retire": 1}

// judgeMachines sees from what each machine was asked that an operation wanted
// every change of it, and none was made twice.
func (c *chaos) judgeMachines(operations map[string]chaosOperation) {
	var rack struct {
		Items []struct {
			ID    string
			Media []struct{ Inserted bool }
		}
	}
	c.simulated("/sim/machines", &rack)
	var clock struct {
		Now       time.Time
		TimeScale float64
	}
	c.simulated("/sim/clock", &clock)
	now := time.Now()
	for i, m := range rack.Items {
		var requests struct {
			Items []struct {
				At           time.Time
				Method, Path string
				Status       int
				Body         string
			}
		}
		c.simulated("/sim/machines/"+m.ID+"/requests", &requests)
		ons := map[string]int{}
		for _, q := range requests.Items {
			if q.Method == http.MethodGet || strings.Contains(q.Path, "/Sessions") {
				continue
			}
			at := now.Add(-time.Duration(float64(clock.Now.Sub(q.At)) / clock.TimeScale))
			o := wanted(operations, i, at)
			if o.id == "" {
				c.t.Errorf("%s: %s %s %s at %s, which no operation wanted", m.ID, q.Method, q.Path, q.Body, at.Format(time.TimeOnly))
			}
			var reset struct{ ResetType string }
			if strings.HasSuffix(q.Path, "ComputerSystem.Reset") && q.Status < 300 && json.Unmarshal([]byte(q.Body), &reset) == nil {
				ons[o.id] += switchedOn(map[string]int{reset.ResetType: 1})
			}
		}
		for id, n := range ons {
			o := operations[fleet.WorkflowID(id)]
			if most := chaosPowerOns[o.verb] + c.deaths(o); n > most && o.state == string(fleet.OpSucceeded) {
				c.t.Errorf("%s: %s %s switched it on %d times, want %d at most", m.ID, o.verb, id, n, most)
			}
		}
	}
}

// wanted is the operation of a machine that was under way at a time. The two
// clocks are compared to a fraction of a second.
func wanted(operations map[string]chaosOperation, machine int, at time.Time) (under chaosOperation) {
	const near = 200 * time.Millisecond
	for _, o := range operations {
		if strings.HasPrefix(o.address, fmt.Sprintf("n-%d-", machine)) && o.lane != "drain" && at.After(o.created.Add(-near)) && at.Before(o.ended.Add(near)) &&
			(under.id == "" || o.created.Before(under.created)) {
			under = o
		}
	}
	return under
}

// deaths is how often the rack was killed during an operation.
func (c *chaos) deaths(o chaosOperation) (n int) {
	for _, at := range c.died {
		if at.After(o.created) && at.Before(o.ended) {
			n++
		}
	}
	return n
}
