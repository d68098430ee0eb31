package fleet

import "strings"

// MethodKind says what a method does to the world.
type MethodKind string

// The method kinds. An operation is a mutation that starts a workflow.
const (
	KindRead     MethodKind = "read"
	KindMutation MethodKind = "mutation"
)

// Resource is what a method is decided on.
type Resource string

// The resources.
const (
	OnTenant    Resource = "compute-tenant"
	OnNode      Resource = "compute-node"
	OnPool      Resource = "compute-pool"
	OnSite      Resource = "compute-site"
	OnOperation Resource = "compute-operation"
	// A reservation and an allocation are their tenant's own, also in a pool that
	// it is offered.
	OnReservation Resource = "compute-reservation"
	OnAllocation  Resource = "compute-allocation"
)

// Method is a row of the method table. Routes, validation, authorization,
// OpenAPI, CLI and the reference page are derived from it.
type Method struct {
	Group, Name string
	Kind        MethodKind
	Permission  Permission
	Resource    Resource
	// Items says that each listed item is decided on its own as well.
	Items bool
	// Verb is set on methods that the provision table judges.
	Verb Verb
	// OwnerOnly answers NOT_FOUND to every tenant but the pool's owner.
	OwnerOnly bool
	// DryRun says that the method takes dryRun.
	DryRun bool
	Module string
	Phase  string
	// In and Out are zero values of the input and output types, whose json,
	// validate and doc tags are the schema.
	In, Out any
	// Summary is one sentence; Doc says the rest.
	Summary, Doc string
	// Errors lists the codes the method can answer besides those every method
	// can (INVALID_INPUT, UNAUTHENTICATED, ACCESS_DENIED, RATE_LIMITED,
	// UNAVAILABLE, INTERNAL).
	Errors []Code
}

// Path is the method's URL path.
func (m Method) Path() string { return "/api/compute/" + m.Group + "/" + m.Name }

// FullName is group/name, the method's name in audit and logs.
func (m Method) FullName() string { return m.Group + "/" + m.Name }

// Methods is the method table.
var Methods = func() []Method {
	var all []Method
	for _, group := range [][]Method{nodesMethods, sshMethods, metalMethods, sitesMethods, poolsMethods, reservationsMethods, allocationsMethods, operationsMethods, accessMethods, identityMethods} {
		all = append(all, group...)
	}
	return all
}()

// FindMethod returns the row of group/name.
func FindMethod(group, name string) (Method, bool) {
	for _, m := range Methods {
		if m.Group == group && m.Name == name {
			return m, true
		}
	}
	return Method{}, false
}

// Kebab turns camelCase into kebab-case, as permissions and CLI commands are
// written.
func Kebab(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte('-')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// TenantIn is the input every method has.
type TenantIn struct {
	TenantID string `json:"tenantId" validate:"required,max=128,pattern=tenantId" doc:"The tenant on whose behalf the call is made."`
}

// NodeIn is the input of methods on one node.
type NodeIn struct {
	TenantIn
	NodeID string `json:"nodeId" validate:"required,max=64,pattern=nodeId" doc:"The node."`
}

// VersionIn is the optional precondition of mutations.
type VersionIn struct {
	Version *int64 `json:"version,omitempty" validate:"omitempty,min=1" doc:"The version the caller saw; CONFLICT when the node has moved past it."`
}

// ReasonIn is the optional reason of mutations.
type ReasonIn struct {
	Reason *string `json:"reason,omitempty" validate:"omitempty,max=256,pattern=reason" doc:"Why, for events and audit."`
}

// DryRunIn is the dry run of metal verbs.
type DryRunIn struct {
	DryRun bool `json:"dryRun,omitempty" doc:"Only check, and answer the plan: nothing is written, no BMC is asked."`
}

// PageIn is the paging of lists.
type PageIn struct {
	Limit  *int    `json:"limit,omitempty" validate:"omitempty,min=1,max=50" default:"50" doc:"Items a page."`
	Cursor *string `json:"cursor,omitempty" validate:"omitempty,max=256,pattern=listCursor" doc:"nextCursor of the page before."`
}
