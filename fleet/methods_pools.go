package fleet

// PoolPolicy is a pool's policy.
type PoolPolicy struct {
	MaxReservationHours *int   `json:"maxReservationHours,omitempty" validate:"omitempty,min=1,max=8760" doc:"Longest reservation."`
	EraseOnRelease      string `json:"eraseOnRelease,omitempty" validate:"omitempty,oneof=none metadata full" doc:"The least erase a release does."`
	Placement           string `json:"placement,omitempty" validate:"omitempty,oneof=spread pack" default:"spread" doc:"How nodes are chosen."`
}

// PoolsCreateIn is the input of pools/create.
type PoolsCreateIn struct {
	TenantIn
	SiteID      string      `json:"siteId" validate:"required,max=64,pattern=siteId" doc:"The site."`
	Name        string      `json:"name" validate:"required,max=63,pattern=dnsLabel" doc:"A DNS label, unique in the tenant."`
	GPUModel    string      `json:"gpuModel" validate:"required,min=1,max=128,pattern=reason" doc:"The GPU model of every node."`
	GPUsPerNode *int        `json:"gpusPerNode,omitempty" validate:"omitempty,min=0,max=1024" doc:"GPUs of every node."`
	SharingMode string      `json:"sharingMode,omitempty" validate:"omitempty,oneof=exclusive shared" default:"exclusive" doc:"shared is UNSUPPORTED in this release."`
	Policy      *PoolPolicy `json:"policy,omitempty" doc:"The pool's policy."`
}

// PoolIn names a pool.
type PoolIn struct {
	TenantIn
	PoolID string `json:"poolId" validate:"required,max=128,pattern=poolRef" doc:"The pool."`
}

// PoolsListIn is the input of pools/list.
type PoolsListIn struct {
	TenantIn
	SiteID *string `json:"siteId,omitempty" validate:"omitempty,max=64,pattern=siteId" doc:"Only pools of this site."`
	State  *string `json:"state,omitempty" validate:"omitempty,oneof=active archived" doc:"Only pools in this state."`
	PageIn
}

// PoolsPage is a page of pools.
type PoolsPage struct {
	Items      []Pool `json:"items"`
	NextCursor string `json:"nextCursor,omitempty"`
}

// PoolOut is one pool.
type PoolOut struct {
	Pool Pool `json:"pool"`
}

// PoolNodeIn puts a node into a pool or takes it out.
type PoolNodeIn struct {
	PoolIn
	NodeID string `json:"nodeId" validate:"required,max=64,pattern=nodeId" doc:"The node."`
	VersionIn
	ReasonIn
}

// PoolPolicyChange are the members of a pool's policy to change; absent ones
// stay.
type PoolPolicyChange struct {
	MaxReservationHours *int    `json:"maxReservationHours,omitempty" validate:"omitempty,min=1,max=8760" doc:"Longest reservation."`
	EraseOnRelease      *string `json:"eraseOnRelease,omitempty" validate:"omitempty,oneof=none metadata full" doc:"The least erase a release does."`
	Placement           *string `json:"placement,omitempty" validate:"omitempty,oneof=spread pack" doc:"How nodes are chosen."`
}

// PoolVersionIn names a pool as the caller saw it: two people who change one
// pool must not undo each other's changes unseen.
type PoolVersionIn struct {
	PoolIn
	Version int64 `json:"version" validate:"required,min=1" doc:"The version the caller saw; CONFLICT when the pool has moved past it."`
	ReasonIn
}

// PoolsUpdateIn is the input of pools/update; absent members stay.
type PoolsUpdateIn struct {
	PoolVersionIn
	Name        *string           `json:"name,omitempty" validate:"omitempty,max=63,pattern=dnsLabel" doc:"New name."`
	GPUModel    *string           `json:"gpuModel,omitempty" validate:"omitempty,min=1,max=128,pattern=reason" doc:"New GPU model; every node of the pool has to fit."`
	GPUsPerNode *int              `json:"gpusPerNode,omitempty" validate:"omitempty,min=0,max=1024" doc:"New count of GPUs of every node, 0 for any; every node of the pool has to fit."`
	Policy      *PoolPolicyChange `json:"policy,omitempty" doc:"Members of the policy to change."`
}

