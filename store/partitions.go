package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Events and the audit are partitioned by the time of their rows, since that is
// what they are kept by: a partition that is old goes as a whole, with no row
// deleted. Cursors are in the order of (tx, seq), of which no bound in time is
// known beforehand, so a read from a cursor merges the partitions' indexes in
// that order; each costs one descent. That is why events have a partition a
// week and not one a day. The primary keys hold the time only because Postgres
// wants it: seq and id come from one sequence and are unique by themselves.
//
// Operations are not partitioned: that one operation of a node is live is a
// unique index over all of them, which a partitioned table could only have with
// the time in it, and the last twenty of a node are kept whatever their age.

// partitioned is a table that is kept by time.
type partitioned struct {
	table string
	// unit is the span of a partition: week or month.
	unit string
	keep time.Duration
	// inDefault finds the days of the rows in the default partition.
	inDefault string
}

// How long events and audit rows are kept; what is removed is whole partitions.
const (
	EventRetention = 90 * 24 * time.Hour
	AuditRetention = 400 * 24 * time.Hour
)

var partitionedTables = []partitioned{
	{"events", "week", EventRetention, `SELECT DISTINCT date_trunc('day', at AT TIME ZONE 'UTC') FROM events_default`},
	{"audit", "month", AuditRetention, `SELECT DISTINCT date_trunc('day', at AT TIME ZONE 'UTC') FROM audit_default`},
}

// partitionsAhead is how many partitions beyond the present one are ready, so
// that no row meets a table without a place for it while nobody makes any. What
// lands beside them lies in the default partition and is moved later.
const partitionsAhead = 4

// partitionPatience bounds how long making or dropping a partition waits for its
// locks: whoever comes after it waits as well. The next round tries again.
const partitionPatience = "2s"

// beginner is a pool or a connection.
type beginner interface {
	Reader
	Begin(ctx context.Context) (pgx.Tx, error)
}

// KeepPartitions makes the partitions to come, moves what lies in a default
// partition into one of its time, and drops partitions whose time is over. It is
// safe beside any other process: what it changes is under short locks.
func (s *Store) KeepPartitions(ctx context.Context) error { return keepPartitions(ctx, s.pool) }

func keepPartitions(ctx context.Context, db beginner) error {
	for _, p := range partitionedTables {
		if err := p.make(ctx, db); err != nil {
			return err
		}
		if err := p.drop(ctx, db); err != nil {
			return err
		}
	}
	return nil
}

// start is the beginning of the span that a time lies in.
func (p partitioned) start(at time.Time) time.Time {
	y, m, d := at.UTC().Date()
	if p.unit == "month" {
		return time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)
	}
	monday := (int(at.UTC().Weekday()) + 6) % 7
	return time.Date(y, m, d-monday, 0, 0, 0, 0, time.UTC)
}

func (p partitioned) end(start time.Time) time.Time {
	if p.unit == "month" {
		return start.AddDate(0, 1, 0)
	}
	return start.AddDate(0, 0, 7)
}

// name is the partition's table: the parent's and the day that it begins on.
func (p partitioned) name(start time.Time) string {
	return p.table + start.Format("_p20060102")
}

func (p partitioned) startOf(name string) (time.Time, bool) {
	at, err := time.Parse(p.table+"_p20060102", name)
	return at, err == nil
}

