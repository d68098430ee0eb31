package store_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// enroll begins an enroll that a chain follows.
func (o *ops) enroll(chain ...fleet.Verb) {
	o.t.Helper()
	o.exec(`UPDATE nodes SET provision_state = 'enrolling'`)
	o.must(o.InTx(o.t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		return o.InsertOperation(ctx, tx, store.NewOperation{ID: "op_enroll", NodeID: "node_a", TenantID: "acme", Verb: fleet.VerbEnroll, Lane: store.LaneProvision,
			Input: map[string]any{}, Chain: chain, RequestedBy: "dev:owner", Reason: "new rack"})
	}))
	_, err := o.StartStep(o.t.Context(), "op_enroll", fleet.StepIdentify, 0)
	o.must(err)
}

// next reads what follows an operation.
func (o *ops) next(id string) (next string, verb fleet.Verb, chain []string, returnTo, by string) {
	o.t.Helper()
	err := o.pool.QueryRow(o.t.Context(), `SELECT coalesce(a.next_id, ''), coalesce(b.verb, ''), coalesce(b.chain, '{}'), coalesce(b.return_to, ''), coalesce(b.requested_by, '')
		FROM operations a LEFT JOIN operations b ON b.id = a.next_id WHERE a.id = $1`, id).Scan(&next, &verb, &chain, &returnTo, &by)
	o.must(err)
	return next, verb, chain, returnTo, by
}

// The transaction that ends one operation of a chain well writes the next, which
// holds the node, is linked to the one before and is the same person's.
func TestChain(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.enroll(fleet.VerbInspect, fleet.VerbCommission)
	o.must(o.SucceedOperation(t.Context(), "op_enroll", fleet.OperationResult{}))
	inspect, verb, chain, returnTo, by := o.next("op_enroll")
	if verb != fleet.VerbInspect || strings.Join(chain, " ") != "commission" || returnTo != "enrolling" || by != "dev:owner" {
		t.Fatalf("enroll is followed by %s, then %v, back to %q, by %s", verb, chain, returnTo, by)
	}
	s, err := store.LoadSituation(t.Context(), o.pool, "node_a")
	if err != nil || s.State != fleet.Inspecting || s.Live == nil || s.Live.ID != inspect {
		t.Fatalf("situation %+v, %v", s, err)
	}
	o.must(o.SucceedOperation(t.Context(), inspect, fleet.OperationResult{}))
	commission, verb, chain, _, _ := o.next(inspect)
	if verb != fleet.VerbCommission || len(chain) != 0 {
		t.Fatalf("inspect is followed by %s, then %v", verb, chain)
	}
	o.must(o.FailOperation(t.Context(), commission, fleet.OperationFailure{Step: fleet.StepSwitchOff, Code: "refused", Park: true}))
	if node, _, op, parked := o.state(commission); node != fleet.Failed || op != fleet.OpFailed || !parked {
		t.Errorf("the failed link: node %s, %s, parked %v", node, op, parked)
	}
}

// A chain ends after enroll where the machine may be in use, and says so; after a
// failure nothing follows.
func TestChainEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(o *ops) error{
		"maybe in use": func(o *ops) error {
			if err := o.RecordMaybeInUse(o.t.Context(), "op_enroll", true); err != nil {
				return err
			}
			return o.SucceedOperation(o.t.Context(), "op_enroll", fleet.OperationResult{})
		},
		"told to": func(o *ops) error {
			return o.SucceedOperation(o.t.Context(), "op_enroll", fleet.OperationResult{EndChain: true})
		},
		"failed": func(o *ops) error {
			return o.FailOperation(o.t.Context(), "op_enroll", fleet.OperationFailure{Step: fleet.StepIdentify, Code: "unreachable", Park: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOps(t)
			o.enroll(fleet.VerbInspect)
			o.must(end(o))
			if next, verb, _, _, _ := o.next("op_enroll"); next != "" {
				t.Errorf("%s follows (%s)", verb, next)
			}
			s, err := store.LoadSituation(t.Context(), o.pool, "node_a")
			if err != nil || s.Live != nil || s.State != fleet.Enrolling && s.FailedFrom != fleet.Enrolling {
				t.Errorf("situation %+v, %v", s, err)
			}
			if name != "maybe in use" {
				return
			}
			w, err := o.LoadWork(t.Context(), "op_enroll")
			if err != nil || len(w.Steps) == 0 || !strings.Contains(w.Steps[0].Detail, "inUse: false") {
				t.Errorf("its last step says %+v, %v", w.Steps, err)
			}
		})
	}
}

