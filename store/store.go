// Package store holds the transactions and queries of the control plane. The
// database's constraints and locks decide; nothing is checked before a write
// that a constraint could check in it.
package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store/seal"
)

// Options are what a Store needs beside the database.
type Options struct {
	// Seal seals secrets at rest; a process that touches none may leave it nil.
	Seal *seal.Keyset
	// BootKey derives boot ids and call-in tokens.
	BootKey []byte
	// BootURL and GatewayURL are what machines are told.
	BootURL, GatewayURL string
	// TimeScale divides waiting times for simulated racks; 0 and 1 leave them.
	TimeScale float64
	// WaitScale divides the bounds of operations' waits instead, for a rack that
	// runs faster than this machine can be relied on; 0 is TimeScale.
	WaitScale float64
}

// Store is the control plane's state in Postgres.
type Store struct {
	pool *pgxpool.Pool
	Options
	wake *notifier
}

// Open connects to the database. Connections give up an idle transaction and a
// lock wait, so that no stuck client holds the events' horizon or a row.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("read DATABASE_URL: %w", err)
	}
	set := func(name, value string) {
		if _, given := cfg.ConnConfig.RuntimeParams[name]; !given {
			cfg.ConnConfig.RuntimeParams[name] = value
		}
	}
	set("application_name", "better-compute")
	set("idle_in_transaction_session_timeout", "30s")
	set("lock_timeout", "10s")
	cfg.AfterConnect = checkConn
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to Postgres: %w", err)
	}
	return New(pool, opts), nil
}

// New makes a Store of a pool that the caller closes.
func New(pool *pgxpool.Pool, opts Options) *Store {
	return &Store{pool: pool, Options: opts, wake: newNotifier(pool)}
}

// Pool is the underlying pool, for reads outside a transaction.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// Close ends the notifier and the pool.
func (s *Store) Close() {
	s.wake.close()
	s.pool.Close()
}

// txAttempts bounds how often a transaction that lost a serialization or
// deadlock race is run again.
const txAttempts = 6

// InTx runs fn in one transaction and commits. fn holds SQL and pure functions
// only, since it is run again when Postgres chose the transaction as a
// deadlock's victim. Errors come out translated by wrap.
func (s *Store) InTx(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
	var err error
	for attempt := range txAttempts {
		err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return fn(ctx, tx) })
		var pg *pgconn.PgError
		if err == nil || !errors.As(err, &pg) || (pg.Code != "40001" && pg.Code != "40P01") {
			return wrap(err)
		}
		pause := time.Duration(1<<attempt)*5*time.Millisecond + rand.N(5*time.Millisecond)
		select {
		case <-ctx.Done():
			return wrap(err)
		case <-time.After(pause):
		}
	}
	return wrap(err)
}

// conflicts names what a unique constraint's violation means to a caller.
var conflicts = map[string]struct{ reason, detail string }{
	"sites_name_unique":   {"name-taken", "a site of this name exists in the tenant; choose another name"},
	"pools_name_unique":   {"name-taken", "an active pool of this name exists in the tenant; choose another name"},
	"nodes_name_unique":   {"name-taken", "a node of this name exists in the site; choose another name"},
	"bmcs_address_unique": {"already-enrolled", "a machine with this BMC address is enrolled in the site; look it up with metal/list and bmcAddress"},
	"bmcs_machine_unique": {"already-enrolled", "this machine is enrolled in the site under another address"},
	"operations_live":     {"operation-in-progress", "another operation of this node began at the same moment; look at it with operations/list"},
	"operations_parked":   {"operation-parked", "another operation of this node is parked"},
	"bindings_unique":     {"already-granted", "this identity holds this role on this resource already"},
	"tenants_pkey":        {"tenant-exists", "a tenant of this id exists"},
}

// wrap translates the database's errors where they mean something to a caller.
func wrap(err error) error {
	if err == nil {
		return nil
	}
	var known *fleet.Error
	if errors.As(err, &known) {
		return err
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case "23505":
		if c, ok := conflicts[pg.ConstraintName]; ok {
			return &fleet.Error{Code: fleet.CodeConflict, Reason: c.reason, Detail: c.detail, Err: err}
		}
	case "55P03", "57014": // lock_not_available, query_canceled by lock_timeout
		return &fleet.Error{Code: fleet.CodeUnavailable, Reason: "busy", Detail: "the row is held by another call; try again", RetryAfter: time.Second, Err: err}
	}
	if class := pg.Code[:2]; class == "22" || class == "23" {
		// Repeating it would be refused again: whoever retries must not.
		return &fleet.Error{Code: fleet.CodeInternal, Reason: fleet.ReasonRejected,
			Detail: "the database refused what was to be recorded, which is a defect of ours; the log of the process names the rule", Err: err}
	}
	return err
}
