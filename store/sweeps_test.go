package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// exec runs a statement of the test's set-up.
func (o *ops) exec(sql string, args ...any) {
	o.t.Helper()
	if _, err := o.pool.Exec(o.t.Context(), sql, args...); err != nil {
		o.t.Fatal(err)
	}
}

// addBMC gives node_a a BMC that was found to speak Redfish and is due.
func (o *ops) addBMC() {
	o.t.Helper()
	sealed, err := o.SealBMCPassword("node_a", "hunter2")
	if err != nil {
		o.t.Fatal(err)
	}
	o.exec(`INSERT INTO bmcs (node_id, site_id, address, driver, username, password, tls_mode, capabilities, power_state)
		VALUES ('node_a', 'site_1', 'https://127.0.0.9', 'auto', 'admin', $1, 'insecure', '{"driver": "redfish"}', 'off')`, sealed)
}

// A BMC that is due is claimed by one sweep with its lease; one whose login was
// refused, or that another reads, is left alone.
func TestClaimDueBMCs(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.addBMC()
	claim := func() []store.DueBMC {
		t.Helper()
		o.exec(`UPDATE bmcs SET next_check_at = now() - interval '1 second'`)
		due, err := o.ClaimDueBMCs(t.Context(), "w", 10, time.Hour, 0, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return due
	}
	due := claim()
	if len(due) != 1 || due[0].Found != "redfish" || due[0].Power != fleet.PowerOff || due[0].Lease.Slot == store.ChangeSlot {
		t.Fatalf("claimed %+v, want the one BMC with a read lease", due)
	}
	if again := claim(); len(again) != 0 {
		t.Errorf("claimed %d while another holds the lease, want none", len(again))
	}
	if err := o.ReleaseLease(t.Context(), due[0].Lease); err != nil {
		t.Fatal(err)
	}
	if err := o.RecordLooks(t.Context(), []store.BMCLook{{NodeID: "node_a", Error: "no answer\x00\xff", Next: time.Hour}}); err != nil {
		t.Fatal(err)
	}
	if due = claim(); len(due) != 1 || due[0].Failures != 1 || due[0].Reachable {
		t.Fatalf("claimed %+v, want one failure counted", due)
	}
	if err := o.ReleaseLease(t.Context(), due[0].Lease); err != nil {
		t.Fatal(err)
	}
	refused := fleet.Condition{Type: "BmcAuthenticated", Status: fleet.ConditionFalse, Reason: "login-refused", Message: "no\x00 login"}
	if err := o.SetCondition(t.Context(), "node_a", refused); err != nil {
		t.Fatal(err)
	}
	if due = claim(); len(due) != 0 {
		t.Error("a BMC that refused the login was looked at again")
	}
}

// An open operation is claimed by one sweep at a time; one that was never
// delivered and has no row is asked for again, once.
func TestClaimOpenOperations(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_1", fleet.VerbDeploy)
	o.exec(`UPDATE operations SET created_at = now() - interval '1 hour'`)
	claim := func() []store.OpenOperation {
		t.Helper()
		list, err := o.ClaimOpenOperations(t.Context(), time.Minute, 10)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if list := claim(); len(list) != 1 || !list[0].Queued || list[0].Delivered || !list[0].Present {
		t.Fatalf("claimed %+v, want the queued operation", list)
	}
	if list := claim(); len(list) != 0 {
		t.Errorf("claimed again at once: %+v", list)
	}
	o.exec(`DELETE FROM dispatch`)
	for range 2 {
		if err := o.RestartLost(t.Context(), "op_1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, rows, err := store.DispatchLag(t.Context(), o.pool); err != nil || rows != 1 {
		t.Errorf("%d start rows (%v), want 1", rows, err)
	}
	for what, sql := range map[string]string{
		"that was delivered":      `UPDATE operations SET delivered_at = now()`,
		"while recovery pends":    `UPDATE cluster_epoch SET recovery_pending = true, recovery_reason = 'restore'`,
		"of a former epoch":       `UPDATE cluster_epoch SET epoch = epoch + 1`,
		"whose node is another's": `UPDATE nodes SET provision_op = NULL`,
		"that has ended":          `UPDATE operations SET state = 'aborted', ended_at = now()`,
	} {
		o.exec(`DELETE FROM dispatch`)
		o.exec(`UPDATE operations SET delivered_at = NULL, ended_at = NULL, state = 'pending', epoch = (SELECT epoch FROM cluster_epoch)`)
		o.exec(`UPDATE cluster_epoch SET recovery_pending = false, recovery_reason = NULL`)
		o.exec(`UPDATE nodes SET provision_op = 'op_1'`)
		o.exec(sql)
		o.must(o.RestartLost(t.Context(), "op_1"))
		if _, rows, err := store.DispatchLag(t.Context(), o.pool); err != nil || rows != 0 {
			t.Errorf("an operation %s was started by the sweep (%d rows, %v)", what, rows, err)
		}
	}
}

// A failing workflow task is shown on the operation, beside what the operation
// itself waits for, and taken away again.
func TestShowFailingTask(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_1", fleet.VerbDeploy)
	shown := func() *fleet.WaitingFor {
		t.Helper()
		op, err := store.LoadOperation(t.Context(), o.pool, "op_1")
		if err != nil {
			t.Fatal(err)
		}
		return op.WaitingFor
	}
	fails := func(failing *fleet.WaitingFor, what string) {
		t.Helper()
		if err := o.ShowFailingTask(t.Context(), store.OpenOperation{ID: "op_1", Failing: failing}, what); err != nil {
			t.Fatal(err)
		}
	}
	fails(nil, "it panics")
	first := shown()
	if first == nil || first.What != "it panics" {
		t.Fatalf("waitingFor = %+v, want the failing task", first)
	}
	if err := o.SetWaiting(t.Context(), "op_1", &fleet.WaitingFor{Actor: "dev:owner", What: "held"}); err != nil {
		t.Fatal(err)
	}
	fails(first, "it panics again")
	if w := shown(); w == nil || w.What != "it panics again; besides, it waits for dev:owner: held" || w.Since != first.Since {
		t.Errorf("waitingFor = %+v, want both, since %s", w, first.Since)
	}
	fails(first, "")
	if w := shown(); w == nil || w.What != "held" {
		t.Errorf("waitingFor = %+v after the task went well, want the hold", w)
	}
}

// A hold that is over is lifted, with an event, and who waited for it is woken.
func TestEndHolds(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_1", fleet.VerbDeploy)
	deliverAll(t, o)
	if err := o.SetWaiting(t.Context(), "op_1", &fleet.WaitingFor{What: "held"}); err != nil {
		t.Fatal(err)
	}
	over := fleet.At(time.Now().Add(-time.Minute))
	err := o.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := store.HoldNode(ctx, tx, "node_a", &fleet.Hold{By: "dev:owner", Reason: "swap", Since: over, Until: &over})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{1, 0} {
		if n, err := o.EndHolds(t.Context()); err != nil || n != want {
			t.Fatalf("ended %d holds (%v), want %d", n, err, want)
		}
	}
	if _, rows, err := store.DispatchLag(t.Context(), o.pool); err != nil || rows != 1 {
		t.Errorf("%d wake rows (%v), want 1", rows, err)
	}
	o.exec(`INSERT INTO reconcile_wanted (node_id) VALUES ('node_a')`)
	if n, err := o.Reconcile(t.Context()); err != nil || n != 1 {
		t.Errorf("reconciled %d (%v), want 1", n, err)
	}
	if err := o.ForgetOld(t.Context()); err != nil {
		t.Error(err)
	}
}

// While recovery is pending nothing is delivered; a failover that lost nothing
// ends by itself, a workflow that Postgres does not know only by judgement.
func TestRecovery(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_1", fleet.VerbDeploy)
	o.exec(`UPDATE cluster_epoch SET timeline = timeline - 1`)
	before, err := store.LoadEpoch(t.Context(), o.pool)
	if err != nil {
		t.Fatal(err)
	}
	epoch, err := o.CheckEpoch(t.Context())
	if err != nil || epoch.Number != before.Number+1 || !epoch.RecoveryPending || epoch.Reason != store.RecoveryFailover {
		t.Fatalf("epoch after a promotion = %+v (%v)", epoch, err)
	}
	count := func() int {
		t.Helper()
		n, err := o.Deliver(t.Context(), 10, func(context.Context, store.Dispatch) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(); n != 0 {
		t.Fatalf("delivered %d rows while recovery is pending", n)
	}
	if alarm, err := o.RaiseAlarm(t.Context(), store.UnknownWorkflow{WorkflowID: "op/op_9", Type: "Deploy", NodeID: "node_a"}); err != nil || alarm != store.AlarmRaised {
		t.Fatalf("alarm: %v, %v", alarm, err)
	}
	if err := o.EndFailover(t.Context(), epoch.Number); err != nil {
		t.Fatal(err)
	}
	if err := store.RefuseWhileRecovering(t.Context(), o.pool); fleet.ReasonOf(err) != "recovery-pending" {
		t.Errorf("err = %v, want recovery-pending: an unknown workflow is no clean failover", err)
	}
	d, err := o.LoadDisagreements(t.Context())
	if err != nil || len(d.Unknown) != 1 || len(d.Unverified) != 1 || d.Held != 1 {
		t.Fatalf("disagreements = %+v (%v)", d, err)
	}
	if done, err := o.Judged(t.Context(), "node_a"); err != nil || !done {
		t.Fatalf("judged: %v, %v", done, err)
	}
	if n := count(); n != 1 {
		t.Errorf("delivered %d rows after the recovery, want 1", n)
	}
	if alarm, err := o.RaiseAlarm(t.Context(), store.UnknownWorkflow{WorkflowID: "op/op_9", Type: "Deploy", NodeID: "node_a"}); err != nil || alarm != store.AlarmJudged {
		t.Errorf("a judged workflow raised the alarm again: %v, %v", alarm, err)
	}
}

// Where Temporal is right, the node becomes failed from what was forgotten, and
// a deploy leaves an erase owed.
func TestFailUnverified(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	if err := o.FailUnverified(t.Context(), "node_a", fleet.VerbDeploy, "admin"); err != nil {
		t.Fatal(err)
	}
	s, err := store.LoadSituation(t.Context(), o.pool, "node_a")
	if err != nil || s.State != fleet.Failed || s.FailedFrom != fleet.Deploying || !s.EraseOwed {
		t.Errorf("situation = %+v (%v), want failed(deploying) with an erase owed", s, err)
	}
}

// Every sealed column opens by what the check says it belongs to, and is sealed
// anew after a rotation.
func TestCheckSeals(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.addBMC()
	o.mustBegin("op_1", fleet.VerbSetCredentials)
	if err := o.StageCredentials(t.Context(), "op_1"); err != nil {
		t.Fatal(err)
	}
	if _, err := o.KeepBMCSession(t.Context(), "node_a", "/session/1", "token"); err != nil {
		t.Fatal(err)
	}
	fresh, err := o.Seal.Rotate()
	if err != nil {
		t.Fatal(err)
	}
	rotated := store.New(o.pool, store.Options{Seal: fresh})
	for _, round := range []struct {
		reseal bool
		old    int
	}{{false, 4}, {true, 4}, {false, 0}} {
		checks, err := rotated.CheckSeals(t.Context(), round.reseal)
		if err != nil {
			t.Fatal(err)
		}
		old, lost := 0, 0
		for _, c := range checks {
			old += c.Old
			lost += c.Lost
		}
		if old != round.old || lost != 0 {
			t.Errorf("reseal %v: %d sealed by an older key and %d lost, want %d and 0", round.reseal, old, lost, round.old)
		}
	}
}
