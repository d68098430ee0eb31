package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bettercompute/compute/fleet"
)

// clusterSQL reads the cluster's identity. The timeline comes from the name of
// the present WAL file: the control file learns of a promotion only with the
// checkpoint after it.
const clusterSQL = `
SELECT system_identifier::text AS system_identifier,
       ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint AS timeline
FROM pg_control_system()`

// firstEpochSQL records the cluster of a new database.
const firstEpochSQL = `
INSERT INTO cluster_epoch (epoch, base, system_identifier, timeline)
SELECT 1, 0, system_identifier, timeline FROM (` + clusterSQL + `) c
ON CONFLICT (one) DO NOTHING`

// nextEpochSQL begins a new epoch when the system identifier or the timeline
// changed (a restore or a failover): base is raised to the greatest cursor plus
// 2^40, before anything else is written, since clients hold cursors that a
// restored database has forgotten. Recovery is pending then, until the sweep or
// compute recover says which side is right. While nothing changed it locks
// nothing. A promotion keeps the system identifier, and so does a restore of a
// base backup, which the sweep tells apart by what Temporal knows.
const nextEpochSQL = `
UPDATE cluster_epoch e SET
    epoch = e.epoch + 1,
    base = GREATEST(e.base + pg_current_xact_id()::text::bigint, (SELECT coalesce(max(tx), 0) FROM events)) + (1::bigint << 40),
    system_identifier = c.system_identifier,
    timeline = c.timeline,
    recovery_pending = true,
    recovery_reason = CASE WHEN e.system_identifier = c.system_identifier THEN 'failover' ELSE 'restore' END,
    changed_at = now()
FROM (` + clusterSQL + `) c
WHERE e.system_identifier <> c.system_identifier OR e.timeline <> c.timeline`

// The reasons of a pending recovery.
const (
	// RecoveryFailover is another timeline of the same cluster.
	RecoveryFailover = "failover"
	// RecoveryRestore is another cluster.
	RecoveryRestore = "restore"
	// RecoveryUnknown is a workflow in Temporal that Postgres does not know.
	RecoveryUnknown = "unknown-workflow"
	// RecoveryLost is a failover that lost the end of an operation: Temporal
	// closed its workflow, and Postgres shows it live.
	RecoveryLost = "lost-writes"
)

// Epoch is the cluster's epoch and whether a person or the sweep has to say
// which of Postgres and Temporal is right.
type Epoch struct {
	Number          int64
	RecoveryPending bool
	Reason          string
}

// checkConn begins a new epoch on a new connection when it leads to another
// cluster or timeline than the last one did, before the connection writes
// anything. A database without a schema has no epoch yet.
func checkConn(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, nextEpochSQL)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42P01" { // undefined_table
		return nil
	}
	return wrapDoing(err, "check the cluster's epoch")
}

// CheckEpoch compares the cluster's identity with the recorded one, starts a
// new epoch when it changed, and returns the present one.
func (s *Store) CheckEpoch(ctx context.Context) (Epoch, error) {
	if _, err := s.pool.Exec(ctx, nextEpochSQL); err != nil {
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
