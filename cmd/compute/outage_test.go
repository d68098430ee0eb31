package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/bettercompute/compute/fleet"
)

// outageNodes are taken through their lives at once.
const outageNodes = 60

// Engines go away and come back while sixty machines are taken from their BMCs
// to deployed, all at once, by two processes of each kind. Verbs are accepted
// without Temporal and refused without Postgres, in words that say so; each
// machine arrives, nothing is done twice, no event is lost or doubled.
func TestOutages(t *testing.T) {
	t.Parallel()
	r := startPair(t, outageNodes)
	events := r.follow()
	nodes := make([]string, outageNodes)
	t.Run("TemporalAway", func(t *testing.T) { r.in(t).temporalAway(nodes) })
	if t.Failed() {
		return
	}
	t.Run("PostgresKilled", func(t *testing.T) { r.in(t).postgresKilled(nodes) })
	if t.Failed() {
		return
	}
	t.Run("Events", func(t *testing.T) { r.in(t).eventsAreWhole(nodes, events) })
}

// temporalAway enrolls all machines while Temporal does not answer, each call
// sent twice as by a client that had no answer.
func (r *pair) temporalAway(nodes []string) {
	var rack struct {
		Items []struct{ Address, Username, Password string }
	}
	r.simulated("/sim/machines", &rack)
	r.signalTemporal(syscall.SIGSTOP)
	r.side(len(nodes), func(i int) {
		m := rack.Items[i]
		in := obj{"tenantId": r.env["COMPUTE_TENANT"], "siteId": r.env["COMPUTE_SITE"], "name": fmt.Sprintf("n-%d", i), "inUse": false, "advance": "ready",
			"bmc": obj{"address": m.Address, "username": m.Username, "password": m.Password, "tls": obj{"mode": "pin"}}}
		var out, again fleet.MetalOperationOut
		key := fmt.Sprintf("enroll-%d", i)
		if p := r.callAt(r.apis[i%2], "metal/enroll", in, &out, "Idempotency-Key", key); p != nil {
			r.t.Errorf("without Temporal an enroll is refused: %+v", *p)
			return
		}
		if p := r.callAt(r.apis[(i+1)%2], "metal/enroll", in, &again, "Idempotency-Key", key); p != nil || again.Operation.ID != out.Operation.ID {
			r.t.Errorf("the repeat: %+v, operation %v", p, again.Operation)
			return
		}
		nodes[i] = out.Node.ID
	})
	if r.t.Failed() {
		r.t.FailNow()
	}
	for _, url := range r.apis {
		until(r.t, func() string {
			status, text := get(r.t, url+"/readyz")
			var ready readiness
			if err := json.Unmarshal([]byte(text), &ready); err != nil || status != http.StatusOK || !ready.Ready {
				r.t.Fatalf("/readyz without Temporal: %d %s", status, text)
			}
			if !slices.ContainsFunc(ready.Degraded, func(s string) bool { return strings.Contains(s, "started late") }) {
				return "/readyz does not say that operations are started late: " + text
			}
			return ""
		})
		if age := metric(r.t, url, "compute_dispatch_oldest_seconds"); age < 10 {
			r.t.Errorf("the oldest undelivered row is %v s old, says the metric", age)
		}
	}
	r.signalTemporal(syscall.SIGCONT)
	r.arrive(nodes, fleet.Ready)
	if n := r.query(`SELECT count(*) FROM operations`); n != 3*len(nodes) {
		r.t.Errorf("%d operations, want enroll, inspect and commission of %d nodes", n, len(nodes))
	}
	if n := r.query(`SELECT count(*) FROM dispatch`); n != 0 {
		r.t.Errorf("%d rows are still to be delivered", n)
	}
	worked := map[string]bool{}
	for _, id := range nodes[:10] {
		maps.Copy(worked, r.workers(id))
	}
	if len(worked) != 2 {
		r.t.Errorf("of two workers these worked: %v", worked)
	}
	for _, url := range r.apis {
		until(r.t, func() string {
			if _, text := get(r.t, url+"/readyz"); !strings.Contains(text, `"degraded":[]`) {
				return "Temporal is back, and /readyz still says: " + text
			}
			return ""
		})
	}
}

