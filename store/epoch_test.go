package store_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/storetest"
)

// opened is a store as a process opens it.
func opened(t *testing.T, url string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), url, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// tell writes an event and returns the part of its cursor that orders
// transactions.
func tell(t *testing.T, s *store.Store, typ string) int64 {
	t.Helper()
	err := s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		return store.AddEvents(ctx, tx, store.EventIn{Type: typ, TenantID: "acme", Actor: "system"})
	})
	if err != nil {
		t.Fatal(err)
	}
	var at int64
	if err := s.Pool().QueryRow(t.Context(), `SELECT tx FROM events WHERE type = $1`, typ).Scan(&at); err != nil {
		t.Fatal(err)
	}
	return at
}

// The first connection to a restored cluster raises the base of cursors before
// it writes anything: what was handed out before the restore, also what the
// restored database has forgotten, lies before every later event. Nothing ends
// the recovery but the judgement of all.
func TestRestoredCluster(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	before := opened(t, url)
	last := tell(t, before, "node.before")
	if _, err := before.Pool().Exec(t.Context(), `UPDATE cluster_epoch SET system_identifier = 'of the lost cluster'`); err != nil {
		t.Fatal(err)
	}
	after := opened(t, url)
	if first := tell(t, after, "node.after"); first < last+1<<40 {
		t.Errorf("the first event after the restore has tx %d, the last before %d: want 2^40 between", first, last)
	}
	e, err := store.LoadEpoch(t.Context(), after.Pool())
	if err != nil || !e.RecoveryPending || e.Reason != store.RecoveryRestore {
		t.Fatalf("epoch = %+v (%v), want a restore pending", e, err)
	}
	if err := after.EndFailover(t.Context(), e.Number); err != nil {
		t.Fatal(err)
	}
	if done, err := after.Judged(t.Context(), "node_a"); err != nil || done {
		t.Errorf("a judgement of one node ended the recovery after a restore: %v, %v", done, err)
	}
	if err := store.RefuseWhileRecovering(t.Context(), after.Pool()); fleet.ReasonOf(err) != "recovery-pending" {
		t.Errorf("err = %v, want recovery-pending", err)
	}
	if done, err := after.Judged(t.Context(), ""); err != nil || !done {
		t.Errorf("the judgement of all did not end the recovery: %v, %v", done, err)
	}
	again := opened(t, url)
	if next := tell(t, again, "node.again"); next >= last+2<<40 {
		t.Errorf("tx %d: the base rose again although the cluster is the same", next)
	}
}

// A connection gives up a lock and an idle transaction, so that no stuck client
// holds the events' horizon.
func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	s := opened(t, storetest.URL(t))
	for name, want := range map[string]string{"idle_in_transaction_session_timeout": "30s", "lock_timeout": "10s"} {
		var got string
		if err := s.Pool().QueryRow(t.Context(), `SELECT current_setting($1)`, name).Scan(&got); err != nil || got != want {
			t.Errorf("%s = %q (%v), want %s", name, got, err, want)
		}
	}
	given := opened(t, storetest.URL(t)+"?lock_timeout=3s")
	var got string
	if err := given.Pool().QueryRow(t.Context(), `SHOW lock_timeout`).Scan(&got); err != nil || got != "3s" {
		t.Errorf("lock_timeout = %q (%v), want what the URL says", got, err)
	}
}

