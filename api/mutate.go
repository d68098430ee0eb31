package api

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// Mutation is what a handler of a mutation states; Mutate does the rest in one
// transaction, in the order of checks of the API.
type Mutation[Out any] struct {
	// Find reads the resource the call is decided on, without locking:
	// NOT_FOUND when the tenant cannot see it. OnNode and the like make one.
	Find func(ctx context.Context, tx pgx.Tx) (Target, error)
	// Permissions are all needed; the method's own when empty.
	Permissions func(ctx context.Context, tx pgx.Tx) ([]fleet.Permission, error)
	// Session holds what the method asks of the caller's session, beside the
	// permissions (403).
	Session func(ctx context.Context, tx pgx.Tx) error
	// Before takes advisory locks, which come before the row's.
	Before func(ctx context.Context, tx pgx.Tx) error
	// Lock locks the aggregate's row: the first statement that takes a
	// transaction id. Nil for creations.
	Lock func(ctx context.Context, tx pgx.Tx) error
	// Input checks the parts of the input that need the row (400).
	Input func(ctx context.Context, tx pgx.Tx) error
	// Version is the caller's precondition, Present reads what it is compared
	// with; nil when there is none.
	Version *int64
	Present func(ctx context.Context, tx pgx.Tx) (int64, error)
	// Judge judges the state (422).
	Judge func(ctx context.Context, tx pgx.Tx) error
	// DryRun, when the call is one, answers what would be.
	DryRun func(ctx context.Context, tx pgx.Tx) (Out, error)
	// Change writes and answers. MadeID of the audit and of a kept answer is
	// what Made returns, when set.
	Change func(ctx context.Context, tx pgx.Tx) (Out, error)
	// Last is the last statement before the commit, after the audit and the kept
	// answer: for a row that many calls want, whose lock is held so for no longer
	// than the commit takes.
	Last func(ctx context.Context, tx pgx.Tx) error
	// Secret says that the answer holds a secret and must not be kept.
	Secret bool
	Made   func(Out) string
	// NodeID is for the audit; MadeNode names the node that the change made.
	NodeID   string
	MadeNode func(Out) string
}

// errRollback ends a transaction of a dry run without a trace.
var errRollback = errors.New("dry run")

// Mutate makes a mutation: idempotency, visibility, permission, the lock and
// the same again under it, input, version, state, change, audit, kept answer.
// A refusal is audited in a row of its own after the rollback.
func Mutate[Out any](ctx context.Context, c *Call, m Mutation[Out]) (Out, error) {
	var out Out
	dry := m.DryRun != nil
	err := c.Store().InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var zero Out
		out = zero
		replayed, err := c.replay(ctx, tx, m.Secret, &out)
		if err != nil || replayed {
			return err
		}
		if err := m.judge(ctx, c, tx); err != nil {
			return err
		}
		if dry {
			if out, err = m.DryRun(ctx, tx); err == nil {
				err = errRollback
			}
			return err
		}
		if out, err = m.Change(ctx, tx); err != nil {
			return err
		}
		if err := c.conclude(ctx, tx, m.node(out), m.Secret, out, m.made(out)); err != nil || m.Last == nil {
			return err
		}
		return m.Last(ctx, tx)
	})
	switch {
	case errors.Is(err, errRollback):
		return out, c.Store().AuditDenied(ctx, c.audit(m.NodeID, "OK", "", true))
	case err != nil:
		return out, c.refuse(ctx, m.NodeID, dry, err)
	}
	c.Store().Notify()
	return out, nil
}

func (m Mutation[Out]) node(out Out) string {
	if m.MadeNode == nil {
		return m.NodeID
	}
	return m.MadeNode(out)
}

func (m Mutation[Out]) made(out Out) string {
	if m.Made == nil {
		return ""
	}
	return m.Made(out)
}

