package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// ReportURL returns the operation's one-time report URL, made once.
func (s *Store) ReportURL(ctx context.Context, operationID string) (string, error) {
	id, err := s.derive(labelReport, operationID)
	if err != nil {
		return "", err
	}
	tag, err := s.pool.Exec(ctx, `INSERT INTO reports (id, operation_id, node_id) SELECT $1, id, node_id FROM operations WHERE id = $2
		ON CONFLICT (id) DO UPDATE SET id = EXCLUDED.id`, id, operationID)
	if err != nil {
		return "", fmt.Errorf("make the report URL of operation %s: %w", operationID, err)
	}
	if tag.RowsAffected() == 0 {
		return "", fleet.Errorf(fleet.CodeNotFound, ReasonUnknownOperation, "operation %s is not in the database", operationID)
	}
	return strings.TrimSuffix(s.BootURL, "/") + "/report/" + id, nil
}

// Reported says whether the installed system reported.
func (s *Store) Reported(ctx context.Context, operationID string) (bool, error) {
	var done bool
	err := s.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM reports WHERE operation_id = $1 AND used_at IS NOT NULL)`, operationID).Scan(&done)
	if err != nil {
		return false, fmt.Errorf("read the report of operation %s: %w", operationID, err)
	}
	return done, nil
}

// TakeReport takes an installed system's report, once, and tells the workflow.
// A report that was taken, whose operation ended, or that never was is
// NOT_FOUND.
func (s *Store) TakeReport(ctx context.Context, reportID string, data map[string]string) error {
	err := s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var operationID string
		err := tx.QueryRow(ctx, `UPDATE reports r SET used_at = now(), data = $2 FROM operations o
			WHERE r.id = $1 AND r.used_at IS NULL AND o.id = r.operation_id AND (o.state IN ('pending', 'running', 'waiting') OR o.parked)
			RETURNING r.operation_id`, reportID, data).Scan(&operationID)
		if err != nil {
			return noRows(err, "report", "take a report")
		}
		return AddDispatch(ctx, tx, DispatchIn{Kind: DispatchSignal, OperationID: operationID, Signal: fleet.SignalReport})
	})
	if err != nil {
		return err
	}
	s.Notify()
	return nil
}
