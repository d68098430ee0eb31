package store

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// eventHorizon keeps rows of transactions that may not have ended away from
// readers: a row that commits later must not have a cursor before one that was
// read. It compares tx and not xid, so that rows written before a restore,
// whose transaction ids say nothing in this cluster, stay readable.
const eventHorizon = `e.tx < (SELECT base + pg_snapshot_xmin(pg_current_snapshot())::text::bigint FROM cluster_epoch)`

// eventColumns are what ScanEvent reads.
const eventColumns = `e.tx, e.seq, e.type, e.node_id, e.at, e.actor, e.tenant_id, e.version, e.data`

// scanEvent reads eventColumns.
func scanEvent(row pgx.CollectableRow) (fleet.Event, error) {
	var (
		e       fleet.Event
		tx, seq int64
		nodeID  *string
		version *int64
		at      time.Time
	)
	if err := row.Scan(&tx, &seq, &e.Type, &nodeID, &at, &e.Actor, &e.TenantID, &version, &e.Data); err != nil {
		return e, fmt.Errorf("read event: %w", err)
	}
	e.Cursor = eventCursor(tx, seq)
	e.NodeID, e.At = orEmpty(nodeID), fleet.At(at)
	if version != nil {
		e.Version = *version
	}
	if e.Data == nil {
		e.Data = map[string]any{}
	}
	return e, nil
}

func eventCursor(tx, seq int64) string {
	return strconv.FormatInt(tx, 10) + ":" + strconv.FormatInt(seq, 10)
}

// cursorPart brings a part of an event's cursor into the database's range: what
// lies above it is past every event.
func cursorPart(v uint64) int64 { return int64(min(v, math.MaxInt64)) }

// EventFilter selects a node's events. A zero Tx and Seq begin at the oldest.
type EventFilter struct {
	NodeID string
	// TenantID is the caller's; Own says that it is the node's.
	TenantID string
	Own      bool
	// Prefix keeps only types that start with it.
	Prefix string
	Tx     uint64
	Seq    uint64
	Limit  int
}

// NodeEvents returns up to f.Limit+1 events of a node, oldest first, that the
// tenant may see. Events of transactions that may still be running are not
// among them: the horizon is read in the same statement.
func NodeEvents(ctx context.Context, q Reader, f EventFilter) ([]fleet.Event, error) {
	var c clauses
	c.add("e.node_id = %s", f.NodeID)
	c.sql = append(c.sql, eventHorizon)
	if !f.Own {
		c.add("NOT e.private AND e.audience @> ARRAY[%s]", f.TenantID)
	}
	if f.Prefix != "" {
		c.add("starts_with(e.type, %s)", f.Prefix)
	}
	if f.Tx != 0 || f.Seq != 0 {
		tx, seq := c.arg(cursorPart(f.Tx)), c.arg(cursorPart(f.Seq))
		c.sql = append(c.sql, "(e.tx, e.seq) > ("+tx+", "+seq+")")
	}
	rows, err := q.Query(ctx, `SELECT `+eventColumns+` FROM events e
		WHERE `+c.where()+` ORDER BY e.tx, e.seq LIMIT `+c.arg(f.Limit+1), c.args...)
	if err != nil {
		return nil, fmt.Errorf("list events of node %s: %w", f.NodeID, err)
	}
	list, err := pgx.CollectRows(rows, scanEvent)
	if err != nil {
		return nil, fmt.Errorf("list events of node %s: %w", f.NodeID, err)
	}
	if !f.Own {
		for i := range list {
			list[i] = list[i].For(f.TenantID)
		}
	}
	return list, nil
}
