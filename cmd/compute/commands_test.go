package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/sim"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/seal"
	"github.com/bettercompute/compute/store/storetest"
)

// operator is a person with access to the database, who runs our commands.
type operator struct {
	t        *testing.T
	database string
	keyset   string
	pool     *pgxpool.Pool
}

func newOperator(t *testing.T) *operator {
	t.Helper()
	o := &operator{t: t, database: storetest.URL(t) + "?pool_max_conns=4", keyset: filepath.Join(t.TempDir(), "keyset.json")}
	if _, err := seal.Create(o.keyset); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), o.database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	o.pool = pool
	return o
}

// try runs a command of compute and returns what it printed.
func (o *operator) try(args ...string) (string, error) {
	o.t.Helper()
	var out bytes.Buffer
	cmd := rootCmd()
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append(args, "--database-url", o.database, "--keyset", o.keyset))
	err := cmd.ExecuteContext(o.t.Context())
	return out.String(), err
}

// run is try of what must succeed.
func (o *operator) run(args ...string) string {
	o.t.Helper()
	out, err := o.try(args...)
	if err != nil {
		o.t.Fatalf("compute %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (o *operator) count(sql string, args ...any) int {
	o.t.Helper()
	var n int
	if err := o.pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		o.t.Fatal(err)
	}
	return n
}

func (o *operator) exec(sql string, args ...any) {
	o.t.Helper()
	if _, err := o.pool.Exec(context.Background(), sql, args...); err != nil {
		o.t.Fatal(err)
	}
}

// A production system begins with access to the database: a tenant and its
// owner, further roles, each as often as one likes, each time in the audit.
func TestAdmin(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	for range 2 {
		o.run("admin", "create-tenant", "acme", "--owner", "corp:alice")
		o.run("admin", "grant", "acme", "corp:bob", "operator")
	}
	if n := o.count(`SELECT count(*) FROM bindings WHERE tenant_id = 'acme' AND (identity, role) IN (('corp:alice', 'owner'), ('corp:bob', 'operator'))`); n != 2 {
		t.Errorf("%d bindings, want one each", n)
	}
	if n := o.count(`SELECT count(*) FROM audit WHERE tenant_id = 'acme' AND method IN ('admin/create-tenant', 'admin/grant') AND outcome = 'OK'`); n != 4 {
		t.Errorf("%d audit rows, want one a call", n)
	}
	for _, wrong := range [][]string{{"create-tenant", "ac me", "--owner", "corp:alice"}, {"create-tenant", "acme", "--owner", "alice"},
		{"grant", "acme", "corp:bob", "emperor"}, {"grant", "nobody", "corp:bob", "viewer"}} {
		if out, err := o.try(append([]string{"admin"}, wrong...)...); err == nil {
			t.Errorf("admin %v succeeded: %s", wrong, out)
		}
	}
	if n := o.count(`SELECT count(*) FROM bindings`); n != 2 {
		t.Errorf("%d bindings after refused calls, want 2", n)
	}
}

// The commands of an operator with access to the database, while all runs: a
// difference of the projection is found and mended, keys are rotated under
// running processes, and after a restore nothing destructive begins until
// somebody says which side is right.
func TestOperatorsCommands(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.startWorker()
	o := &operator{t: t, database: r.databases, keyset: r.keyset, pool: r.store.Pool()}
	r.ok("sites/update", obj{"siteId": r.site, "timeouts": obj{"powerChange": 36000}}, nil) // slowness is no failure
	h := r.add(t, sim.MachineSpec{Seed: 51})
	h.enrolled()

	o.exec(`DELETE FROM node_visibility WHERE node_id = $1`, h.node)
	if err := r.call(t, "nodes/get", obj{"nodeId": h.node}, nil); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("without its row of the projection the node answers %v", err)
	}
	if out, err := o.try("projection", "check"); err == nil || !strings.Contains(out, h.node) {
		t.Errorf("a missing row is not found: %v\n%s", err, out)
	}
	if out := o.run("projection", "rebuild"); !strings.Contains(out, h.node) {
		t.Errorf("the rebuild does not say what it mended:\n%s", out)
	}
	o.run("projection", "check")
	r.ok("nodes/get", obj{"nodeId": h.node}, nil)

	o.run("keys", "rotate")
	if out := o.run("keys", "check"); !strings.Contains(out, "the keyset holds 2 keys") || !strings.Contains(out, "1 secrets, 0 by an older key, 0 do not open") {
		t.Errorf("after the rotation:\n%s", out)
	}
	if op := h.do("power", obj{"action": "on"}); op.State != fleet.OpSucceeded {
		t.Errorf("with a new key: %+v", op.Error)
	}
	o.recovers(r, h)
}

// recovers brings a workflow about that the database does not know, as after a
// restore of an older backup.
func (o *operator) recovers(r *rig, h *host) {
	o.t.Helper()
	lost := fleet.WorkflowID(store.NewID(fleet.KindOperation))
	_, err := r.temporal.ExecuteWorkflow(o.t.Context(), client.StartWorkflowOptions{ID: lost, TaskQueue: r.queue,
		TypedSearchAttributes: temporal.NewSearchAttributes(temporal.NewSearchAttributeKeyKeyword("NodeId").ValueSet(h.node))}, "Release")
	if err != nil {
		o.t.Fatal(err)
	}
	until(o.t, func() string {
		o.exec(`DELETE FROM sweeps WHERE name = 'workflows'`) // each round lists anew
		return missing(!strings.Contains(o.run("recover"), lost), "workflow %s raises no alarm", lost)
	})
	if err := r.call(o.t, "metal/power", obj{"nodeId": h.node, "action": "off"}, nil); fleet.CodeOf(err) != fleet.CodeUnavailable || err.Reason != "recovery-pending" {
		o.t.Errorf("a power off while recovery is pending: %v", err)
	}
	at := []string{"--temporal-address", r.address, "--temporal-namespace", r.namespace}
	for _, wrong := range [][]string{{"--keep", "both", "--all"}, {"--keep", "postgres"}, {"--keep", "postgres", "--all", "--node", h.node},
		{"--keep", "postgres", "--node", "gpu-1"}} { // a name, where an id is asked for
		if out, err := o.try(append([]string{"recover"}, append(wrong, at...)...)...); err == nil {
			o.t.Errorf("recover %v succeeded: %s", wrong, out)
		}
	}
	if out := o.run(append([]string{"recover", "--keep", "postgres", "--all"}, at...)...); !strings.Contains(out, "recovered") {
		o.t.Errorf("recover says %s", out)
	}
	described, err := r.temporal.DescribeWorkflow(o.t.Context(), lost, "")
	if err != nil {
		o.t.Fatal(err)
	}
	// Terminated, or ended by itself when it found no operation to do.
	if described.Status == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
		o.t.Error("the workflow that nobody knows still runs")
	}
	if op := h.do("power", obj{"action": "off", "force": true, "reason": "test"}); op.State != fleet.OpSucceeded {
		o.t.Errorf("after the recovery: %+v", op.Error)
	}
	if h.metal().ProvisionState != fleet.Enrolling {
		o.t.Errorf("the node is %s although Postgres was right", h.metal().ProvisionState)
	}
}
