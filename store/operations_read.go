package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// operationRow is an operation with what its view needs.
type operationRow struct {
	ID          string
	NodeID      string
	Verb        fleet.Verb
	State       fleet.OperationState
	Steps       []fleet.Step
	WaitingFor  *fleet.WaitingFor
	Failing     *fleet.WaitingFor
	Error       *fleet.OperationError
	LeftBehind  []string
	NextID      *string
	RunID       *string
	RequestedBy string
	CreatedAt   time.Time
	EndedAt     *time.Time
	Expected    map[string]float64
}

type listedRow struct {
	operationRow
	PoolID string
}

// operationColumns are operationRow's. Of a live operation the last 100
// samples of each of its steps on the same hardware model give the median,
// where there are five at least.
const operationColumns = `o.id, o.node_id, o.verb, o.state, o.steps, o.waiting_for, o.failing, o.error, o.left_behind, o.next_id, o.run_id,
	o.requested_by, o.created_at, o.ended_at,
	CASE WHEN o.state IN ('pending', 'running', 'waiting') THEN (
		SELECT jsonb_object_agg(st.name, m.median) FROM (SELECT DISTINCT x->>'name' AS name FROM jsonb_array_elements(o.steps) x) st
		CROSS JOIN LATERAL (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY l.seconds) AS median, count(*) AS samples FROM (
			SELECT seconds FROM step_samples WHERE verb = o.verb AND step = st.name AND hardware_model = coalesce(o.hardware_model, '')
			ORDER BY at DESC LIMIT 100) l) m
		WHERE m.samples >= 5) END AS expected`

func (r *operationRow) view(now time.Time) fleet.Operation {
	o := fleet.Operation{ID: r.ID, NodeID: r.NodeID, Verb: r.Verb, State: r.State, Steps: r.Steps, WaitingFor: r.WaitingFor, Error: r.Error,
		LeftBehind: r.LeftBehind, Next: orEmpty(r.NextID), WorkflowID: fleet.WorkflowID(r.ID), RunID: orEmpty(r.RunID),
		RequestedBy: r.RequestedBy, CreatedAt: fleet.At(r.CreatedAt), EndedAt: fleet.AtPtr(r.EndedAt)}
	if r.Failing != nil && o.State.Live() {
		w := *r.Failing
		if o.WaitingFor != nil {
			w.What += "; besides, it waits for " + o.WaitingFor.Actor + ": " + o.WaitingFor.What
		}
		o.WaitingFor = &w
	}
	if o.Steps == nil {
		o.Steps = []fleet.Step{}
	}
	o.Percent = percentDone(o.Steps)
	if o.State == fleet.OpRunning {
		o.ExpectedEnd = expectedEnd(o.Steps, r.Expected, now)
	}
	return o
}

// percentDone is the share of steps that ended well or were skipped, nil while
// no step is known.
func percentDone(steps []fleet.Step) *int {
	if len(steps) == 0 {
		return nil
	}
	done := 0
	for _, s := range steps {
		if s.State == fleet.StepDone || s.State == fleet.StepSkipped {
			done++
		}
	}
	p := done * 100 / len(steps)
	return &p
}

// expectedEnd adds the medians of the steps to come; nil when one of them has
// too few samples. A running step that took its median already adds nothing.
func expectedEnd(steps []fleet.Step, medians map[string]float64, now time.Time) *fleet.Time {
	end, open := now, false
	for _, s := range steps {
		if s.State != fleet.StepPending && s.State != fleet.StepRunning {
			continue
		}
		seconds, ok := medians[s.Name]
		if !ok {
			return nil
		}
		open = true
		left := time.Duration(seconds * float64(time.Second))
		if s.State == fleet.StepRunning && s.StartedAt != nil {
			left -= now.Sub(s.StartedAt.Time)
		}
		end = end.Add(max(0, left))
	}
	if !open {
		return nil
	}
	at := fleet.At(end)
	return &at
}

// ExpectedSeconds are the medians of what the steps of a verb took on machines of
// a hardware model, by step; one with fewer than five samples is left out.
func ExpectedSeconds(ctx context.Context, q Reader, verb fleet.Verb, model string, steps []string) (map[string]float64, error) {
	rows, err := q.Query(ctx, `SELECT st.name, m.median FROM unnest($3::text[]) AS st (name)
		CROSS JOIN LATERAL (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY l.seconds) AS median, count(*) AS samples FROM (
			SELECT seconds FROM step_samples WHERE verb = $1 AND step = st.name AND hardware_model = $2 ORDER BY at DESC LIMIT 100) l) m
		WHERE m.samples >= 5`, string(verb), model, steps)
	if err != nil {
		return nil, fmt.Errorf("read how long the steps of %s took: %w", verb, err)
	}
	expected := map[string]float64{}
	var step string
	var seconds float64
	_, err = pgx.ForEachRow(rows, []any{&step, &seconds}, func() error { expected[step] = seconds; return nil })
	return expected, wrapDoing(err, "read how long the steps of "+string(verb)+" took")
}

