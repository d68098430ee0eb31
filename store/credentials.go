package store

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// bmcSecret is what a BMC's password is sealed for; the staged one shares it,
// since it takes the other's place.
func bmcSecret(nodeID string) string { return "bmc:" + nodeID + ":password" }

// SealBMCPassword seals a BMC's password for storing.
func (s *Store) SealBMCPassword(nodeID, password string) ([]byte, error) {
	return s.Seal.Seal([]byte(password), bmcSecret(nodeID))
}

// OpenBMCPassword opens what SealBMCPassword sealed; nil is "".
func (s *Store) OpenBMCPassword(nodeID string, sealed []byte) (string, error) {
	if sealed == nil {
		return "", nil
	}
	b, err := s.Seal.Open(sealed, bmcSecret(nodeID))
	return string(b), err
}

// rotatedPasswordBytes make a password of 20 characters, which is the most that
// IPMI takes.
const rotatedPasswordBytes = 15

// StageCredentials seals a new password beside the present one before it is
// set on the BMC: the operation's own, or a generated one. One that the
// operation staged already stays, so that a repeated step proves the same
// password.
func (s *Store) StageCredentials(ctx context.Context, operationID string) error {
	password, err := s.OperationSecret(ctx, operationID, fleet.SecretPassword)
	if fleet.CodeOf(err) == fleet.CodeNotFound {
		b := make([]byte, rotatedPasswordBytes)
		if _, err := rand.Read(b); err != nil {
			return fmt.Errorf("make a password: %w", err)
		}
		password, err = base64.RawURLEncoding.EncodeToString(b), nil
	}
	if err != nil {
		return err
	}
	return s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		sealed, err := s.SealBMCPassword(o.NodeID, password)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE bmcs SET staged_password = CASE WHEN staged_op = $3 THEN coalesce(staged_password, $2) ELSE $2 END, staged_op = $3
			WHERE node_id = $1`, o.NodeID, sealed, o.ID); err != nil {
			return fmt.Errorf("stage a password for the BMC of node %s: %w", o.NodeID, err)
		}
		return nil
	})
}

// StagedPassword opens the staged password of the operation's node.
func (s *Store) StagedPassword(ctx context.Context, operationID string) (string, error) {
	var nodeID string
	var sealed []byte
	err := s.pool.QueryRow(ctx, `SELECT b.node_id, b.staged_password FROM operations o JOIN bmcs b ON b.node_id = o.node_id WHERE o.id = $1 AND b.staged_op = o.id AND b.staged_password IS NOT NULL`,
		operationID).Scan(&nodeID, &sealed)
	if err != nil {
		return "", noRows(err, "staged password", "read the staged password of operation "+operationID)
	}
	return s.OpenBMCPassword(nodeID, sealed)
}

// StoreCredentials makes the password that the operation staged, else the one
// that it carries, the recorded one, with the user name of the operation's input, and
// forgets the staged one and the BMC's session.
func (s *Store) StoreCredentials(ctx context.Context, operationID string) error {
	own, err := s.OperationSecret(ctx, operationID, fleet.SecretPassword)
	if err != nil && fleet.CodeOf(err) != fleet.CodeNotFound {
		return err
	}
	return s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		var sealed []byte
		if own != "" {
			var err error
			if sealed, err = s.SealBMCPassword(o.NodeID, own); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, `UPDATE bmcs SET password = coalesce(CASE WHEN staged_op = $3 THEN staged_password END, $2, password), staged_password = NULL, staged_op = NULL,
			next_check_at = now(), check_failures = 0,
			username = coalesce((SELECT input->>'username' FROM operations WHERE id = $3), username) WHERE node_id = $1`, o.NodeID, sealed, o.ID)
		if err != nil {
			return fmt.Errorf("record the credentials of the BMC of node %s: %w", o.NodeID, err)
		}
		if _, err := tx.Exec(ctx, `DELETE FROM bmc_sessions WHERE node_id = $1`, o.NodeID); err != nil {
			return fmt.Errorf("forget the BMC session of node %s: %w", o.NodeID, err)
		}
		return nil
	})
}

// OperationUsername is the user name that an operation carries, or the other
// one.
func (s *Store) OperationUsername(ctx context.Context, operationID, other string) (string, error) {
	var name *string
	err := s.pool.QueryRow(ctx, `SELECT input->>'username' FROM operations WHERE id = $1`, operationID).Scan(&name)
	if err != nil {
		return "", noRows(err, "operation", "read the user name of operation "+operationID)
	}
	if name == nil {
		return other, nil
	}
	return *name, nil
}
