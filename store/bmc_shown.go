package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// CertificateChanged records that a BMC shows another certificate than the
// pinned one: the condition BmcTrusted, the fingerprint to accept, and once for
// each new certificate the event. One that is known costs one read.
func (s *Store) CertificateChanged(ctx context.Context, nodeID, shown, message string) error {
	c := fleet.Condition{Type: "BmcTrusted", Status: fleet.ConditionFalse, Reason: "certificate-changed", Message: message}
	var same bool
	err := s.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM bmcs b JOIN conditions c ON c.node_id = b.node_id
		WHERE b.node_id = $1 AND b.tls_shown = $2 AND c.type = $3 AND c.status = $4 AND c.reason = $5)`, nodeID, shown, c.Type, string(c.Status), c.Reason).Scan(&same)
	if err != nil {
		return fmt.Errorf("read the certificate of the BMC of node %s: %w", nodeID, err)
	}
	if same {
		return nil
	}
	return s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, _, err := lockNode(ctx, tx, nodeID); err != nil {
			return err
		}
		var before *string
		err := tx.QueryRow(ctx, `UPDATE bmcs SET tls_shown = $2 WHERE node_id = $1 AND tls_shown IS DISTINCT FROM $2 RETURNING tls_fingerprint`, nodeID, shown).Scan(&before)
		if err != nil && !isNoRows(err) {
			return fmt.Errorf("record the certificate of the BMC of node %s: %w", nodeID, err)
		}
		if err == nil {
			data := map[string]any{"message": message, "fingerprint": shown, "before": orEmpty(before)}
			if err := nodeEvent(ctx, tx, nodeID, "system", "security.bmc.certificate-changed", data); err != nil {
				return err
			}
		}
		return setCondition(ctx, tx, nodeID, c)
	})
}

// MachineChanged records the identity of another machine than the one enrolled
// that a BMC shows, so that a person can accept it; an event the first time.
func (s *Store) MachineChanged(ctx context.Context, nodeID string, shown fleet.BMCIdentity, message string) error {
	return s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, _, err := lockNode(ctx, tx, nodeID); err != nil {
			return err
		}
		var before fleet.BMCIdentity
		err := tx.QueryRow(ctx, `UPDATE bmcs SET identity_shown = $2 WHERE node_id = $1 AND identity_shown IS DISTINCT FROM $2 RETURNING identity`, nodeID, shown).Scan(&before)
		if isNoRows(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("record the machine that the BMC of node %s shows: %w", nodeID, err)
		}
		return nodeEvent(ctx, tx, nodeID, "system", "security.bmc.identity-changed", map[string]any{"message": message, "identity": shown, "before": before})
	})
}

// RecordQuirks stores what a BMC was learned to need, if it is still the one at
// the address.
func (s *Store) RecordQuirks(ctx context.Context, nodeID, address string, quirks []string) error {
	_, err := s.pool.Exec(ctx, `UPDATE bmcs SET quirks = $3 WHERE node_id = $1 AND address = $2`, nodeID, address, quirks)
	return wrapDoing(err, "record what was learned of the BMC of node "+nodeID)
}
