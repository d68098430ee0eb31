package store

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
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

// commandsChannel is the NOTIFY channel of commands; its payload is the boot or
// the node.
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
	maps.Copy(secrets, c.Sealed)
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
		_, err = tx.Exec(ctx, `INSERT INTO commands (id, node_id, operation_id, boot_id, type, args, secrets, expires_at, trace)
			VALUES ($1, $2, $3, $4, $5, $6, $7, now() + $8::interval, NULLIF($9, '')) ON CONFLICT (id) DO NOTHING`,
			id, o.NodeID, o.ID, bootID, c.Type, args, sealed, c.Expires, traceOf(ctx))
		if err != nil {
			return fmt.Errorf("queue command %s of operation %s: %w", c.Type, o.ID, err)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	s.wakeMachine(ctx, OfBoot(bootID))
	return id, nil
}

// SendNodeCommand queues a command for the agent of the operation's node, which
// fetches it in its session. The same key of the operation is sent once. It
// takes no secrets.
func (s *Store) SendNodeCommand(ctx context.Context, operationID string, c fleet.CommandIn) (string, error) {
	args, err := json.Marshal(c.Args)
	if err != nil {
		return "", fmt.Errorf("write the arguments of command %s: %w", c.Type, err)
	}
	id, nodeID := commandID(operationID, c.Key), ""
	err = s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		nodeID = o.NodeID
		_, err := tx.Exec(ctx, `INSERT INTO commands (id, node_id, operation_id, type, args, expires_at, trace)
			VALUES ($1, $2, $3, $4, $5, now() + $6::interval, NULLIF($7, '')) ON CONFLICT (id) DO NOTHING`, id, o.NodeID, o.ID, c.Type, args, c.Expires, traceOf(ctx))
		return wrapDoing(err, "queue command "+c.Type+" of operation "+o.ID)
	})
	if err != nil {
		return "", err
	}
	s.wakeMachine(ctx, OfNode(nodeID))
	return id, nil
}

// wakeMachine tells the gateways that there is something for a machine. A lost
// wake-up costs their polling interval, nothing more.
func (s *Store) wakeMachine(ctx context.Context, o Owner) {
	_, _ = s.pool.Exec(ctx, `SELECT pg_notify($1, $2)`, commandsChannel, o.id)
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

// LastData is the data of the operation's last command of a type that succeeded,
// nil without one.
func (s *Store) LastData(ctx context.Context, operationID, kind string) (json.RawMessage, error) {
	var data json.RawMessage
	err := s.pool.QueryRow(ctx, `SELECT result->'data' FROM commands WHERE operation_id = $1 AND type = $2 AND state = 'succeeded'
		ORDER BY ended_at DESC LIMIT 1`, operationID, kind).Scan(&data)
	if isNoRows(err) {
		return nil, nil
	}
	return data, wrapDoing(err, "look for what "+kind+" of operation "+operationID+" came to")
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

// ListenCommands calls woken with the boot or node of each new command until the
// context ends or the connection breaks, which is an error.
func (s *Store) ListenCommands(ctx context.Context, woken func(owner string)) error {
	return s.listen(ctx, commandsChannel, woken)
}

// SeenEvery is how often a machine must be heard of to count as there.
func (s *Store) SeenEvery() time.Duration { return s.PresenceWindow() / 3 }