// LoadOperation returns the view of an operation, or NOT_FOUND.
func LoadOperation(ctx context.Context, q Reader, operationID string) (fleet.Operation, error) {
	rows, err := q.Query(ctx, `SELECT `+operationColumns+` FROM operations o WHERE o.id = $1`, operationID)
	if err != nil {
		return fleet.Operation{}, fmt.Errorf("load operation %s: %w", operationID, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[operationRow])
	if err != nil {
		return fleet.Operation{}, noRows(err, "operation", "load operation "+operationID)
	}
	return r.view(time.Now()), nil
}

// LoadEvidence returns what a failed operation left to look at; empty lists
// when it left nothing.
func LoadEvidence(ctx context.Context, q Reader, operationID string) (*fleet.Evidence, error) {
	var e *fleet.Evidence
	if err := q.QueryRow(ctx, `SELECT evidence FROM operations WHERE id = $1`, operationID).Scan(&e); err != nil {
		return nil, noRows(err, "operation", "load the evidence of operation "+operationID)
	}
	if e == nil {
		e = &fleet.Evidence{}
	}
	if e.Exchanges == nil {
		e.Exchanges = []any{}
	}
	if e.BMCLog == nil {
		e.BMCLog = []any{}
	}
	return e, nil
}

// OperationMark is what operations/wait compares: it changes with the
// operation's state and when the operation is retried or parked.
type OperationMark struct {
	State  fleet.OperationState
	Ended  bool
	Parked bool
}

// Settled says that nothing more comes of the operation by itself.
func (m OperationMark) Settled() bool { return m.Ended || m.State == fleet.OpFailed }

// LoadMark reads an operation's mark by its primary key.
func LoadMark(ctx context.Context, q Reader, operationID string) (OperationMark, error) {
	var m OperationMark
	err := q.QueryRow(ctx, `SELECT state, ended_at IS NOT NULL, parked FROM operations WHERE id = $1`, operationID).Scan(&m.State, &m.Ended, &m.Parked)
	if err != nil {
		return m, noRows(err, "operation", "read the state of operation "+operationID)
	}
	return m, nil
}

// LoadMarks reads the marks of operations in one statement.
func LoadMarks(ctx context.Context, q Reader, ids []string) (map[string]OperationMark, error) {
	rows, err := q.Query(ctx, `SELECT id, state, ended_at IS NOT NULL, parked FROM operations WHERE id = ANY($1)`, ids)
	if err != nil {
		return nil, fmt.Errorf("read the states of %d operations: %w", len(ids), err)
	}
	marks := make(map[string]OperationMark, len(ids))
	var id string
	var m OperationMark
	_, err = pgx.ForEachRow(rows, []any{&id, &m.State, &m.Ended, &m.Parked}, func() error {
		marks[id] = m
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the states of %d operations: %w", len(ids), err)
	}
	return marks, nil
}

// OperationFilter selects operations of a list; nil members select all.
type OperationFilter struct {
	TenantID               string
	State                  *string
	SiteID, PoolID, NodeID *string
	// BeforeTime and BeforeID are the last item's of the page before; a zero
	// time begins at the newest.
	BeforeTime time.Time
	BeforeID   string
	Limit      int
}

// ListedOperation is an operation with the pool of its node, by which it is
// decided.
type ListedOperation struct {
	fleet.Operation
	PoolID string
}

// ListOperations returns up to f.Limit+1 operations of the tenant's nodes that
// were not deleted, newest first.
func ListOperations(ctx context.Context, q Reader, f OperationFilter) ([]ListedOperation, error) {
	var c clauses
	c.add("o.tenant_id = %s", f.TenantID)
	c.sql = append(c.sql, "n.deleted_at IS NULL")
	if f.State != nil {
		c.add("o.state = %s", *f.State)
	}
	if f.SiteID != nil {
		c.add("n.site_id = %s", *f.SiteID)
	}
	if f.PoolID != nil {
		c.add("n.pool_id = %s", *f.PoolID)
	}
	if f.NodeID != nil {
		c.add("o.node_id = %s", *f.NodeID)
	}
	if !f.BeforeTime.IsZero() {
		c.sql = append(c.sql, "(o.created_at, o.id) < ("+c.arg(f.BeforeTime)+", "+c.arg(f.BeforeID)+")")
	}
	rows, err := q.Query(ctx, `SELECT `+operationColumns+`, coalesce(n.pool_id, '') FROM operations o JOIN nodes n ON n.id = o.node_id WHERE `+c.where()+
		` ORDER BY o.created_at DESC, o.id DESC LIMIT `+c.arg(f.Limit+1), c.args...)
	if err != nil {
		return nil, fmt.Errorf("list operations of tenant %s: %w", f.TenantID, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[listedRow])
	if err != nil {
		return nil, fmt.Errorf("list operations of tenant %s: %w", f.TenantID, err)
	}
	now := time.Now()
	out := make([]ListedOperation, len(list))
	for i, r := range list {
		out[i] = ListedOperation{Operation: r.view(now), PoolID: r.PoolID}
	}
	return out, nil
}
