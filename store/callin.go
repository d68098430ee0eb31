package store

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// The reasons why a call-in is refused.
const (
	ReasonTokenUsed    = "token-used"
	ReasonWrongMachine = "wrong-machine"
	ReasonBadToken     = "bad-token"
)

// BootConfig is what the boot config of one power-on needs beside the
// gateway's own address.
type BootConfig struct{ ID, Token string }

// BootLive says whether a boot's files are to be served, and notes that they are
// read: NOT_FOUND once it is void, and for one that never was.
func (s *Store) BootLive(ctx context.Context, bootID string) error {
	_, _, err := s.liveBoot(ctx, bootID)
	return err
}

func (s *Store) liveBoot(ctx context.Context, bootID string) (operationID string, number int, err error) {
	err = s.pool.QueryRow(ctx, `UPDATE boots SET read_at = now() WHERE id = $1 AND voided_at IS NULL RETURNING operation_id, power_on`, bootID).Scan(&operationID, &number)
	if isNoRows(err) {
		return "", 0, fleet.NotFound("boot")
	}
	if err != nil {
		return "", 0, fmt.Errorf("look up a boot: %w", err)
	}
	return operationID, number, nil
}

// BootConfig makes the call-in token of a live boot again.
func (s *Store) BootConfig(ctx context.Context, bootID string) (BootConfig, error) {
	operationID, number, err := s.liveBoot(ctx, bootID)
	if err != nil {
		return BootConfig{}, err
	}
	token, err := s.derive(labelToken, operationID, strconv.Itoa(number))
	return BootConfig{ID: bootID, Token: token}, err
}

// CallIn is a machine that shows its one-time token.
type CallIn struct {
	BootID string `json:"bootId"`
	Token  string `json:"token"`
	// Nonce is the machine's own, new at each start of it. It makes a repeated
	// call-in of the same start, whose answer was lost, the same call-in.
	Nonce    string         `json:"nonce,omitempty"`
	Hardware fleet.Hardware `json:"hardware"`
}

// CalledIn is the answer to a call-in.
type CalledIn struct {
	NodeID      string `json:"nodeId"`
	OperationID string `json:"operationId"`
	// Session is the bearer of all that follows.
	Session string `json:"session"`
}

// bootRow is a boot as a call-in meets it.
type bootRow struct {
	NodeID, OperationID string
	TokenHash           []byte
	SessionHash         []byte
	Recorded            fleet.Hardware
}

// UseBootToken takes a machine's one-time token. One statement decides who of
// several uses it. A used one is CONFLICT, reason token-used, and the workflow
// is told that the machine restarted; an ended boot is NOT_FOUND; a machine that
// cannot be the recorded one is ACCESS_DENIED and leaves the token unused.
func (s *Store) UseBootToken(ctx context.Context, c CallIn) (CalledIn, error) {
	b, err := s.readBoot(ctx, c.BootID)
	if err != nil {
		return CalledIn{}, err
	}
	if subtle.ConstantTimeCompare(b.TokenHash, hashSecret(c.Token)) != 1 {
		return CalledIn{}, fleet.Errorf(fleet.CodeAccessDenied, ReasonBadToken, "the token is not this boot's")
	}
	if c.Hardware.Contradicts(b.Recorded) {
		return CalledIn{}, fleet.Errorf(fleet.CodeAccessDenied, ReasonWrongMachine, "this boot is another machine's: neither UUID, serial nor MACs are the recorded ones")
	}
	nonce := c.Nonce
	if nonce == "" {
		nonce = rand.Text()
	}
	session, err := s.derive(labelSession, c.BootID, nonce)
	if err != nil {
		return CalledIn{}, err
	}
	out := CalledIn{NodeID: b.NodeID, OperationID: b.OperationID, Session: session}
	won, err := s.takeToken(ctx, c, b, session)
	if err != nil {
		return CalledIn{}, err
	}
	if !won {
		return out, s.lostToken(ctx, c.BootID, session)
	}
	s.Notify()
	return out, nil
}

func (s *Store) readBoot(ctx context.Context, bootID string) (bootRow, error) {
	var b bootRow
	err := s.pool.QueryRow(ctx, `SELECT b.node_id, b.operation_id, b.token_hash, b.session_hash,
			coalesce(m.identity->>'uuid', ''), coalesce(m.identity->>'serial', ''), coalesce(i.macs, '{}')
		FROM boots b LEFT JOIN bmcs m ON m.node_id = b.node_id LEFT JOIN inventories i ON i.node_id = b.node_id
		WHERE b.id = $1 AND b.voided_at IS NULL`, bootID).
		Scan(&b.NodeID, &b.OperationID, &b.TokenHash, &b.SessionHash, &b.Recorded.UUID, &b.Recorded.Serial, &b.Recorded.MACs)
	if isNoRows(err) {
		return b, fleet.NotFound("boot")
	}
	if err != nil {
		return b, fmt.Errorf("look up a boot: %w", err)
	}
	return b, nil
}

// takeToken is the statement that decides: at most one caller finds the token
// unused.
func (s *Store) takeToken(ctx context.Context, c CallIn, b bootRow, session string) (won bool, err error) {
	err = s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE boots SET used_at = now(), last_seen_at = now(), session_hash = $3
			WHERE id = $1 AND token_hash = $2 AND used_at IS NULL AND voided_at IS NULL`, c.BootID, b.TokenHash, hashSecret(session))
		if err != nil {
			return fmt.Errorf("use the token of a boot of operation %s: %w", b.OperationID, err)
		}
		won = tag.RowsAffected() == 1
		if !won {
			return nil
		}
		return AddDispatch(ctx, tx, DispatchIn{Kind: DispatchSignal, OperationID: b.OperationID, Signal: fleet.SignalCallIn})
	})
	return won, err
}

// lostToken says why a token was not there to be taken: nil when this very
// call-in took it before and its answer was lost, NOT_FOUND when the boot ended
// meanwhile, else token-used.
func (s *Store) lostToken(ctx context.Context, bootID, session string) error {
	b, err := s.readBoot(ctx, bootID)
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare(b.SessionHash, hashSecret(session)) == 1 {
		return nil
	}
	return s.refuseUsed(ctx, bootID, b.OperationID)
}

// refuseUsed answers a token that was used already, and tells the workflow, the
// first time, that the machine restarted by itself.
func (s *Store) refuseUsed(ctx context.Context, bootID, operationID string) error {
	err := s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE boots SET reused_at = now()
			WHERE id = $1 AND used_at IS NOT NULL AND reused_at IS NULL AND voided_at IS NULL`, bootID)
		if err != nil {
			return fmt.Errorf("record the second use of a token of operation %s: %w", operationID, err)
		}
		if tag.RowsAffected() == 0 {
			return nil
		}
		return AddDispatch(ctx, tx, DispatchIn{Kind: DispatchSignal, OperationID: operationID, Signal: fleet.SignalReboot})
	})
	if err != nil {
		return err
	}
	s.Notify()
	return fleet.Errorf(fleet.CodeConflict, ReasonTokenUsed, "this token was used; the control plane gives the machine another one at its next power-on")
}