// PoolOfferIn names a pool and a tenant other than its owner.
type PoolOfferIn struct {
	PoolIn
	ToTenantID string `json:"toTenantId" validate:"required,max=128,pattern=tenantId" doc:"The tenant that is to use the pool."`
	ReasonIn
}

// PoolsOfferIn is the input of pools/offer.
type PoolsOfferIn struct {
	PoolOfferIn
	Quota Quota `json:"quota" validate:"required" doc:"What the tenant may hold."`
	Force bool  `json:"force,omitempty" doc:"Take a quota below what the tenant holds: it keeps that and gets no more until it is below."`
}

var poolsMethods = []Method{
	{Group: "pools", Name: "create", Kind: KindMutation, Permission: PermPoolsCreate, Resource: OnTenant, Module: "server", Phase: "v0.1",
		In: PoolsCreateIn{}, Out: PoolOut{}, Errors: []Code{CodeNotFound, CodeConflict, CodeUnsupported}, Summary: "Create a pool; the tenant owns it."},
	{Group: "pools", Name: "get", Kind: KindRead, Permission: PermPoolsRead, Resource: OnPool, Module: "server", Phase: "v0.1",
		In: PoolIn{}, Out: PoolOut{}, Errors: []Code{CodeNotFound}, Summary: "Show a pool."},
	{Group: "pools", Name: "list", Kind: KindRead, Permission: PermPoolsRead, Resource: OnTenant, Module: "server", Phase: "v0.1",
		In: PoolsListIn{}, Out: PoolsPage{}, Summary: "List the pools a tenant owns or is offered."},
	{Group: "pools", Name: "addNode", Kind: KindMutation, Permission: PermPoolsAddNode, Resource: OnPool, OwnerOnly: true, Module: "server", Phase: "v0.1",
		In: PoolNodeIn{}, Out: MetalOut{}, Errors: verbErrors, Summary: "Put a node into a pool of its site and tenant."},
	{Group: "pools", Name: "removeNode", Kind: KindMutation, Permission: PermPoolsRemoveNode, Resource: OnPool, OwnerOnly: true, Module: "server", Phase: "v0.1",
		In: PoolNodeIn{}, Out: MetalOut{}, Errors: verbErrors, Summary: "Take a node out of a pool."},
	{Group: "pools", Name: "update", Kind: KindMutation, Permission: PermPoolsUpdate, Resource: OnPool, OwnerOnly: true, Module: "server", Phase: "v0.1",
		In: PoolsUpdateIn{}, Out: PoolOut{}, Errors: verbErrors, Summary: "Change a pool's name, GPU model or policy."},
	{Group: "pools", Name: "archive", Kind: KindMutation, Permission: PermPoolsArchive, Resource: OnPool, OwnerOnly: true, Module: "server", Phase: "v0.1",
		In: PoolVersionIn{}, Out: PoolOut{}, Errors: verbErrors, Summary: "Close an empty pool for good; queued allocations are cancelled.",
		Doc: "INVALID_STATE while the pool has nodes, open reservations or live allocations, which it names."},
	{Group: "pools", Name: "offer", Kind: KindMutation, Permission: PermPoolsOffer, Resource: OnPool, OwnerOnly: true, Module: "server", Phase: "v0.1",
		In: PoolsOfferIn{}, Out: PoolOut{}, Errors: verbErrors, Summary: "Offer a pool to another tenant with a quota; a second offer replaces the quota.",
		Doc: "A quota below what the tenant holds and has reserved is INVALID_STATE unless force is given, which keeps what is held and admits no more."},
	{Group: "pools", Name: "unoffer", Kind: KindMutation, Permission: PermPoolsUnoffer, Resource: OnPool, OwnerOnly: true, Module: "server", Phase: "v0.1",
		In: PoolOfferIn{}, Out: PoolOut{}, Errors: verbErrors, Summary: "Take an offer back; the tenant's queued allocations are cancelled.",
		Doc: "INVALID_STATE while the tenant holds allocations or open reservations in the pool, which it names."},
}
