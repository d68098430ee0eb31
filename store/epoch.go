package store

import (
	"context"
	"fmt"

	"github.com/bettercompute/compute/fleet"
)

// epochSQL records the cluster's identity. When the system identifier or the
// timeline changed (a restore or a failover), the epoch rises and base is
// raised to the greatest cursor plus 2^40, before anything else is written:
// clients hold cursors that a restored database has forgotten. Recovery is
// pending then, until the sweep or `compute recover` says which side is right.
const epochSQL = `
INSERT INTO cluster_epoch (epoch, base, system_identifier, timeline)
SELECT 1, 0, system_identifier::text, timeline_id
FROM pg_control_system(), pg_control_checkpoint()
ON CONFLICT (one) DO UPDATE SET
    epoch = cluster_epoch.epoch + 1,
    base = GREATEST(cluster_epoch.base + pg_current_xact_id()::text::bigint, (SELECT coalesce(max(tx), 0) FROM events)) + (1::bigint << 40),
    system_identifier = EXCLUDED.system_identifier,
    timeline = EXCLUDED.timeline,
    recovery_pending = true,
    recovery_reason = CASE WHEN cluster_epoch.system_identifier = EXCLUDED.system_identifier THEN 'failover' ELSE 'restore' END,
    changed_at = now()
WHERE cluster_epoch.system_identifier <> EXCLUDED.system_identifier OR cluster_epoch.timeline <> EXCLUDED.timeline`

// Epoch is the cluster's epoch and whether a person or the sweep has to say
// which of Postgres and Temporal is right.
type Epoch struct {
	Number          int64
	RecoveryPending bool
	Reason          string
}

// CheckEpoch compares the cluster's identity with the recorded one, starts a
// new epoch when it changed, and returns the present one. Processes that write
// call it when they start and the sweep does each round.
func (s *Store) CheckEpoch(ctx context.Context) (Epoch, error) {
	if _, err := s.pool.Exec(ctx, epochSQL); err != nil {
		return Epoch{}, fmt.Errorf("check the cluster's epoch: %w", err)
	}
	return LoadEpoch(ctx, s.pool)
}

// LoadEpoch reads the present epoch.
func LoadEpoch(ctx context.Context, q Reader) (Epoch, error) {
	var e Epoch
	var reason *string
	err := q.QueryRow(ctx, `SELECT epoch, recovery_pending, recovery_reason FROM cluster_epoch`).Scan(&e.Number, &e.RecoveryPending, &reason)
	if err != nil {
		return Epoch{}, fmt.Errorf("read the cluster's epoch: %w", err)
	}
	if reason != nil {
		e.Reason = *reason
	}
	return e, nil
}

// RefuseWhileRecovering is the error of destructive verbs while recovery is
// pending, nil otherwise.
func RefuseWhileRecovering(ctx context.Context, q Reader) error {
	e, err := LoadEpoch(ctx, q)
	if err != nil || !e.RecoveryPending {
		return err
	}
	return fleet.Errorf(fleet.CodeUnavailable, "recovery-pending",
		"the database was restored or failed over (%s) and may disagree with Temporal; an operator has to run compute recover first", e.Reason)
}

// SetRecovery sets or clears the pending recovery.
func (s *Store) SetRecovery(ctx context.Context, pending bool, reason string) error {
	_, err := s.pool.Exec(ctx, `UPDATE cluster_epoch SET recovery_pending = $1, recovery_reason = NULLIF($2, ''), changed_at = now()
		WHERE recovery_pending <> $1`, pending, reason)
	if err != nil {
		return fmt.Errorf("record the state of recovery: %w", err)
	}
	return nil
}