// postgresKilled deploys all machines and kills Postgres, and a worker, when
// some are in each step.
func (r *pair) postgresKilled(nodes []string) {
	var sum string
	r.simulated("/images/small.raw.sha256", &sum)
	before := make([]map[string]int, len(nodes))
	for i := range nodes {
		before[i] = r.resets(fmt.Sprintf("m%05d", i+1))
	}
	r.side(len(nodes), func(i int) {
		in := obj{"tenantId": r.env["COMPUTE_TENANT"], "nodeId": nodes[i], "hostname": fmt.Sprintf("n-%d", i),
			"image": obj{"url": r.env["BMCSIM_URL"] + "/images/small.raw", "format": "raw", "checksum": "sha256:" + strings.Fields(sum)[0]}}
		if p := r.callAt(r.apis[i%2], "metal/deploy", in, nil); p != nil {
			r.t.Errorf("deploy: %+v", *p)
		}
	})
	until(r.t, func() string {
		booted := r.query(`SELECT count(*) FROM operations WHERE verb = 'deploy' AND power_on > 0`)
		return missing(booted < len(nodes)/3, "only %d machines were switched on", booted)
	})
	r.killPostgres()
	for _, url := range r.apis {
		until(r.t, func() string {
			p := r.callAt(url, "nodes/cordon", obj{"tenantId": r.env["COMPUTE_TENANT"], "nodeId": nodes[0]}, nil)
			if p == nil || p.Code != fleet.CodeUnavailable || p.RetryAfter == "" {
				r.t.Fatalf("without Postgres a verb answers %+v, want UNAVAILABLE with Retry-After", p)
			}
			status, text := get(r.t, url+"/readyz")
			return missing(status != http.StatusServiceUnavailable, "/readyz without Postgres: %d %s", status, text)
		})
	}
	r.kill("compute worker") // it starts again without Postgres, and waits
	r.restartPostgres()
	r.arrive(nodes, fleet.Deployed)
	if said := r.ends.said(); len(said) != 1 || !strings.Contains(said[0], "signal: killed") {
		r.t.Errorf("none but the killed worker was to end: %q", said)
	}
	for i := range nodes {
		id := fmt.Sprintf("m%05d", i+1)
		after := r.resets(id)
		// Our image is booted once and the disk once, whatever was killed.
		if on := switchedOn(after) - switchedOn(before[i]); on != 2 {
			r.t.Errorf("%s was switched on %d times by its deploy, want 2 (before %v, after %v)", id, on, before[i], after)
		}
		var counts struct{ ChangesInFlightMax, SessionsOpenMax int }
		r.simulated("/sim/machines/"+id+"/counts", &counts)
		if counts.ChangesInFlightMax > 1 {
			r.t.Errorf("%s had %d changes at once", id, counts.ChangesInFlightMax)
		}
	}
}

func switchedOn(resets map[string]int) int {
	return resets["On"] + resets["ForceOn"] + resets["ForceRestart"] + resets["GracefulRestart"] + resets["PowerCycle"]
}

// arrive waits until all nodes are in a state, and says of those that never
// will why.
func (r *pair) arrive(nodes []string, want fleet.ProvisionState) {
	r.t.Helper()
	until(r.t, func() string {
		rows, err := r.pool.Query(r.t.Context(), `SELECT name, provision_state, coalesce(failed::text, '') FROM nodes WHERE id = ANY($1) AND provision_state <> $2`, nodes, want)
		if err != nil {
			return err.Error()
		}
		defer rows.Close()
		var late []string
		for rows.Next() {
			var name, state, failed string
			if err := rows.Scan(&name, &state, &failed); err != nil {
				return err.Error()
			}
			if state == string(fleet.Failed) {
				r.t.Errorf("%s failed: %s", name, failed)
			}
			late = append(late, name+" is "+state)
		}
		if r.t.Failed() {
			r.t.FailNow()
		}
		return missing(len(late) > 0, "%d are not %s: %s", len(late), want, strings.Join(late, ", "))
	})
}

func missing(is bool, format string, args ...any) string {
	if !is {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// side runs a call for each, some at a time.
func (r *pair) side(n int, call func(i int)) {
	slots := make(chan struct{}, 16)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			call(i)
		})
	}
	wg.Wait()
}

// eventsAreWhole compares what the stream brought, over all outages, with the
// table, and the provision events of each node with its life.
func (r *pair) eventsAreWhole(nodes []string, f *follower) {
	// Sweeps go on writing: the table can be read between two commits, which the
	// stream never is.
	until(r.t, func() string {
		diff := cmp.Diff(r.cursors(), f.seen())
		return missing(diff != "", "events of the stream (-table +stream):\n%s", diff)
	})
	life := []string{"enrolling", "inspecting", "enrolling", "commissioning", "ready", "deploying", "deployed"}
	for _, id := range nodes {
		rows, err := r.pool.Query(r.t.Context(), `SELECT type FROM events WHERE node_id = $1 AND type LIKE 'node.provision.%' ORDER BY tx, seq`, id)
		if err != nil {
			r.t.Fatal(err)
		}
		got, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			r.t.Fatal(err)
		}
		for i := range got {
			got[i] = strings.TrimPrefix(got[i], "node.provision.")
		}
		if diff := cmp.Diff(life, got); diff != "" {
			r.t.Errorf("node %s (-want +got):\n%s", id, diff)
		}
	}
}

// cursors are the cursors of all events of the tenant, in order.
func (r *pair) cursors() []string {
	r.t.Helper()
	rows, err := r.pool.Query(r.t.Context(), `SELECT tx || ':' || seq FROM events WHERE type LIKE 'node.%' AND $1 = ANY(audience) ORDER BY tx, seq`, r.env["COMPUTE_TENANT"])
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// workers are who ran the activities of a node's operations, as Temporal
// recorded them.
func (r *pair) workers(node string) map[string]bool {
	r.t.Helper()
	c := r.temporal()
	rows, err := r.pool.Query(r.t.Context(), `SELECT id FROM operations WHERE node_id = $1`, node)
	if err != nil {
		r.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		r.t.Fatal(err)
	}
	names := map[string]bool{}
	for _, id := range ids {
		history := c.GetWorkflowHistory(r.t.Context(), fleet.WorkflowID(id), "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		for history.HasNext() {
			e, err := history.Next()
			if err != nil {
				r.t.Fatal(err)
			}
			if a := e.GetActivityTaskStartedEventAttributes(); a != nil {
				names[a.GetIdentity()] = true
			}
		}
	}
	return names
}
