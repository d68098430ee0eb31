package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// AuditIn is one judged call.
type AuditIn struct {
	TenantID, Identity, Method string
	NodeID, Resource           string
	// Outcome is OK or the error's code.
	Outcome, Reason string
	DryRun          bool
	// Suppressed counts calls beyond the bound a second that this row stands for.
	Suppressed int
	RequestID  string
}

const auditSQL = `INSERT INTO audit (tenant_id, identity, method, node_id, resource, outcome, reason, dry_run, suppressed, request_id)
	VALUES ($1, $2, $3, NULLIF($4, ''), NULLIF($5, ''), $6, NULLIF($7, ''), $8, $9, $10)`

func (a AuditIn) args() []any {
	return []any{a.TenantID, a.Identity, a.Method, a.NodeID, a.Resource, a.Outcome, a.Reason, a.DryRun, a.Suppressed, a.RequestID}
}

// AddAudit writes an audit row in the transaction of the act it records.
func AddAudit(ctx context.Context, tx pgx.Tx, a AuditIn) error {
	if _, err := tx.Exec(ctx, auditSQL, a.args()...); err != nil {
		return fmt.Errorf("write the audit row of %s: %w", a.Method, err)
	}
	return nil
}

// AuditDenied writes an audit row of its own, for a call that was refused and
// rolled back.
func (s *Store) AuditDenied(ctx context.Context, a AuditIn) error {
	if _, err := s.pool.Exec(ctx, auditSQL, a.args()...); err != nil {
		return fmt.Errorf("write the audit row of %s: %w", a.Method, err)
	}
	return nil
}
