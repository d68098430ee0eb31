package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// StreamFilter selects a tenant's events.
type StreamFilter struct {
	TenantID, NodeID, Prefix string
	Tx, Seq                  uint64
	Limit                    int
}

// TenantEvents returns up to f.Limit events that a tenant may see, oldest
// first, below the horizon that is read in the same statement.
func TenantEvents(ctx context.Context, q Reader, f StreamFilter) ([]fleet.Event, error) {
	var c clauses
	c.add("e.audience @> ARRAY[%s]", f.TenantID)
	c.add("(NOT e.private OR e.tenant_id = %s)", f.TenantID)
	c.sql = append(c.sql, eventHorizon)
	tx, seq := c.arg(cursorPart(f.Tx)), c.arg(cursorPart(f.Seq))
	c.sql = append(c.sql, "(e.tx, e.seq) > ("+tx+", "+seq+")")
	if f.NodeID != "" {
		c.add("e.node_id = %s", f.NodeID)
	}
	if f.Prefix != "" {
		c.add("starts_with(e.type, %s)", f.Prefix)
	}
	rows, err := q.Query(ctx, `SELECT `+eventColumns+` FROM events e WHERE `+c.where()+` ORDER BY e.tx, e.seq LIMIT `+c.arg(f.Limit), c.args...)
	if err != nil {
		return nil, fmt.Errorf("read the events of tenant %s: %w", f.TenantID, err)
	}
	list, err := pgx.CollectRows(rows, scanEvent)
	if err != nil {
		return nil, fmt.Errorf("read the events of tenant %s: %w", f.TenantID, err)
	}
	for i := range list {
		list[i] = list[i].For(f.TenantID)
	}
	return list, nil
}

// EventsEnd is the cursor from which a stream without one begins: nothing that
// is readable now comes after it.
func EventsEnd(ctx context.Context, q Reader) (tx uint64, err error) {
	var v int64
	err = q.QueryRow(ctx, `SELECT base + pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1 FROM cluster_epoch`).Scan(&v)
	if err != nil {
		return 0, fmt.Errorf("read the events' end: %w", err)
	}
	return uint64(max(v, 0)), nil
}

// EventsGap says whether retention removed events after a cursor, and the
// cursor after which all are there.
func EventsGap(ctx context.Context, q Reader, tx, seq uint64) (gap bool, kept string, err error) {
	var lastTx, lastSeq int64
	err = q.QueryRow(ctx, `SELECT ($1, $2) < (forgotten_tx, forgotten_seq), forgotten_tx, forgotten_seq FROM cluster_epoch`,
		cursorPart(tx), cursorPart(seq)).Scan(&gap, &lastTx, &lastSeq)
	if err != nil {
		return false, "", fmt.Errorf("look for a gap of the events: %w", err)
	}
	return gap, eventCursor(lastTx, lastSeq), nil
}