// known are the beginnings of the partitions that there are.
func (p partitioned) known(ctx context.Context, q Reader) ([]time.Time, error) {
	rows, err := q.Query(ctx, `SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = $1::text::regclass`, p.table)
	if err != nil {
		return nil, fmt.Errorf("list the partitions of %s: %w", p.table, err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list the partitions of %s: %w", p.table, err)
	}
	var starts []time.Time
	for _, name := range names {
		if at, ours := p.startOf(name); ours {
			starts = append(starts, at)
		}
	}
	return starts, nil
}

// make makes the partitions from now on, and those of rows in the default one.
func (p partitioned) make(ctx context.Context, db beginner) error {
	known, err := p.known(ctx, db)
	if err != nil {
		return err
	}
	var now time.Time
	if err := db.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return fmt.Errorf("read the time: %w", err)
	}
	rows, err := db.Query(ctx, p.inDefault)
	if err != nil {
		return fmt.Errorf("look into the default partition of %s: %w", p.table, err)
	}
	wanted, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	if err != nil {
		return fmt.Errorf("look into the default partition of %s: %w", p.table, err)
	}
	for at, n := p.start(now), 0; n <= partitionsAhead; at, n = p.end(at), n+1 {
		wanted = append(wanted, at)
	}
	for _, at := range wanted {
		start := p.start(at)
		if slices.ContainsFunc(known, start.Equal) {
			continue
		}
		if err := p.add(ctx, db, start); err != nil {
			return err
		}
		known = append(known, start)
	}
	return nil
}

// add makes one partition with what the default one holds of its time, in one
// transaction: no reader sees a row twice, or not at all.
func (p partitioned) add(ctx context.Context, db beginner, start time.Time) error {
	name, from, to := p.name(start), start.Format(time.RFC3339), p.end(start).Format(time.RFC3339)
	return p.changed(ctx, db, name, false, []string{
		"CREATE TABLE " + name + " (LIKE " + p.table + " INCLUDING DEFAULTS INCLUDING CONSTRAINTS)",
		// As attaching takes them, before rows are moved.
		"LOCK TABLE " + p.table + " IN SHARE UPDATE EXCLUSIVE MODE",
		"LOCK TABLE " + p.table + "_default IN ACCESS EXCLUSIVE MODE",
		"WITH moved AS (DELETE FROM " + p.table + "_default WHERE at >= '" + from + "' AND at < '" + to + "' RETURNING *) INSERT INTO " + name + " SELECT * FROM moved",
		"ALTER TABLE " + p.table + " ATTACH PARTITION " + name + " FOR VALUES FROM ('" + from + "') TO ('" + to + "')",
	})
}

// drop drops the partitions that ended longer ago than rows are kept. Of events
// it is recorded up to which cursor they are gone.
func (p partitioned) drop(ctx context.Context, db beginner) error {
	known, err := p.known(ctx, db)
	if err != nil {
		return err
	}
	for _, start := range known {
		var over bool
		if err := db.QueryRow(ctx, `SELECT $1::timestamptz < clock_timestamp() - $2::interval`, p.end(start), p.keep).Scan(&over); err != nil {
			return fmt.Errorf("read the time: %w", err)
		}
		if !over {
			continue
		}
		name := p.name(start)
		do := []string{"LOCK TABLE " + p.table + " IN ACCESS EXCLUSIVE MODE"}
		if p.table == "events" {
			do = append(do, "UPDATE cluster_epoch SET forgotten_tx = last.tx, forgotten_seq = last.seq FROM (SELECT tx, seq FROM "+name+
				" ORDER BY tx DESC, seq DESC LIMIT 1) last WHERE (forgotten_tx, forgotten_seq) < (last.tx, last.seq)")
		}
		if err := p.changed(ctx, db, name, true, append(do, "DROP TABLE "+name)); err != nil {
			return err
		}
	}
	return nil
}

// changed runs statements about a partition that is there, or is not, one
// process at a time.
func (p partitioned) changed(ctx context.Context, db beginner, name string, there bool, statements []string) error {
	doing := "make partition " + name
	if there {
		doing = "drop partition " + name
	}
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('partitions', 7346)), set_config('lock_timeout', $1, true)`, partitionPatience); err != nil {
			return err
		}
		// Read as rows: what resolves names may not know yet of who had the lock.
		known, err := p.known(ctx, tx)
		if err != nil || slices.ContainsFunc(known, func(at time.Time) bool { return p.name(at) == name }) != there {
			return err
		}
		_, err = tx.Exec(ctx, strings.Join(statements, ";\n"))
		return err
	})
	return wrapDoing(wrap(err), doing)
}