// judge makes the checks from visibility to state.
func (m Mutation[Out]) judge(ctx context.Context, c *Call, tx pgx.Tx) error {
	if err := m.decide(ctx, c, tx); err != nil {
		return err
	}
	for _, step := range []func(context.Context, pgx.Tx) error{m.Before, m.Lock} {
		if step != nil {
			if err := step(ctx, tx); err != nil {
				return err
			}
		}
	}
	if m.Lock != nil {
		// What was read before the lock may have changed while it was waited for,
		// the caller's roles too.
		var err error
		if c.Roles, err = store.LoadRoles(ctx, tx, c.Identity); err != nil {
			return err
		}
		if err := m.decide(ctx, c, tx); err != nil {
			return err
		}
	}
	if m.Input != nil {
		if err := m.Input(ctx, tx); err != nil {
			return err
		}
	}
	if m.Version != nil && m.Present != nil {
		present, err := m.Present(ctx, tx)
		if err != nil {
			return err
		}
		if present != *m.Version {
			return fleet.Errorf(fleet.CodeConflict, "version", "the present version is %d, not %d: read it again and decide anew", present, *m.Version).With("version", present)
		}
	}
	if m.Judge != nil {
		return m.Judge(ctx, tx)
	}
	return nil
}

// decide checks that the tenant sees the resource and that the caller may.
func (m Mutation[Out]) decide(ctx context.Context, c *Call, tx pgx.Tx) error {
	target, err := m.Find(ctx, tx)
	if err != nil {
		return err
	}
	c.decided = target
	permissions := []fleet.Permission{c.Method.Permission}
	if m.Permissions != nil {
		if permissions, err = m.Permissions(ctx, tx); err != nil {
			return err
		}
	}
	for _, p := range permissions {
		if err := c.Permit(p, target); err != nil {
			return err
		}
	}
	if m.Session != nil {
		return m.Session(ctx, tx)
	}
	return nil
}

// replay answers a call whose Idempotency-Key was used before.
func (c *Call) replay(ctx context.Context, tx pgx.Tx, secret bool, out any) (bool, error) {
	if c.Key == "" {
		return false, nil
	}
	kept, err := store.TakeKey(ctx, tx, c.TenantID, c.Identity, c.Key)
	if err != nil || kept == nil {
		return false, err
	}
	if !hmac.Equal(kept.Request, c.fingerprint()) {
		return false, fleet.Errorf(fleet.CodeConflict, "key-reused", "this Idempotency-Key was used for another call; use a new key for a new intent")
	}
	if secret || kept.Answer == nil {
		return false, fleet.Errorf(fleet.CodeConflict, "answer-not-kept", "this call was made and answered; the answer held a secret and was not kept").With("id", kept.MadeID)
	}
	if err := json.Unmarshal(kept.Answer, out); err != nil {
		return false, fmt.Errorf("read the kept answer: %w", err)
	}
	return true, nil
}

// fingerprint binds a kept answer to its call without storing the input.
func (c *Call) fingerprint() []byte {
	h := hmac.New(sha256.New, c.srv.requestKey)
	h.Write([]byte(c.Method.FullName()))
	h.Write([]byte{0})
	h.Write(c.Body)
	return h.Sum(nil)
}

// conclude writes the audit row and, last, the kept answer.
func (c *Call) conclude(ctx context.Context, tx pgx.Tx, nodeID string, secret bool, out any, made string) error {
	if err := store.AddAudit(ctx, tx, c.audit(nodeID, "OK", "", false)); err != nil {
		return err
	}
	if c.Key == "" {
		return nil
	}
	kept := store.Kept{Request: c.fingerprint(), MadeID: made}
	if !secret {
		b, err := json.Marshal(out)
		if err != nil {
			return fmt.Errorf("keep the answer: %w", err)
		}
		kept.Answer = b
	}
	return store.KeepAnswer(ctx, tx, c.TenantID, c.Identity, c.Key, kept)
}

func (c *Call) audit(nodeID, outcome, reason string, dryRun bool) store.AuditIn {
	return store.AuditIn{TenantID: c.TenantID, Identity: c.Identity, Method: c.Method.FullName(), NodeID: nodeID, Resource: c.audited(nodeID),
		Outcome: outcome, Reason: reason, DryRun: dryRun, RequestID: c.RequestID}
}

