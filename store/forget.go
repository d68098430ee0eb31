package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// How long rows are kept that nothing reads any more.
const (
	// certificateKept is how long after its end a node's certificate is kept: it
	// may be renewed for RenewGrace, and says for as long as the token that it was
	// joined with can live, thirty days, that the token is spent.
	certificateKept = RenewGrace + 30*24*time.Hour
	// commandKept is how long after its time is over a command is kept.
	commandKept = 90 * 24 * time.Hour
	// keptOperations are the last operations of a node that are always kept.
	keptOperations = 20
)

// forgetBatch is how many rows one transaction looks at.
const forgetBatch = 500

// ForgetOld removes what has served its time: idempotency keys after a day,
// heartbeats and gateways of processes long gone, certificates and commands long
// after their end, partitions of events after 90 days and of the audit after 400,
// as operations and step samples. Erase records stay. What cannot be removed now
// keeps nothing else from being removed.
func (s *Store) ForgetOld(ctx context.Context) error {
	var failed []error
	for doing, sql := range map[string]string{
		"forget old idempotency keys": `DELETE FROM idempotency_keys WHERE created_at < now() - interval '24 hours'`,
		"forget old step samples":     `DELETE FROM step_samples WHERE at < now() - interval '400 days'`,
		"forget gateways that ended":  `DELETE FROM gateways WHERE at < now() - interval '1 day'`,
		"forget old heartbeats":       `DELETE FROM heartbeats WHERE at < now() - interval '1 day'`,
	} {
		_, err := s.pool.Exec(ctx, sql)
		failed = append(failed, wrapDoing(err, doing))
	}
	return errors.Join(append(failed, s.forgetOperations(ctx), s.forgetCertificates(ctx), s.forgetCommands(ctx), s.KeepPartitions(ctx))...)
}

// forgetOperations removes operations that ended 400 days ago, but for the last
// twenty of each node, with what belongs to them.
func (s *Store) forgetOperations(ctx context.Context) error {
	return s.forget(ctx, "forget old operations", `
		WITH batch AS MATERIALIZED (
			SELECT id, node_id, created_at, ended_at FROM operations
			WHERE ended_at < now() - $1::interval AND (ended_at, id) > ($2, $3) ORDER BY ended_at, id LIMIT $4),
		gone AS (
			DELETE FROM operations o USING batch b WHERE o.id = b.id AND $5 <= (
				SELECT count(*) FROM (SELECT FROM operations y WHERE y.node_id = b.node_id AND (y.created_at, y.id) > (b.created_at, b.id)
					ORDER BY y.created_at DESC, y.id DESC LIMIT $5) younger))
		SELECT ended_at, id FROM batch ORDER BY ended_at, id`, AuditRetention, keptOperations)
}

// forgetCertificates removes certificates of nodes that ended so long ago that no
// rule asks for them.
func (s *Store) forgetCertificates(ctx context.Context) error {
	return s.forget(ctx, "forget old certificates", `
		WITH batch AS MATERIALIZED (
			SELECT not_after, serial FROM certificates
			WHERE not_after < now() - $1::interval AND (not_after, serial) > ($2, $3) ORDER BY not_after, serial LIMIT $4),
		gone AS (DELETE FROM certificates c USING batch b WHERE c.serial = b.serial)
		SELECT not_after, serial FROM batch ORDER BY not_after, serial`, certificateKept)
}

// forgetCommands removes commands whose time was over long ago. Those of an
// operation that has not ended stay: it may look at them yet.
func (s *Store) forgetCommands(ctx context.Context) error {
	return s.forget(ctx, "forget old commands", `
		WITH batch AS MATERIALIZED (
			SELECT expires_at, id, operation_id FROM commands
			WHERE expires_at < now() - $1::interval AND (expires_at, id) > ($2, $3) ORDER BY expires_at, id LIMIT $4),
		gone AS (
			DELETE FROM commands c USING batch b WHERE c.id = b.id
			AND NOT EXISTS (SELECT FROM operations o WHERE o.id = b.operation_id AND (o.ended_at IS NULL OR o.parked)))
		SELECT expires_at, id FROM batch ORDER BY expires_at, id`, commandKept)
}

// forget goes through rows by their end in batches, each a short transaction of
// the statement: $1 is how long rows are kept, and it takes those after the end
// $2 and id $3, at most $4 of them, and returns their ends and ids. A batch is
// chosen by age alone, so that what is kept of it is looked at once a round.
func (s *Store) forget(ctx context.Context, doing, sql string, kept time.Duration, more ...any) error {
	after, id := time.Time{}, ""
	for {
		rows, err := s.pool.Query(ctx, sql, append([]any{kept, after, id, forgetBatch}, more...)...)
		if err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		n := 0
		if _, err := pgx.ForEachRow(rows, []any{&after, &id}, func() error { n++; return nil }); err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		if n < forgetBatch {
			return nil
		}
	}
}
