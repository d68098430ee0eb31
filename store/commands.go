package store

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/oklog/ulid/v2"

	"github.com/bettercompute/compute/fleet"
)

// The states of a command.
const (
	CommandPending   = "pending"
	CommandDelivered = "delivered"
	CommandSucceeded = "succeeded"
	CommandFailed    = "failed"
	CommandCancelled = "cancelled"
	CommandExpired   = "expired"
)

// commandsChannel is the NOTIFY channel of commands; its payload is the boot.
const commandsChannel = "compute_commands"

// commandID derives a command's id from its boot and key, so that the primary
// key is what makes the same key the same command.
func commandID(bootID, key string) string {
	sum := sha256.Sum256([]byte(bootID + "\x00" + key))
	return fleet.KindCommand + "_" + strings.ToLower(ulid.ULID(sum[:16]).String())
}

// commandSecret is what a command's secrets are sealed for.
func commandSecret(id string) string { return "command:" + id }

// SendCommand queues a command for the machine of the operation's last boot and
// returns its id. The same key on the same boot is sent once.
func (s *Store) SendCommand(ctx context.Context, operationID string, c fleet.CommandIn) (string, error) {
	secrets, err := s.commandSecrets(ctx, operationID, c.Secrets)
	if err != nil {
		return "", err
	}
	args, err := json.Marshal(c.Args)
	if err != nil {
		return "", fmt.Errorf("write the arguments of command %s: %w", c.Type, err)
	}
	var id, bootID string
	err = s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		err := tx.QueryRow(ctx, `SELECT id FROM boots WHERE operation_id = $1 AND voided_at IS NULL ORDER BY power_on DESC LIMIT 1`, o.ID).Scan(&bootID)
		if err != nil {
			return noRows(err, "armed boot", "look for the boot of operation "+o.ID)
		}
		id = commandID(bootID, c.Key)
		var sealed []byte
		if len(secrets) > 0 {
			plain, err := json.Marshal(secrets)
			if err != nil {
				return fmt.Errorf("write the secrets of command %s: %w", c.Type, err)
			}
			if sealed, err = s.Seal.Seal(plain, commandSecret(id)); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, `INSERT INTO commands (id, node_id, operation_id, boot_id, type, args, secrets, expires_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, now() + $8::interval) ON CONFLICT (id) DO NOTHING`,
			id, o.NodeID, o.ID, bootID, c.Type, args, sealed, c.Expires)
		if err != nil {
			return fmt.Errorf("queue command %s of operation %s: %w", c.Type, o.ID, err)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	// A lost wake-up costs the gateway's polling interval, nothing more.
	_, _ = s.pool.Exec(ctx, `SELECT pg_notify($1, $2)`, commandsChannel, bootID)
	return id, nil
}

// commandSecrets opens the operation's secrets that a command's arguments take;
// one that the operation does not carry is left out.
func (s *Store) commandSecrets(ctx context.Context, operationID string, names map[string]string) (map[string]string, error) {
	secrets := map[string]string{}
	for arg, name := range names {
		value, err := s.OperationSecret(ctx, operationID, name)
		if fleet.CodeOf(err) == fleet.CodeNotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		secrets[arg] = value
	}
	return secrets, nil
}

// Command reads a command. One whose time is over without an end is expired.
func (s *Store) Command(ctx context.Context, commandID string) (fleet.Command, error) {
	c := fleet.Command{ID: commandID}
	var detail, failure *string
	err := s.pool.QueryRow(ctx, `SELECT type, CASE WHEN state IN ('pending', 'delivered') AND expires_at <= now() THEN 'expired' ELSE state END,
		percent, detail, progress_at, result->>'error', result->'data' FROM commands WHERE id = $1`, commandID).
		Scan(&c.Type, &c.State, &c.Percent, &detail, &c.ProgressAt, &failure, &c.Data)
	if err != nil {
		return c, noRows(err, "command", "read command "+commandID)
	}
	c.Detail, c.Error = orEmpty(detail), orEmpty(failure)
	return c, nil
}

// CancelCommands cancels the operation's open commands; the machine learns it
// when it next tells of its progress.
func (s *Store) CancelCommands(ctx context.Context, operationID string) error {
	_, err := s.pool.Exec(ctx, `UPDATE commands SET state = 'cancelled', secrets = NULL, ended_at = now()
		WHERE operation_id = $1 AND state IN ('pending', 'delivered')`, operationID)
	if err != nil {
		return fmt.Errorf("cancel the commands of operation %s: %w", operationID, err)
	}
	return nil
}

// Delivery is a command as the machine gets it: its arguments hold the secrets.
type Delivery struct {
	ID   string          `json:"id"`
	Type string          `json:"type"`
	Args json.RawMessage `json:"args"`
}

// NextCommand takes the oldest open command of a boot, nil without one. One
// that was delivered and not answered is delivered again: the machine knows by
// its id whether it ran.
func (s *Store) NextCommand(ctx context.Context, bootID string) (*Delivery, error) {
	var d Delivery
	var secrets []byte
	err := s.pool.QueryRow(ctx, `UPDATE commands SET state = 'delivered', delivered_at = coalesce(delivered_at, now()), progress_at = coalesce(progress_at, now())
		WHERE id = (SELECT id FROM commands WHERE boot_id = $1 AND state IN ('pending', 'delivered') AND expires_at > now()
		            ORDER BY created_at, id LIMIT 1 FOR UPDATE)
		AND state IN ('pending', 'delivered') RETURNING id, type, args, secrets`, bootID).Scan(&d.ID, &d.Type, &d.Args, &secrets)
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
func (s *Store) CommandProgress(ctx context.Context, bootID, commandID string, percent *int, detail string) error {
	tag, err := s.pool.Exec(ctx, `UPDATE commands SET percent = coalesce($3, percent), detail = NULLIF($4, ''), progress_at = now(), delivered_at = coalesce(delivered_at, now()), state = 'delivered'
		WHERE id = $2 AND boot_id = $1 AND state IN ('pending', 'delivered') AND expires_at > now()`, bootID, commandID, percent, detail)
	if err != nil {
		return fmt.Errorf("record the progress of command %s: %w", commandID, err)
	}
	if tag.RowsAffected() == 1 {
		return nil
	}
	return s.whyNotOpen(ctx, bootID, commandID)
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
func (s *Store) CommandResult(ctx context.Context, bootID, commandID string, r CommandOutcome) error {
	state := CommandFailed
	if r.OK {
		state = CommandSucceeded
	}
	taken := false
	err := s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		taken = false
		var operationID *string
		err := tx.QueryRow(ctx, `UPDATE commands SET state = $3, result = $4, secrets = NULL, ended_at = now(), progress_at = now(),
			delivered_at = coalesce(delivered_at, now()), percent = CASE WHEN $3 = 'succeeded' THEN 100 ELSE percent END
			WHERE id = $2 AND boot_id = $1 AND state IN ('pending', 'delivered') AND expires_at > now() RETURNING operation_id`,
			bootID, commandID, state, r).Scan(&operationID)
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
		return AddDispatch(ctx, tx, DispatchIn{Kind: DispatchSignal, OperationID: *operationID, Signal: fleet.SignalCommand,
			Payload: map[string]string{"commandId": commandID}})
	})
	if err != nil {
		return err
	}
	if !taken {
		return s.resultAgain(ctx, bootID, commandID, state)
	}
	s.Notify()
	return nil
}

// resultAgain accepts a result whose first answer was lost.
func (s *Store) resultAgain(ctx context.Context, bootID, commandID, state string) error {
	var have string
	err := s.pool.QueryRow(ctx, `SELECT state FROM commands WHERE id = $2 AND boot_id = $1`, bootID, commandID).Scan(&have)
	if err != nil {
		return noRows(err, "command", "read command "+commandID)
	}
	if have == state {
		return nil
	}
	return commandEnded()
}

func (s *Store) whyNotOpen(ctx context.Context, bootID, commandID string) error {
	var there bool
	err := s.pool.QueryRow(ctx, `SELECT true FROM commands WHERE id = $2 AND boot_id = $1`, bootID, commandID).Scan(&there)
	if err != nil {
		return noRows(err, "command", "read command "+commandID)
	}
	return commandEnded()
}

// BootSession is a machine that called in.
type BootSession struct{ BootID, NodeID, OperationID string }

// MachineSession finds the machine of a session and notes that it was heard of.
// A session of an ended boot, or none, is UNAUTHENTICATED.
func (s *Store) MachineSession(ctx context.Context, session string) (BootSession, error) {
	var b BootSession
	err := s.pool.QueryRow(ctx, `UPDATE boots SET last_seen_at = now() WHERE session_hash = $1 AND voided_at IS NULL
		RETURNING id, node_id, operation_id`, hashSecret(session)).Scan(&b.BootID, &b.NodeID, &b.OperationID)
	if isNoRows(err) {
		return b, fleet.Errorf(fleet.CodeUnauthenticated, "session-ended", "no such session, or its boot ended")
	}
	if err != nil {
		return b, fmt.Errorf("look up a machine's session: %w", err)
	}
	return b, nil
}

// BootsWithCommands returns those of the boots that have a command to fetch: one
// statement for all machines that wait at a gateway.
func (s *Store) BootsWithCommands(ctx context.Context, bootIDs []string) ([]string, error) {
	rows, err := s.pool.Query(ctx, `SELECT DISTINCT boot_id FROM commands WHERE boot_id = ANY ($1) AND state = 'pending' AND expires_at > now()
		UNION SELECT id FROM boots WHERE id = ANY ($1) AND voided_at IS NOT NULL`, bootIDs)
	if err != nil {
		return nil, fmt.Errorf("look for commands: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for commands: %w", err)
	}
	return ids, nil
}

// ListenCommands calls woken with the boot of each new command until the
// context ends or the connection breaks, which is an error.
func (s *Store) ListenCommands(ctx context.Context, woken func(bootID string)) error {
	return s.listen(ctx, commandsChannel, woken)
}

// SeenEvery is how often a machine must be heard of to count as there.
func (s *Store) SeenEvery() time.Duration { return s.PresenceWindow() / 3 }