// audited names what a call is about: what its handler says, else the resource
// that it was decided on, else what it asked for and did not get to see.
func (c *Call) audited(nodeID string) string {
	switch {
	case c.Resource != "":
		return c.Resource
	case c.decided.Kind != "":
		return string(c.decided.Kind) + "/" + c.decided.ID
	case nodeID != "":
		return string(fleet.OnNode) + "/" + nodeID
	case c.Method.Resource == fleet.OnTenant:
		return string(fleet.OnTenant) + "/" + c.TenantID
	}
	return ""
}

// refuse audits a refusal that the audit is meant to hold, and returns it.
func (c *Call) refuse(ctx context.Context, nodeID string, dryRun bool, err error) error {
	switch fleet.CodeOf(err) {
	case fleet.CodeAccessDenied, fleet.CodeNotFound, fleet.CodeConflict, fleet.CodeInvalidState:
		c.srv.auditDenied(ctx, c.audit(nodeID, string(fleet.CodeOf(err)), fleet.ReasonOf(err), dryRun))
	default: // what the caller wrote wrongly, and our own troubles, are in the log and the metrics
	}
	return err
}

// OnNode finds a node that the tenant sees.
func (c *Call) OnNode(nodeID string) func(ctx context.Context, tx pgx.Tx) (Target, error) {
	return func(ctx context.Context, tx pgx.Tx) (Target, error) { return c.findNode(ctx, tx, nodeID) }
}

func (c *Call) findNode(ctx context.Context, q store.Reader, nodeID string) (Target, error) {
	p, err := store.LoadNodeParents(ctx, q, c.TenantID, nodeID)
	if err != nil {
		return Target{}, err
	}
	if !p.Visible {
		return Target{}, fleet.NotFound("node")
	}
	return Target{Kind: fleet.OnNode, ID: nodeID, OwnerTenant: p.TenantID, PoolID: p.PoolID, NodeID: nodeID}, nil
}

// FindTenant finds the calling tenant.
func (c *Call) FindTenant(context.Context, pgx.Tx) (Target, error) { return c.OnTenant(), nil }

// LockNode locks a node's row.
func LockNode(nodeID string) func(ctx context.Context, tx pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error { return store.LockNode(ctx, tx, nodeID) }
}

// NodeVersion reads a node's version.
func NodeVersion(nodeID string) func(ctx context.Context, tx pgx.Tx) (int64, error) {
	return func(ctx context.Context, tx pgx.Tx) (int64, error) {
		p, err := store.LoadNodeParents(ctx, tx, "", nodeID)
		return p.Version, err
	}
}

// Read makes a read: the resource, the permission, then the query, whose
// refusals are audited like a mutation's.
func Read[Out any](ctx context.Context, c *Call, nodeID string, find func(ctx context.Context, q store.Reader) (Target, error),
	query func(ctx context.Context, q store.Reader, t Target) (Out, error)) (Out, error) {
	var zero Out
	target, err := find(ctx, c.Store().Pool())
	if err == nil {
		c.decided = target
		err = c.Permit(c.Method.Permission, target)
	}
	if err != nil {
		return zero, c.refuse(ctx, nodeID, false, err)
	}
	return query(ctx, c.Store().Pool(), target)
}

// ReadNode is Read on a node.
func ReadNode[Out any](ctx context.Context, c *Call, nodeID string, query func(ctx context.Context, q store.Reader, t Target) (Out, error)) (Out, error) {
	return Read(ctx, c, nodeID, func(ctx context.Context, q store.Reader) (Target, error) { return c.findNode(ctx, q, nodeID) }, query)
}

// ReadTenant is Read on the calling tenant.
func ReadTenant[Out any](ctx context.Context, c *Call, query func(ctx context.Context, q store.Reader, t Target) (Out, error)) (Out, error) {
	return Read(ctx, c, "", func(context.Context, store.Reader) (Target, error) { return c.OnTenant(), nil }, query)
}