// While recovery is pending, a machine at rest whose BMC says another power than
// the database is unverified and leaves placement, until compute recover; not
// while a failover may still turn out to have lost nothing, and not under an
// operation.
func TestObservePower(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pending    string
		live       bool
		see        fleet.PowerState
		unverified bool
		recorded   fleet.PowerState
	}{
		"nothing pending":     {see: fleet.PowerOn, recorded: fleet.PowerOn},
		"restore":             {pending: store.RecoveryRestore, see: fleet.PowerOn, unverified: true, recorded: fleet.PowerOn},
		"unknown workflow":    {pending: store.RecoveryUnknown, see: fleet.PowerOn, unverified: true, recorded: fleet.PowerOn},
		"as recorded":         {pending: store.RecoveryRestore, see: fleet.PowerOff, recorded: fleet.PowerOff},
		"in between":          {pending: store.RecoveryRestore, see: fleet.PowerUnknown, recorded: fleet.PowerUnknown},
		"under an operation":  {pending: store.RecoveryRestore, live: true, see: fleet.PowerOn, recorded: fleet.PowerOn},
		"failover not judged": {pending: store.RecoveryFailover, see: fleet.PowerOn, recorded: fleet.PowerOff},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOps(t)
			o.addBMC() // recorded off
			if c.pending != "" {
				o.exec(`UPDATE cluster_epoch SET recovery_pending = true, recovery_reason = $1`, c.pending)
			}
			if c.live {
				o.mustBegin("op_1", fleet.VerbPower)
			}
			if err := o.ObservePower(t.Context(), "node_a", c.see, time.Now()); err != nil {
				t.Fatal(err)
			}
			m, err := store.LoadMetal(t.Context(), o.pool, "node_a")
			if err != nil {
				t.Fatal(err)
			}
			if got := slices.Contains(m.NoScheduleReasons, "condition:StateUnverified"); got != c.unverified {
				t.Errorf("out of placement = %v (%v), want %v", got, m.NoScheduleReasons, c.unverified)
			}
			var power string
			if err := o.pool.QueryRow(t.Context(), `SELECT power_state FROM bmcs`).Scan(&power); err != nil || power != string(c.recorded) {
				t.Errorf("recorded %s (%v), want %s", power, err, c.recorded)
			}
			if !c.unverified {
				return
			}
			d, err := o.LoadDisagreements(t.Context())
			if err != nil || len(d.Unverified) != 1 || !strings.Contains(d.Unverified[0].Why, "on") {
				t.Errorf("disagreements = %+v (%v), want the node and why", d, err)
			}
			if done, err := o.Judged(t.Context(), ""); err != nil || !done {
				t.Fatalf("judged: %v, %v", done, err)
			}
			if m, err = store.LoadMetal(t.Context(), o.pool, "node_a"); err != nil || len(m.NoScheduleReasons) != 0 {
				t.Errorf("reasons after the judgement = %v (%v), want none", m.NoScheduleReasons, err)
			}
		})
	}
}

// A node that is unverified for another reason keeps a judgement of one node
// from ending the recovery.
func TestJudgedByNode(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.addBMC()
	if _, err := o.RaiseAlarm(t.Context(), store.UnknownWorkflow{WorkflowID: "op/op_9", Type: "Deploy", NodeID: "node_gone"}); err != nil {
		t.Fatal(err)
	}
	if err := o.ObservePower(t.Context(), "node_a", fleet.PowerOn, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		node string
		done bool
	}{{"node_gone", false}, {"node_a", true}} {
		if done, err := o.Judged(t.Context(), step.node); err != nil || done != step.done {
			t.Errorf("recovery over after the judgement of %s: %s (%v), want %v", step.node, strconv.FormatBool(done), err, step.done)
		}
	}
}

// A failover that lost the end of an operation does not end by itself.
func TestFailoverThatLost(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_1", fleet.VerbDeploy)
	o.exec(`UPDATE cluster_epoch SET timeline = timeline - 1`)
	e, err := o.CheckEpoch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := o.RaiseLost(t.Context(), "op_1"); err != nil {
		t.Fatal(err)
	}
	if err := o.EndFailover(t.Context(), e.Number); err != nil {
		t.Fatal(err)
	}
	d, err := o.LoadDisagreements(t.Context())
	if err != nil || d.Epoch.Reason != store.RecoveryLost || len(d.Unverified) != 1 || d.Held != 1 {
		t.Fatalf("disagreements = %+v (%v), want the node unverified and its row held", d, err)
	}
	if done, err := o.Judged(t.Context(), "node_a"); err != nil || !done {
		t.Errorf("judged: %v, %v", done, err)
	}
}
