package store_test

import (
	"testing"
	"time"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// An operation's end is expected by what its steps took on the same hardware
// model, five times at least each; how much is done is counted in steps, never
// by a clock.
func TestExpectedEnd(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_1", fleet.VerbDeploy)
	o.exec(`UPDATE operations SET state = 'running', hardware_model = 'X1'`)
	begun := fleet.At(time.Now().Add(-10 * time.Second))
	o.exec(`UPDATE operations SET steps = $1`, []fleet.Step{{Name: "a", State: fleet.StepDone}, {Name: "b", State: fleet.StepRunning, StartedAt: &begun},
		{Name: "c", State: fleet.StepPending}})
	sample := func(model, step string, seconds, count int) {
		o.exec(`INSERT INTO step_samples (verb, step, hardware_model, seconds) SELECT 'deploy', $1, $2, $3 FROM generate_series(1, $4)`, step, model, seconds, count)
	}
	load := func() fleet.Operation {
		t.Helper()
		op, err := store.LoadOperation(t.Context(), o.pool, "op_1")
		if err != nil {
			t.Fatal(err)
		}
		return op
	}
	sample("X1", "b", 30, 5)
	sample("X1", "c", 60, 4)
	sample("X2", "c", 60, 9)
	op := load()
	if op.ExpectedEnd != nil || op.Percent == nil || *op.Percent != 33 {
		t.Errorf("expectedEnd = %v, percent = %v; want none under five samples, and 33", op.ExpectedEnd, op.Percent)
	}
	sample("X1", "c", 60, 1)
	if op = load(); op.ExpectedEnd == nil {
		t.Fatal("no expectedEnd with five samples of each step")
	}
	// b has 30 s from its begin, c 60 s after that; by the clock of this moment.
	if left := op.ExpectedEnd.Sub(begun.Time); left < 89*time.Second {
		t.Errorf("expected to end %s after b began, want some 90 s", left)
	}
	o.exec(`UPDATE operations SET state = 'waiting'`)
	if op = load(); op.ExpectedEnd != nil {
		t.Error("an operation that waits is expected to end")
	}
}
