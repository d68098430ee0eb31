// Package authz decides whether an identity may do something, by Cedar
// policies. The built-in set is policies.cedar; an operator can replace it.
package authz

import (
	_ "embed"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/cedar-policy/cedar-go"

	"github.com/bettercompute/compute/fleet"
)

//go:embed policies.cedar
var builtin []byte

// Relation says how the tenant on whose behalf a call is made stands to the
// resource.
type Relation string

// The relations: the resource is the tenant's own, or it sees it through a pool
// that it is offered.
const (
	Own     Relation = "own"
	Offered Relation = "offered"
)

// Request is one decision to make.
type Request struct {
	Identity   string
	Permission fleet.Permission
	Resource   fleet.Resource
	ResourceID string
	Relation   Relation
	// Roles are those that the identity holds on the resource or a parent of it
	// in the calling tenant; Named those that the resource's owner granted it by
	// name.
	Roles, Named []fleet.Role
}

// Engine holds a set of policies.
type Engine struct {
	set      atomic.Pointer[cedar.PolicySet]
	entities cedar.EntityMap
}

// New makes an engine of the policies in a file, or of the built-in ones when
// path is empty. A set that does not parse is refused.
func New(path string) (*Engine, error) {
	e := &Engine{entities: actions()}
	if path == "" {
		return e, e.parse("policies.cedar", builtin)
	}
	return e, e.Reload(path)
}

// Reload replaces the policies; on an error the old ones stay.
func (e *Engine) Reload(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the policies: %w", err)
	}
	return e.parse(path, b)
}

func (e *Engine) parse(name string, text []byte) error {
	set, err := cedar.NewPolicySetFromBytes(name, text)
	if err != nil {
		return fmt.Errorf("parse the policies %s: %w", name, err)
	}
	e.set.Store(set)
	return nil
}

// actions makes the action entities: each permission is in its group, and
// reads are in Action::"read".
func actions() cedar.EntityMap {
	m := cedar.EntityMap{}
	for _, p := range Permissions() {
		uid := cedar.NewEntityUID("Action", cedar.String(p))
		parents := []cedar.EntityUID{cedar.NewEntityUID("Action", cedar.String("group:"+p.Group()))}
		if p.IsRead() {
			parents = append(parents, cedar.NewEntityUID("Action", "read"))
		}
		m[uid] = cedar.Entity{UID: uid, Parents: cedar.NewEntityUIDSet(parents...)}
	}
	return m
}

// Permissions lists every permission of the method table, and those that a
// method decides beside its own.
func Permissions() []fleet.Permission {
	seen := map[fleet.Permission]bool{fleet.PermMetalRetireForce: true}
	list := []fleet.Permission{fleet.PermMetalRetireForce}
	for _, m := range fleet.Methods {
		if m.Permission != "" && !seen[m.Permission] {
			seen[m.Permission] = true
			list = append(list, m.Permission)
		}
	}
	return list
}

// Allowed decides a request. A policy that fails to evaluate denies.
func (e *Engine) Allowed(r Request) bool {
	roles := func(list []fleet.Role) cedar.Set {
		v := make([]cedar.Value, len(list))
		for i, role := range list {
			v[i] = cedar.String(role)
		}
		return cedar.NewSet(v...)
	}
	decision, diagnostic := cedar.Authorize(e.set.Load(), e.entities, cedar.Request{
		Principal: cedar.NewEntityUID("Identity", cedar.String(r.Identity)),
		Action:    cedar.NewEntityUID("Action", cedar.String(r.Permission)),
		Resource:  cedar.NewEntityUID(cedar.EntityType(cedarType(r.Resource)), cedar.String(r.ResourceID)),
		Context: cedar.NewRecord(cedar.RecordMap{"relation": cedar.String(r.Relation),
			"roles": roles(r.Roles), "named": roles(r.Named)}),
	})
	return decision == cedar.Allow && len(diagnostic.Errors) == 0
}

// cedarType is the entity type of a resource: compute-node is Node.
func cedarType(r fleet.Resource) string {
	return map[fleet.Resource]string{fleet.OnTenant: "Tenant", fleet.OnNode: "Node", fleet.OnPool: "Pool", fleet.OnSite: "Site", fleet.OnOperation: "Operation",
		fleet.OnReservation: "Reservation", fleet.OnAllocation: "Allocation"}[r]
}
