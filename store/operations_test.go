package store_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/seal"
	"github.com/bettercompute/compute/store/storetest"
)

// ops is a store with one node on which operations are begun.
type ops struct {
	*store.Store
	t    *testing.T
	pool *pgxpool.Pool
}

func newOps(t *testing.T) *ops {
	t.Helper()
	pool := storetest.New(t)
	keys, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	o := &ops{Store: store.New(pool, store.Options{Seal: keys, BootKey: make([]byte, 32)}), t: t, pool: pool}
	addNode(t, pool, "node_a")
	return o
}

// begin records an operation as a verb does, under the node's lock.
func (o *ops) begin(id string, verb fleet.Verb) error {
	o.t.Helper()
	return o.InTx(o.t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT FROM nodes WHERE id = 'node_a' FOR UPDATE`); err != nil {
			return err
		}
		if fleet.EndsParked(verb) {
			if err := store.EndParked(ctx, tx, "node_a", id); err != nil {
				return err
			}
		}
		if to, moves := fleet.MovesTo[verb]; moves {
			if _, err := store.MoveNode(ctx, tx, "node_a", to); err != nil {
				return err
			}
		}
		return o.InsertOperation(ctx, tx, store.NewOperation{ID: id, NodeID: "node_a", TenantID: "acme", Verb: verb, Lane: store.LaneProvision,
			Input: map[string]any{}, Secrets: map[string]string{fleet.SecretPassword: "hunter2"}, RequestedBy: "dev:owner"})
	})
}

func (o *ops) mustBegin(id string, verb fleet.Verb) {
	o.t.Helper()
	if err := o.begin(id, verb); err != nil {
		o.t.Fatal(err)
	}
}

// state reads the node's state and version and the operation's state and
// whether it is parked.
func (o *ops) state(id string) (node fleet.ProvisionState, version int64, op fleet.OperationState, parked bool) {
	o.t.Helper()
	err := o.pool.QueryRow(o.t.Context(), `SELECT n.provision_state, n.version, o.state, o.parked FROM operations o JOIN nodes n ON n.id = o.node_id WHERE o.id = $1`,
		id).Scan(&node, &version, &op, &parked)
	if err != nil {
		o.t.Fatal(err)
	}
	return node, version, op, parked
}

func (o *ops) events() int {
	o.t.Helper()
	var n int
	if err := o.pool.QueryRow(o.t.Context(), `SELECT count(*) FROM events`).Scan(&n); err != nil {
		o.t.Fatal(err)
	}
	return n
}

// A worker that stood still while another took its workflow over starts no step
// that the operation has passed; one that goes back in its plan does so in a
// round of its own.
func TestPassedStep(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_1", fleet.VerbDeploy)
	if err := o.PlanSteps(t.Context(), "op_1", []string{"a", "b", "c"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		step     string
		round    int
		attempts [3]int // of a, b and c afterwards
	}{
		{"a", 0, [3]int{1, 0, 0}}, {"c", 0, [3]int{1, 0, 1}},
		{"c", 0, [3]int{1, 0, 2}}, // its answer was lost
		{"a", 0, [3]int{1, 0, 2}}, {"b", 0, [3]int{1, 0, 2}},
		{"b", 1, [3]int{1, 1, 2}}, {"c", 0, [3]int{1, 1, 2}}, {"c", 1, [3]int{1, 1, 3}},
	} {
		if _, err := o.StartStep(t.Context(), "op_1", c.step, c.round); err != nil {
			t.Fatal(err)
		}
		w, err := o.LoadWork(t.Context(), "op_1")
		if err != nil {
			t.Fatal(err)
		}
		if got := [3]int{w.Steps[0].Attempts, w.Steps[1].Attempts, w.Steps[2].Attempts}; got != c.attempts {
			t.Errorf("after a start of %s in round %d: %v attempts, want %v", c.step, c.round, got, c.attempts)
		}
	}
}

// A late activity of an operation that another superseded changes nothing.
func TestFence(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_old", fleet.VerbDeploy)
	if err := o.FailOperation(t.Context(), "op_old", fleet.OperationFailure{Step: "switch-on", Code: "timeout", Cause: "stuck", Park: true}); err != nil {
		t.Fatal(err)
	}
	o.mustBegin("op_new", fleet.VerbRelease)
	_, version, _, _ := o.state("op_new")
	events := o.events()
	late := map[string]func() error{
		"start step": func() error { _, err := o.StartStep(t.Context(), "op_old", "switch-on", 0); return err },
		"end step":   func() error { return o.EndStep(t.Context(), "op_old", "switch-on", fleet.StepDone, "") },
		"succeed":    func() error { return o.SucceedOperation(t.Context(), "op_old", fleet.OperationResult{}) },
		"fail":       func() error { return o.FailOperation(t.Context(), "op_old", fleet.OperationFailure{Code: "x"}) },
		"erase owed": func() error { return o.RecordEraseOwed(t.Context(), "op_old") },
		"inventory":  func() error { return o.RecordInventory(t.Context(), "op_old", fleet.Inventory{Serial: "S"}) },
		"identity":   func() error { return o.RevokeIdentity(t.Context(), "op_old", "late") },
	}
	for name, act := range late {
		if err := act(); fleet.ReasonOf(err) != store.ReasonSuperseded {
			t.Errorf("%s: err = %v, want superseded", name, err)
		}
	}
	node, after, state, _ := o.state("op_new")
	if node != fleet.Releasing || after != version || state != fleet.OpPending || o.events() != events {
		t.Errorf("after late activities: node %s version %d (was %d), operation %s, %d events (were %d)", node, after, version, state, o.events(), events)
	}
	if _, _, state, parked := o.state("op_old"); state != fleet.OpAborted || parked {
		t.Errorf("superseded operation is %s, parked %v; want aborted and not parked", state, parked)
	}
}

// A node has one live operation a lane, however many begin at once.
func TestOneLiveOperation(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_1", fleet.VerbPower)
	if err := o.begin("op_2", fleet.VerbPower); fleet.CodeOf(err) != fleet.CodeConflict || fleet.ReasonOf(err) != "operation-in-progress" {
		t.Errorf("second live operation: err = %v, want CONFLICT operation-in-progress", err)
	}
}

// Power leaves a parked operation parked and gives the fence back to it when it
// ends; retry restores the state and its transaction is made once.
func TestMendAndRetry(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_deploy", fleet.VerbDeploy)
	if err := o.FailOperation(t.Context(), "op_deploy", fleet.OperationFailure{Step: "switch-on", Code: "timeout", Cause: "stuck", Park: true}); err != nil {
		t.Fatal(err)
	}
	if node, _, state, parked := o.state("op_deploy"); node != fleet.Failed || state != fleet.OpFailed || !parked {
		t.Fatalf("after the failure: node %s, operation %s, parked %v", node, state, parked)
	}
	o.mustBegin("op_power", fleet.VerbPower)
	if refused, err := o.RetryOperation(t.Context(), "op_deploy", "temporal"); err != nil || refused == "" {
		t.Errorf("retry while power is live: refused %q, err %v; want a refusal", refused, err)
	}
	if err := o.FailOperation(t.Context(), "op_power", fleet.OperationFailure{Code: "timeout", Park: true}); err != nil {
		t.Fatal(err)
	}
	if _, _, state, parked := o.state("op_power"); state != fleet.OpFailed || parked {
		t.Errorf("failed power is %s, parked %v; want ended", state, parked)
	}
	for range 2 {
		if refused, err := o.RetryOperation(t.Context(), "op_deploy", "temporal"); err != nil || refused != "" {
			t.Fatalf("retry: refused %q, err %v", refused, err)
		}
	}
	if node, _, state, parked := o.state("op_deploy"); node != fleet.Deploying || state != fleet.OpPending || parked {
		t.Errorf("after the retry: node %s, operation %s, parked %v", node, state, parked)
	}
}

// A parked operation can be aborted while a mending verb holds the node, whose
// fence stays.
func TestAbortParkedBesidePower(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_deploy", fleet.VerbDeploy)
	if err := o.FailOperation(t.Context(), "op_deploy", fleet.OperationFailure{Code: "timeout", Park: true}); err != nil {
		t.Fatal(err)
	}
	o.mustBegin("op_power", fleet.VerbPower)
	if err := o.AbortOperation(t.Context(), "op_deploy", "by temporal", nil); err != nil {
		t.Fatal(err)
	}
	if err := o.SucceedOperation(t.Context(), "op_power", fleet.OperationResult{}); err != nil {
		t.Errorf("power lost its fence: %v", err)
	}
	if node, _, state, _ := o.state("op_deploy"); node != fleet.Failed || state != fleet.OpAborted {
		t.Errorf("node %s, operation %s; want failed and aborted", node, state)
	}
}

// What a workflow that Temporal lost leaves is ended as its verb fails, once,
// and nothing stays parked; secrets go with it.
func TestEndLost(t *testing.T) {
	t.Parallel()
	for name, park := range map[string]bool{"live": false, "parked": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOps(t)
			o.mustBegin("op_1", fleet.VerbDeploy)
			deliverAll(t, o)
			if park {
				if err := o.FailOperation(t.Context(), "op_1", fleet.OperationFailure{Code: "timeout", Park: true}); err != nil {
					t.Fatal(err)
				}
			}
			for _, want := range []bool{true, false} {
				if ended, err := o.EndLost(t.Context(), "op_1", "workflow-closed", "terminated"); err != nil || ended != want {
					t.Fatalf("ended = %v, err %v; want %v", ended, err, want)
				}
			}
			if node, _, state, parked := o.state("op_1"); node != fleet.Failed || state != fleet.OpFailed || parked {
				t.Errorf("node %s, operation %s, parked %v", node, state, parked)
			}
			if _, err := o.OperationSecret(t.Context(), "op_1", fleet.SecretPassword); fleet.CodeOf(err) != fleet.CodeNotFound {
				t.Errorf("the secret outlived its operation: %v", err)
			}
			o.mustBegin("op_2", fleet.VerbRelease) // the node is free
		})
	}
}

// An operation that still has its start to be delivered is not lost.
func TestQueuedIsNotLost(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_1", fleet.VerbDeploy)
	if ended, err := o.EndLost(t.Context(), "op_1", "outcome-unknown", "unknown"); err != nil || ended {
		t.Errorf("ended = %v, err %v; want neither", ended, err)
	}
}

func deliverAll(t *testing.T, o *ops) {
	t.Helper()
	for {
		n, err := o.Deliver(t.Context(), 10, func(context.Context, store.Dispatch) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return
		}
	}
}

// Rows of one workflow are delivered one by one in order; one that failed holds
// back those after it and is delivered again.
func TestDispatchOrder(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_1", fleet.VerbDeploy)
	err := o.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		return store.AddDispatch(ctx, tx,
			store.DispatchIn{Kind: store.DispatchSignal, OperationID: "op_1", Signal: "a"},
			store.DispatchIn{Kind: store.DispatchSignal, OperationID: "op_1", Signal: "b"})
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	down := errors.New("Temporal is away")
	round := func(fail error) int {
		n, err := o.Deliver(t.Context(), 10, func(_ context.Context, d store.Dispatch) error {
			if fail == nil {
				got = append(got, d.Kind+d.Signal)
			}
			return fail
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := round(down); n != 1 {
		t.Errorf("claimed %d rows of one workflow at once, want 1", n)
	}
	if n := round(nil); n != 0 {
		t.Errorf("claimed %d rows right after a failure, want 0: none may pass the one that failed", n)
	}
	if _, err := o.pool.Exec(t.Context(), `UPDATE dispatch SET not_before = now()`); err != nil {
		t.Fatal(err)
	}
	for round(nil) > 0 {
	}
	want := []string{"start", "signala", "signalb"}
	if len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("delivered %v, want %v", got, want)
	}
}

// While a dispatcher holds a claim no other gets the row, an abort cannot take
// the start back, and a dispatcher that dies leaves the row to the next.
func TestDispatchClaim(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_1", fleet.VerbDeploy)
	ctx, die := context.WithCancel(t.Context())
	_, err := o.Deliver(ctx, 10, func(context.Context, store.Dispatch) error {
		if n, err := o.Deliver(t.Context(), 10, func(context.Context, store.Dispatch) error { return nil }); n != 0 || err != nil {
			t.Errorf("another dispatcher claimed %d rows (%v), want none", n, err)
		}
		o.abort("op_1")
		if _, _, state, _ := o.state("op_1"); state != fleet.OpPending {
			t.Errorf("an operation whose start is being delivered is %s after abort, want pending with a signal", state)
		}
		die()
		return nil
	})
	if err == nil {
		t.Error("the dispatcher that died settled its rows")
	}
	var kinds []string
	patience, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	for len(kinds) < 2 && patience.Err() == nil { // the claim goes with its connection, which ends by itself
		_, err := o.Deliver(t.Context(), 10, func(_ context.Context, d store.Dispatch) error { kinds = append(kinds, d.Kind+d.Signal); return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(kinds) != 2 || kinds[0] != "start" || kinds[1] != "signalabort" {
		t.Errorf("delivered %v, want the start again and then the abort", kinds)
	}
}

// abort does what metal/abort does.
func (o *ops) abort(id string) {
	o.t.Helper()
	err := o.InTx(o.t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := o.RequestAbort(ctx, tx, "node_a", "dev:owner")
		return err
	})
	if err != nil {
		o.t.Fatalf("abort %s: %v", id, err)
	}
}

// An abort before any dispatcher claimed the start ends the operation at once.
func TestAbortBeforeStart(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_1", fleet.VerbDeploy)
	o.abort("op_1")
	if node, _, state, _ := o.state("op_1"); node != fleet.Failed || state != fleet.OpAborted {
		t.Errorf("node %s, operation %s; want failed and aborted", node, state)
	}
	n, err := o.Deliver(t.Context(), 10, func(context.Context, store.Dispatch) error { return nil })
	if n != 0 || err != nil {
		t.Errorf("%d rows are left to deliver (%v), want none", n, err)
	}
}

// The end of an operation raises the version and tells a provision state only
// when the node enters another: a rescue is in rescue from its start, a release
// comes from releasing to ready.
func TestEndTellsOnlyAChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		verb   fleet.Verb
		raises int64
	}{{fleet.VerbRescue, 0}, {fleet.VerbRelease, 1}} {
		o := newOps(t)
		o.mustBegin("op_one", c.verb)
		_, before, _, _ := o.state("op_one")
		if err := o.SucceedOperation(t.Context(), "op_one", fleet.OperationResult{}); err != nil {
			t.Fatal(err)
		}
		node, after, op, _ := o.state("op_one")
		if node != fleet.EndsIn[c.verb] || op != fleet.OpSucceeded || after != before+c.raises {
			t.Errorf("%s: node %s, operation %s, version %d after %d", c.verb, node, op, after, before)
		}
		var told int
		if err := o.pool.QueryRow(t.Context(), `SELECT count(*) FROM events WHERE starts_with(type, 'node.provision.')`).Scan(&told); err != nil {
			t.Fatal(err)
		}
		if int64(told) != c.raises {
			t.Errorf("%s: %d provision events, want %d", c.verb, told, c.raises)
		}
	}
}
