// Package api is the HTTP API: routes, validation and authorization derived
// from the method table, and one handler a method.
package api

import (
	"context"
	"fmt"
	"time"

	"github.com/bettercompute/compute/authz"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// Caller is who makes a call.
type Caller struct {
	// Identity is <issuer alias>:<sub>, or svc:<id>.
	Identity string
	MFA      bool
	// SessionEnd is when the caller's token ends.
	SessionEnd time.Time
}

// Call is one call of a method.
type Call struct {
	Caller
	TenantID  string
	RequestID string
	Method    fleet.Method
	// Key is the Idempotency-Key, "" without one; Body is the canonical input it
	// is bound to.
	Key  string
	Body []byte
	// Roles are the identity's bindings that can matter to this call.
	Roles []store.RoleBinding
	// Resource is what the call made or changed, for its audit row; "" is the node
	// alone.
	Resource string

	// decided is the resource that the call was decided on.
	decided Target
	srv     *Server
}

// Store is the control plane's state.
func (c *Call) Store() *store.Store { return c.srv.store }

// handler is a registered method: it decodes the input and runs the function.
type handler struct {
	method fleet.Method
	decode func(body []byte) (any, []fleet.FieldError)
	// check makes the checks of the input that a tag cannot say and that need
	// nothing but the input.
	check func(in any) error
	run   func(ctx context.Context, c *Call, in any) (any, error)
}

// Registry collects the handlers of all methods.
type Registry struct{ handlers map[string]handler }

// NewRegistry returns an empty registry.
func NewRegistry() *Registry { return &Registry{handlers: map[string]handler{}} }

// Handle registers the handler of a method. It panics when the method has no
// row, has a handler already, or has other input or output types: all are
// programming errors that the first start shows. The checks are of the input
// alone; they are made with its decoding, before anything is looked up.
func Handle[In, Out any](r *Registry, group, name string, fn func(ctx context.Context, c *Call, in In) (Out, error), checks ...func(In) error) {
	m, ok := fleet.FindMethod(group, name)
	if !ok {
		panic(fmt.Sprintf("api: %s/%s has no row in the method table", group, name))
	}
	if _, ok := m.In.(In); !ok {
		panic(fmt.Sprintf("api: the handler of %s/%s takes %T, the table says %T", group, name, *new(In), m.In))
	}
	if _, ok := m.Out.(Out); !ok {
		panic(fmt.Sprintf("api: the handler of %s/%s answers %T, the table says %T", group, name, *new(Out), m.Out))
	}
	if _, twice := r.handlers[m.FullName()]; twice {
		panic(fmt.Sprintf("api: %s has two handlers", m.FullName()))
	}
	r.handlers[m.FullName()] = handler{method: m,
		decode: func(body []byte) (any, []fleet.FieldError) { return decode[In](body) },
		check: func(in any) error {
			for _, check := range checks {
				if err := check(in.(In)); err != nil {
					return err
				}
			}
			return nil
		},
		run: func(ctx context.Context, c *Call, in any) (any, error) { return fn(ctx, c, in.(In)) }}
}

// missing lists the methods of the table that have no handler.
func (r *Registry) missing() []string {
	var out []string
	for _, m := range fleet.Methods {
		if _, ok := r.handlers[m.FullName()]; !ok {
			out = append(out, m.FullName())
		}
	}
	return out
}

// Target is the resource a call is decided on.
type Target struct {
	Kind fleet.Resource
	ID   string
	// OwnerTenant, PoolID and NodeID are the resource and its parents.
	OwnerTenant, PoolID, NodeID string
}

// May says whether the caller holds a permission on a resource.
func (c *Call) May(p fleet.Permission, t Target) bool {
	r := authz.Request{Identity: c.Identity, Permission: p, Resource: t.Kind, ResourceID: t.ID, Relation: authz.Own}
	if t.OwnerTenant != c.TenantID {
		r.Relation = authz.Offered
	}
	for _, b := range c.Roles {
		switch {
		case b.TenantID == c.TenantID && b.Reaches(c.TenantID, t.PoolID, t.NodeID):
			r.Roles = append(r.Roles, b.Role)
		case b.TenantID == t.OwnerTenant && b.OnTenant == "" && b.Reaches("", t.PoolID, t.NodeID):
			r.Named = append(r.Named, b.Role)
		}
	}
	return c.srv.authz.Allowed(r)
}

// Permit is May as an error: ACCESS_DENIED that names the permission.
func (c *Call) Permit(p fleet.Permission, t Target) error {
	if c.May(p, t) {
		return nil
	}
	return fleet.Errorf(fleet.CodeAccessDenied, "not-permitted", "%s needs %s on %s; ask an owner of tenant %s for a role that holds it (access/grant)",
		c.Method.FullName(), p, t.Kind, c.TenantID)
}

// OnTenant is the calling tenant as a target.
func (c *Call) OnTenant() Target {
	return Target{Kind: fleet.OnTenant, ID: c.TenantID, OwnerTenant: c.TenantID}
}
