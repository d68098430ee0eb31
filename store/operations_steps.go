package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// saveSteps writes an operation's steps.
func saveSteps(ctx context.Context, tx pgx.Tx, operationID string, steps []fleet.Step) error {
	if _, err := tx.Exec(ctx, `UPDATE operations SET steps = $2 WHERE id = $1`, operationID, steps); err != nil {
		return fmt.Errorf("record the steps of operation %s: %w", operationID, err)
	}
	return nil
}

// stepOf returns the step of a name, added at the end when it is new.
func stepOf(steps *[]fleet.Step, name string) *fleet.Step {
	i := slices.IndexFunc(*steps, func(s fleet.Step) bool { return s.Name == name })
	if i < 0 {
		*steps = append(*steps, fleet.Step{Name: name, State: fleet.StepPending})
		i = len(*steps) - 1
	}
	return &(*steps)[i]
}

// PlanSteps records the steps to come as pending; known ones stay.
func (s *Store) PlanSteps(ctx context.Context, operationID string, names []string) error {
	return s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		for _, name := range names {
			stepOf(&o.Steps, name)
		}
		return saveSteps(ctx, tx, o.ID, o.Steps)
	})
}

// at is how far an operation has come: the step that was started last, and the
// round in which it was.
type at struct {
	Step  string `json:"step"`
	Round int    `json:"round"`
}

// atKey is where it is kept in an operation's journal.
const atKey = "at"

// passed says whether the operation has come further than to a step in a round:
// who starts that step is a worker that stood still while another took over.
func (o fencedOp) passed(step string, round int) bool {
	var now at
	if raw, known := o.Journal[atKey]; !known || json.Unmarshal(raw, &now) != nil {
		return false
	}
	index := func(name string) int {
		return slices.IndexFunc(o.Steps, func(s fleet.Step) bool { return s.Name == name })
	}
	return round < now.Round || round == now.Round && index(step) < index(now.Step)
}

// StartStep marks a step running and returns what SaveJournal kept for it. A
// step that the operation has passed stays as it is.
func (s *Store) StartStep(ctx context.Context, operationID, step string, round int) (json.RawMessage, error) {
	var kept json.RawMessage
	err := s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		st := stepOf(&o.Steps, step)
		if o.passed(step, round) {
			return nil
		}
		st.State, st.EndedAt = fleet.StepRunning, nil
		st.Attempts++
		if st.StartedAt == nil {
			now := fleet.At(o.Now)
			st.StartedAt = &now
		}
		kept = o.Journal[step]
		// A step that starts waits for nothing any more.
		_, err := tx.Exec(ctx, `UPDATE operations SET steps = $2, journal = journal || jsonb_build_object($3::text, $4::jsonb),
			state = CASE WHEN state IN ('pending', 'waiting') THEN 'running' ELSE state END,
			waiting_for = CASE WHEN state IN ('pending', 'waiting') THEN NULL ELSE waiting_for END WHERE id = $1`, o.ID, o.Steps, atKey, at{step, round})
		return wrapDoing(err, "start step "+step+" of operation "+o.ID)
	})
	return kept, err
}

// Journal reads what SaveJournal kept for a step, nil if nothing.
func (s *Store) Journal(ctx context.Context, operationID, step string) (json.RawMessage, error) {
	var kept json.RawMessage
	err := s.pool.QueryRow(ctx, `SELECT journal->$2 FROM operations WHERE id = $1`, operationID, step).Scan(&kept)
	if err != nil {
		return nil, noRows(err, "operation", "read the journal of operation "+operationID)
	}
	return kept, nil
}

// SaveEvidence keeps the last BMC exchanges of an act that failed.
func (s *Store) SaveEvidence(ctx context.Context, operationID string, exchanges []fleet.Exchange) error {
	return s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		_, err := tx.Exec(ctx, `UPDATE operations SET evidence = coalesce(evidence, '{}') || jsonb_build_object('exchanges', $2::jsonb) WHERE id = $1`, o.ID, exchanges)
		if err != nil {
			return fmt.Errorf("keep the evidence of operation %s: %w", o.ID, err)
		}
		return nil
	})
}

// SaveJournal keeps an entry for a step before it acts.
func (s *Store) SaveJournal(ctx context.Context, operationID, step string, entry any) error {
	return s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		_, err := tx.Exec(ctx, `UPDATE operations SET journal = journal || jsonb_build_object($2::text, $3::jsonb) WHERE id = $1`, o.ID, step, entry)
		if err != nil {
			return fmt.Errorf("keep the journal of step %s: %w", step, err)
		}
		return nil
	})
}

// NoteStep sets a running step's detail; what is no running step has none.
func (s *Store) NoteStep(ctx context.Context, operationID, step, detail string) error {
	return s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		i := slices.IndexFunc(o.Steps, func(s fleet.Step) bool { return s.Name == step && s.State == fleet.StepRunning })
		if i < 0 || o.Steps[i].Detail == detail {
			return nil
		}
		o.Steps[i].Detail = detail
		return saveSteps(ctx, tx, o.ID, o.Steps)
	})
}

// EndStep marks a step done, skipped or failed; how long a done one took is a
// sample for expectedEnd.
func (s *Store) EndStep(ctx context.Context, operationID, step string, state fleet.StepState, detail string) error {
	return s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		st := stepOf(&o.Steps, step)
		again := st.State == state
		now := fleet.At(o.Now)
		st.State, st.EndedAt = state, &now
		if state == fleet.StepPending { // it is begun again
			st.EndedAt = nil
		}
		if detail != "" {
			st.Detail = detail
		}
		if err := saveSteps(ctx, tx, o.ID, o.Steps); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE operations SET place = CASE place WHEN $3 THEN $4 END WHERE id = $1 AND place IN ($2, $3)`,
			o.ID, PlacePower, placeBoth, PlaceDeploy); err != nil {
			return fmt.Errorf("give back the place of operation %s: %w", o.ID, err)
		}
		if again || state != fleet.StepDone || st.StartedAt == nil || o.HardwareModel == "" {
			return nil
		}
		_, err := tx.Exec(ctx, `INSERT INTO step_samples (verb, step, hardware_model, seconds) VALUES ($1, $2, $3, $4)`,
			string(o.Verb), step, o.HardwareModel, o.Now.Sub(st.StartedAt.Time).Seconds())
		if err != nil {
			return fmt.Errorf("record how long step %s took: %w", step, err)
		}
		return nil
	})
}

// SetWaiting records what the operation waits for; nil makes it running again.
func (s *Store) SetWaiting(ctx context.Context, operationID string, w *fleet.WaitingFor) error {
	return s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		if !o.State.Live() {
			return nil // a parked operation waits for a person, which is said already
		}
		state := fleet.OpRunning
		if w != nil {
			state = fleet.OpWaiting
			if o.WaitingFor != nil && o.WaitingFor.What == w.What {
				w.Since = o.WaitingFor.Since
			} else if w.Since.IsZero() {
				w.Since = fleet.At(o.Now)
			}
		}
		if _, err := tx.Exec(ctx, `UPDATE operations SET state = $2, waiting_for = $3 WHERE id = $1`, o.ID, string(state), w); err != nil {
			return fmt.Errorf("record what operation %s waits for: %w", o.ID, err)
		}
		return nil
	})
}
