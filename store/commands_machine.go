package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// Delivery is a command as the machine gets it: its arguments hold the secrets.
type Delivery struct {
	ID   string          `json:"id"`
	Type string          `json:"type"`
	Args json.RawMessage `json:"args"`
	// OperationID is whose command it is.
	OperationID string `json:"-"`
	// trace is the W3C traceparent of what sent it, "" when nobody traced it.
	trace string
}

// Traced is a context in the trace of what sent the command.
func (d Delivery) Traced(ctx context.Context) context.Context { return inTrace(ctx, d.trace) }

// Owner is whose commands are meant: a machine's on one boot, or a joined
// node's.
type Owner struct{ where, id string }

// OfBoot are the commands of the machine on a boot.
func OfBoot(bootID string) Owner { return Owner{`boot_id = $1`, bootID} }

// OfNode are the commands of the agent of a joined node.
func OfNode(nodeID string) Owner { return Owner{`node_id = $1 AND boot_id IS NULL`, nodeID} }

// NextCommand takes the oldest open command of an owner, nil without one. One
// that was delivered and not answered is delivered again: the machine knows by
// its id whether it ran.
func (s *Store) NextCommand(ctx context.Context, o Owner) (*Delivery, error) {
	var d Delivery
	var secrets []byte
	err := s.pool.QueryRow(ctx, `UPDATE commands SET state = 'delivered', delivered_at = coalesce(delivered_at, now()), progress_at = coalesce(progress_at, now())
		WHERE id = (SELECT id FROM commands WHERE `+o.where+` AND state IN ('pending', 'delivered') AND expires_at > now()
		            ORDER BY created_at, id LIMIT 1 FOR UPDATE)
		AND state IN ('pending', 'delivered') RETURNING id, type, args, secrets, coalesce(operation_id, ''), coalesce(trace, '')`, o.id).
		Scan(&d.ID, &d.Type, &d.Args, &secrets, &d.OperationID, &d.trace)
	if isNoRows(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("take the next command of a machine: %w", err)
	}
	if secrets != nil {
		if d.Args, err = s.mergeSecrets(d.ID, d.Args, secrets); err != nil {
			return nil, err
		}
	}
	return &d, nil
}

func (s *Store) mergeSecrets(id string, args json.RawMessage, sealed []byte) (json.RawMessage, error) {
	plain, err := s.Seal.Open(sealed, commandSecret(id))
	if err != nil {
		return nil, err
	}
	merged := map[string]json.RawMessage{}
	if err := json.Unmarshal(args, &merged); err != nil {
		return nil, fmt.Errorf("read the arguments of command %s: %w", id, err)
	}
	if err := json.Unmarshal(plain, &merged); err != nil {
		return nil, fmt.Errorf("read the secrets of command %s", id) // the cause could quote them
	}
	b, err := json.Marshal(merged)
	if err != nil {
		return nil, fmt.Errorf("merge the secrets of command %s", id)
	}
	return b, nil
}

// ReasonCommandEnded is the reason of telling of a command that was cancelled,
// expired or has ended: the machine shall stop it.
const ReasonCommandEnded = "command-ended"

func commandEnded() error {
	return fleet.Errorf(fleet.CodeConflict, ReasonCommandEnded, "the command was cancelled, has expired or has ended; stop it")
}

// CommandProgress records how far a machine has come with a command. A command
// that is not open any more is CONFLICT, reason command-ended.
func (s *Store) CommandProgress(ctx context.Context, o Owner, commandID string, percent *int, detail string) error {
	tag, err := s.pool.Exec(ctx, `UPDATE commands SET percent = coalesce($3, percent), detail = NULLIF($4, ''), progress_at = now(), delivered_at = coalesce(delivered_at, now()), state = 'delivered'
		WHERE id = $2 AND `+o.where+` AND state IN ('pending', 'delivered') AND expires_at > now()`, o.id, commandID, percent, detail)
	if err != nil {
		return fmt.Errorf("record the progress of command %s: %w", commandID, err)
	}
	if tag.RowsAffected() == 1 {
		return nil
	}
	return s.whyNotOpen(ctx, o, commandID)
}

// CommandOutcome is what a machine says of a command that ended.
type CommandOutcome struct {
	OK    bool            `json:"ok"`
	Error string          `json:"error,omitempty"`
	Data  json.RawMessage `json:"data,omitempty"`
}

// CommandResult records a command's end and tells the workflow. The same
// result again is no error; a command that was cancelled or expired is CONFLICT,
// reason command-ended.
func (s *Store) CommandResult(ctx context.Context, o Owner, commandID string, r CommandOutcome) error {
	state := CommandFailed
	if r.OK {
		state = CommandSucceeded
	}
	taken := false
	err := s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		taken = false
		var operationID *string
		var trace string
		err := tx.QueryRow(ctx, `UPDATE commands SET state = $3, result = $4, secrets = NULL, ended_at = now(), progress_at = now(),
			delivered_at = coalesce(delivered_at, now()), percent = CASE WHEN $3 = 'succeeded' THEN 100 ELSE percent END
			WHERE id = $2 AND `+o.where+` AND state IN ('pending', 'delivered') AND expires_at > now() RETURNING operation_id, coalesce(trace, '')`,
			o.id, commandID, state, r).Scan(&operationID, &trace)
		if isNoRows(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("record the result of command %s: %w", commandID, err)
		}
		taken = true
		if operationID == nil {
			return nil
		}
		return AddDispatch(inTrace(ctx, trace), tx, DispatchIn{Kind: DispatchSignal, OperationID: *operationID, Signal: fleet.SignalCommand,
			Payload: map[string]string{"commandId": commandID}})
	})
	if err != nil {
		return err
	}
	if !taken {
		return s.resultAgain(ctx, o, commandID, state)
	}
	s.Notify()
	return nil
}

// resultAgain accepts a result whose first answer was lost.
func (s *Store) resultAgain(ctx context.Context, o Owner, commandID, state string) error {
	var have string
	err := s.pool.QueryRow(ctx, `SELECT state FROM commands WHERE id = $2 AND `+o.where+``, o.id, commandID).Scan(&have)
	if err != nil {
		return noRows(err, "command", "read command "+commandID)
	}
	if have == state {
		return nil
	}
	return commandEnded()
}

func (s *Store) whyNotOpen(ctx context.Context, o Owner, commandID string) error {
	var there bool
	err := s.pool.QueryRow(ctx, `SELECT true FROM commands WHERE id = $2 AND `+o.where+``, o.id, commandID).Scan(&there)
	if err != nil {
		return noRows(err, "command", "read command "+commandID)
	}
	return commandEnded()
}
