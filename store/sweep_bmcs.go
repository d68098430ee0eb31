package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// DueBMC is a BMC at rest that is due a look, with the lease for it.
type DueBMC struct {
	BMCAccess
	Lease Lease
	// Power is the state recorded last, Reachable whether the last look reached
	// the BMC, and Failures how many looks in a row did not.
	Power     fleet.PowerState
	Reachable bool
	Failures  int
}

// ClaimDueBMCs claims BMCs that are due and takes a read lease of each, in one
// statement. One that an operation talks to is not at rest. BMCs that refused the
// login are left alone until their credentials or settings change, so that no
// sweep locks an account; retired machines and ones without a password are not
// looked at.
func (s *Store) ClaimDueBMCs(ctx context.Context, holder string, limit int, life, grace, again time.Duration) ([]DueBMC, error) {
	return s.claimDue(ctx, `
		WITH due AS MATERIALIZED (
			SELECT b.node_id FROM bmcs b JOIN nodes n ON n.id = b.node_id
			WHERE b.next_check_at <= now() AND n.provision_state <> 'retired' AND `+atRest+`
			ORDER BY b.next_check_at LIMIT $2 FOR UPDATE OF b SKIP LOCKED),
		claimed AS (UPDATE bmcs b SET next_check_at = now() + $5::interval FROM due WHERE b.node_id = due.node_id),`+leaseDue,
		holder, limit, life, grace, again)
}

// atRest are the BMCs that a sweep may speak to.
const atRest = `b.password IS NOT NULL AND n.deleted_at IS NULL AND b.capabilities->>'driver' IS NOT NULL
			  AND NOT EXISTS (SELECT FROM operations o WHERE o.node_id = b.node_id AND o.state IN ('pending', 'running'))
			  AND NOT EXISTS (SELECT FROM conditions c WHERE c.node_id = b.node_id AND c.type = 'BmcAuthenticated' AND c.status = 'False')`

// leaseDue takes a read lease of those that are due and reads what is needed to
// open them.
const leaseDue = `
		leased AS (
			INSERT INTO bmc_leases AS l (node_id, slot, holder, token, expires_at)
			SELECT node_id, 1, $1, 1, clock_timestamp() + $3::interval FROM due
			ON CONFLICT (node_id, slot) DO UPDATE SET holder = EXCLUDED.holder, token = l.token + 1, expires_at = EXCLUDED.expires_at
				WHERE l.holder IS NULL OR l.expires_at + $4::interval <= clock_timestamp()
			RETURNING node_id, slot, token)
		SELECT ` + accessColumns + `, leased.slot, leased.token, coalesce(b.power_state, ''), b.reachable, b.check_failures
		FROM leased JOIN bmcs b ON b.node_id = leased.node_id JOIN nodes n ON n.id = b.node_id JOIN sites s ON s.id = n.site_id`

func (s *Store) claimDue(ctx context.Context, sql, holder string, limit int, life, grace, again time.Duration) ([]DueBMC, error) {
	rows, err := s.pool.Query(ctx, sql, holder, limit, life, grace, again)
	if err != nil {
		return nil, fmt.Errorf("claim BMCs that are due: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (d DueBMC, err error) {
		err = scanAccess(r, &d.BMCAccess, &d.Lease.Slot, &d.Lease.Token, &d.Power, &d.Reachable, &d.Failures)
		d.Lease.NodeID = d.NodeID
		return d, err
	})
	return list, wrapDoing(err, "claim BMCs that are due")
}

// BMCLook is what a look at a BMC at rest found.
type BMCLook struct {
	NodeID    string
	Reachable bool
	// Power is "" when it was not read.
	Power fleet.PowerState
	Error string
	Next  time.Duration
}

// mostError bounds the error that is kept of a look, in bytes.
const mostError = 2000

// RecordLooks writes the observations of many looks in one statement. It writes
// no events: a node whose power or conditions changed is written in a
// transaction of its own. What one BMC said keeps no other's from being written.
func (s *Store) RecordLooks(ctx context.Context, looks []BMCLook) error {
	var ids, powers, errs []string
	var reached []bool
	var next []float64
	for _, l := range looks {
		ids, powers, errs = append(ids, l.NodeID), append(powers, string(l.Power)), append(errs, fleet.Text(l.Error, mostError))
		reached, next = append(reached, l.Reachable), append(next, l.Next.Seconds())
	}
	_, err := s.pool.Exec(ctx, `
		UPDATE bmcs b SET reachable = l.reached, last_error = NULLIF(l.error, ''), checked_at = now(),
			power_at = CASE WHEN l.power = b.power_state THEN now() ELSE b.power_at END,
			check_failures = CASE WHEN l.reached THEN 0 ELSE b.check_failures + 1 END,
			next_check_at = now() + make_interval(secs => l.next)
		FROM unnest($1::text[], $2::text[], $3::text[], $4::bool[], $5::float8[]) AS l (node_id, power, error, reached, next)
		WHERE b.node_id = l.node_id`, ids, powers, errs, reached, next)
	return wrapDoing(err, "record looks at BMCs")
}