// A BMC that was not proved to be an adopted host's is not recorded; one that was
// stays, and the host is guarded.
func TestManageRecordsOnlyTheProved(t *testing.T) {
	t.Parallel()
	for name, proved := range map[string]bool{"proved": true, "not proved": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOps(t)
			o.exec(`UPDATE nodes SET provision_state = 'adopted'`)
			o.addBMC()
			o.mustBegin("op_1", fleet.VerbManage)
			if proved {
				o.must(o.SucceedOperation(t.Context(), "op_1", fleet.OperationResult{}))
			} else {
				o.must(o.FailOperation(t.Context(), "op_1", fleet.OperationFailure{Step: fleet.StepProveBMC, Code: "no-proof", Park: true}))
			}
			s, err := store.LoadSituation(t.Context(), o.pool, "node_a")
			if err != nil || s.State != fleet.Adopted || s.Managed != proved || s.Guarded != proved || s.Live != nil || s.Parked != nil {
				t.Errorf("situation %+v, %v", s, err)
			}
		})
	}
}

// What an operation proved or staged becomes the BMC's recorded password, with
// its user name; what another operation staged does not.
func TestStoreCredentials(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  func(o *ops)
		want string
	}{
		"its own":           {func(*ops) {}, "hunter2"},
		"staged by it":      {func(o *ops) { o.must(o.StageCredentials(o.t.Context(), "op_1")) }, "hunter2"},
		"staged by another": {func(o *ops) { o.exec(`UPDATE bmcs SET staged_password = 'x', staged_op = 'op_0'`) }, "hunter2"},
		"generated and staged": {func(o *ops) {
			o.exec(`DELETE FROM operation_secrets`)
			o.must(o.StageCredentials(o.t.Context(), "op_1"))
		}, ""},
		"nothing of its own left": {func(o *ops) { o.exec(`DELETE FROM operation_secrets`) }, "old"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOps(t)
			o.addBMC()
			sealed, err := o.SealBMCPassword("node_a", "old")
			o.must(err)
			o.exec(`UPDATE bmcs SET password = $1, check_failures = 3, next_check_at = now() + interval '1 hour'`, sealed)
			_, err = o.KeepBMCSession(t.Context(), "node_a", "/s/1", "token")
			o.must(err)
			o.mustBegin("op_1", fleet.VerbSetCredentials)
			o.exec(`UPDATE operations SET input = '{"username": "ann"}'`)
			c.set(o)
			o.must(o.StoreCredentials(t.Context(), "op_1"))
			a, err := o.LoadBMCAccess(t.Context(), "node_a")
			o.must(err)
			got, err := o.OpenBMCPassword("node_a", a.Password)
			if err != nil || c.want != "" && got != c.want || c.want == "" && (got == "old" || len(got) != 20) {
				t.Errorf("recorded %q, %v, want %q", got, err, c.want)
			}
			if a.Username != "ann" || a.Staged != nil || a.StagedBy != "" {
				t.Errorf("user %q, staged %v by %q", a.Username, a.Staged, a.StagedBy)
			}
			if uri, _, err := o.LoadBMCSession(t.Context(), "node_a"); err != nil || uri != "" {
				t.Errorf("the session of the old password stays: %q, %v", uri, err)
			}
			if due, err := o.ClaimDueBMCs(t.Context(), "w", 1, time.Minute, 0, time.Minute); err != nil || len(due) != 0 {
				t.Errorf("%d BMCs are looked at beside the operation, %v", len(due), err)
			}
			o.must(o.SucceedOperation(t.Context(), "op_1", fleet.OperationResult{}))
			if due, err := o.ClaimDueBMCs(t.Context(), "w", 1, time.Minute, 0, time.Minute); err != nil || len(due) != 1 || due[0].Failures != 0 {
				t.Errorf("%+v is looked at once the operation ended, %v", due, err)
			}
		})
	}
}

// One process at a time does an exclusive chore, and the next knows how far it
// got.
func TestClaimSweep(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	claim := func(name string, every time.Duration) (bool, time.Time) {
		t.Helper()
		claimed, upto, err := o.ClaimSweep(t.Context(), name, every)
		o.must(err)
		return claimed, upto
	}
	if claimed, upto := claim("a", time.Hour); !claimed || !upto.IsZero() {
		t.Errorf("the first: %v, %s", claimed, upto)
	}
	if claimed, _ := claim("a", time.Hour); claimed {
		t.Error("claimed twice within its time")
	}
	if claimed, _ := claim("b", time.Hour); !claimed {
		t.Error("another chore was not claimed")
	}
	read := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	o.must(o.SweptUpTo(t.Context(), "a", read))
	o.exec(`UPDATE sweeps SET begun = now() - interval '2 hours' WHERE name = 'a'`)
	if claimed, upto := claim("a", time.Hour); !claimed || !upto.Equal(read) {
		t.Errorf("after its time: %v, up to %s, want %s", claimed, upto, read)
	}
}
