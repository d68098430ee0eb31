package fleet

// WaitsSpec are waiting times in seconds; absent ones are the defaults of
// Waits.
type WaitsSpec struct {
	PowerChange *int `json:"powerChange,omitempty" validate:"omitempty,min=1,max=86400" doc:"Seconds for a power change to be seen."`
	CallIn      *int `json:"callIn,omitempty" validate:"omitempty,min=1,max=86400" doc:"Seconds for POST and the machine's call-in."`
	Image       *int `json:"image,omitempty" validate:"omitempty,min=1,max=86400" doc:"Seconds for writing an image."`
	ImageStall  *int `json:"imageStall,omitempty" validate:"omitempty,min=1,max=86400" doc:"Seconds an image's write may be without progress, and for each shorter command to a machine that booted our medium."`
	BMCAway     *int `json:"bmcAway,omitempty" validate:"omitempty,min=1,max=86400" doc:"Seconds a BMC may be away during an operation."`
	Report      *int `json:"report,omitempty" validate:"omitempty,min=1,max=86400" doc:"Seconds for an installed system's report, or its agent's session."`
}

// TimeoutsSpec are waiting times that a site sets, for all machines and by
// hardware model.
type TimeoutsSpec struct {
	WaitsSpec
	Models map[string]WaitsSpec `json:"models,omitempty" validate:"omitempty,max=64" doc:"The same by hardware model."`
}

// BootSpec is what a site offers for booting.
type BootSpec struct {
	PXE          bool `json:"pxe,omitempty" doc:"The site has its own DHCP and TFTP for bootVia: pxe."`
	InstallAgent bool `json:"installAgent,omitempty" doc:"Installed systems become their nodes: deploys give them a one-time token that nodeagent joins by."`
	// AgentURL is for images that do not hold nodeagent.
	AgentURL      string `json:"agentUrl,omitempty" validate:"omitempty,max=2048,pattern=httpURL" doc:"Where an installed system fetches nodeagent; absent, its image holds it."`
	AgentChecksum string `json:"agentChecksum,omitempty" validate:"omitempty,pattern=checksum" doc:"sha256: and the hex digest of the file at agentUrl, which needs it."`
}

// ConcurrencySpec bounds how many operations of a site are in a step at once.
type ConcurrencySpec struct {
	Power  *int `json:"power,omitempty" validate:"omitempty,min=1,max=100000" doc:"Power changes at once."`
	Deploy *int `json:"deploy,omitempty" validate:"omitempty,min=1,max=100000" doc:"Deploys at once."`
}

// SiteSpec is what a caller sets of a site.
type SiteSpec struct {
	Name              string                       `json:"name" validate:"required,max=63,pattern=dnsLabel" doc:"A DNS label, unique in the tenant."`
	AllowedNetworks   []string                     `json:"allowedNetworks" validate:"max=256,unique,dive,cidr" doc:"Networks in which BMCs of this site may be; empty allows none."`
	FirmwareBaseline  map[string]map[string]string `json:"firmwareBaseline,omitempty" validate:"omitempty,max=256" doc:"By hardware model: component to version."`
	Boot              *BootSpec                    `json:"boot,omitempty" doc:"What the site offers for booting."`
	Timeouts          *TimeoutsSpec                `json:"timeouts,omitempty" doc:"Waiting times in seconds."`
	GPUModelNames     map[string]string            `json:"gpuModelNames,omitempty" validate:"omitempty,max=256" doc:"GPU model names as seen, to their canonical ones."`
	GracefulSeconds   *int                         `json:"gracefulSeconds,omitempty" validate:"omitempty,min=0,max=3600" default:"120" doc:"How long a workflow asks a system to shut down before it forces."`
	MaxConcurrent     *ConcurrencySpec             `json:"maxConcurrent,omitempty" doc:"Operations beyond it wait in order."`
	Paused            bool                         `json:"paused,omitempty" doc:"Stops new destructive steps on every worker."`
	TokenOnlyJoin     bool                         `json:"tokenOnlyJoin,omitempty" doc:"Machines without a TPM may join by token alone."`
	JoinBindsEnrolled bool                         `json:"joinBindsEnrolled,omitempty" doc:"A join token may bind a key to an enrolled node."`
}

// SitesCreateIn is the input of sites/create.
type SitesCreateIn struct {
	TenantIn
	SiteSpec
}

// SiteIn names a site.
type SiteIn struct {
	TenantIn
	SiteID string `json:"siteId" validate:"required,max=64,pattern=siteId" doc:"The site."`
}

// SitesUpdateIn is the input of sites/update; absent members stay.
type SitesUpdateIn struct {
	SiteIn
	VersionIn
	Name              *string                      `json:"name,omitempty" validate:"omitempty,max=63,pattern=dnsLabel" doc:"New name."`
	AllowedNetworks   *[]string                    `json:"allowedNetworks,omitempty" validate:"omitempty,max=256,unique,dive,cidr" doc:"New networks."`
	FirmwareBaseline  map[string]map[string]string `json:"firmwareBaseline,omitempty" validate:"omitempty,max=256" doc:"New baseline."`
	Boot              *BootSpec                    `json:"boot,omitempty" doc:"New boot offers."`
	Timeouts          *TimeoutsSpec                `json:"timeouts,omitempty" doc:"New waiting times."`
	GPUModelNames     map[string]string            `json:"gpuModelNames,omitempty" validate:"omitempty,max=256" doc:"New names."`
	GracefulSeconds   *int                         `json:"gracefulSeconds,omitempty" validate:"omitempty,min=0,max=3600" doc:"New grace."`
	MaxConcurrent     *ConcurrencySpec             `json:"maxConcurrent,omitempty" doc:"New limits."`
	Paused            *bool                        `json:"paused,omitempty" doc:"Stop or go on."`
	TokenOnlyJoin     *bool                        `json:"tokenOnlyJoin,omitempty" doc:"Join without TPM."`
	JoinBindsEnrolled *bool                        `json:"joinBindsEnrolled,omitempty" doc:"Join binds enrolled nodes."`
}

// SiteOut is one site.
type SiteOut struct {
	Site Site `json:"site"`
}

// SitesListIn is the input of sites/list.
type SitesListIn struct {
	TenantIn
	PageIn
}

// SitesPage is a page of sites.
type SitesPage struct {
	Items      []Site `json:"items"`
	NextCursor string `json:"nextCursor,omitempty"`
}

var sitesMethods = []Method{
	{Group: "sites", Name: "create", Kind: KindMutation, Permission: PermSitesCreate, Resource: OnTenant, Module: "server", Phase: "v0.1",
		In: SitesCreateIn{}, Out: SiteOut{}, Errors: []Code{CodeConflict}, Summary: "Create a site."},
	{Group: "sites", Name: "get", Kind: KindRead, Permission: PermSitesRead, Resource: OnSite, Module: "server", Phase: "v0.1",
		In: SiteIn{}, Out: SiteOut{}, Errors: []Code{CodeNotFound}, Summary: "Show a site."},
	{Group: "sites", Name: "list", Kind: KindRead, Permission: PermSitesRead, Resource: OnTenant, Module: "server", Phase: "v0.1",
		In: SitesListIn{}, Out: SitesPage{}, Summary: "List the tenant's sites."},
	{Group: "sites", Name: "update", Kind: KindMutation, Permission: PermSitesUpdate, Resource: OnSite, Module: "server", Phase: "v0.1",
		In: SitesUpdateIn{}, Out: SiteOut{}, Errors: []Code{CodeNotFound, CodeConflict}, Summary: "Change a site; paused stops new destructive steps at once."},
}

// OperationIn names an operation.
type OperationIn struct {
	TenantIn
	OperationID string `json:"operationId" validate:"required,max=64,pattern=operationId" doc:"The operation."`
}

// OperationsGetIn is the input of operations/get.
type OperationsGetIn struct {
	OperationIn
	Evidence bool `json:"evidence,omitempty" doc:"Add the last BMC exchanges and the BMC's own log to a failed operation."`
}

// OperationsListIn is the input of operations/list.
type OperationsListIn struct {
	TenantIn
	State  *string `json:"state,omitempty" validate:"omitempty,oneof=pending running waiting failed succeeded aborted" doc:"Only operations in this state."`
	SiteID *string `json:"siteId,omitempty" validate:"omitempty,max=64,pattern=siteId" doc:"Only operations on nodes of this site."`
	PoolID *string `json:"poolId,omitempty" validate:"omitempty,max=128,pattern=poolRef" doc:"Only operations on nodes of this pool."`
	NodeID *string `json:"nodeId,omitempty" validate:"omitempty,max=64,pattern=nodeId" doc:"Only operations of this node."`
	PageIn
}

// OperationsWaitIn is the input of operations/wait.
type OperationsWaitIn struct {
	OperationIn
	TimeoutSeconds int `json:"timeoutSeconds" validate:"required,min=1,max=60" doc:"How long to wait for an end or a change of state."`
}

// OperationOut is one operation.
type OperationOut struct {
	Operation Operation `json:"operation"`
}

// OperationsPage is a page of operations.
type OperationsPage struct {
	Items      []Operation `json:"items"`
	NextCursor string      `json:"nextCursor,omitempty"`
}

var operationsMethods = []Method{
	{Group: "operations", Name: "get", Kind: KindRead, Permission: PermOperationsRead, Resource: OnOperation, Module: "server", Phase: "v0.1",
		In: OperationsGetIn{}, Out: OperationOut{}, Errors: []Code{CodeNotFound}, Summary: "Show an operation with its steps."},
	{Group: "operations", Name: "list", Kind: KindRead, Permission: PermOperationsRead, Resource: OnTenant, Items: true, Module: "server", Phase: "v0.1",
		In: OperationsListIn{}, Out: OperationsPage{}, Summary: "List operations, newest first."},
	{Group: "operations", Name: "wait", Kind: KindRead, Permission: PermOperationsRead, Resource: OnOperation, Module: "server", Phase: "v0.1",
		In: OperationsWaitIn{}, Out: OperationOut{}, Errors: []Code{CodeNotFound}, Summary: "Wait until an operation ends or its state changes."},
}

// AccessGrantIn is the input of access/grant.
type AccessGrantIn struct {
	TenantIn
	Identity string `json:"identity" validate:"required,max=289,pattern=identity" doc:"<issuer alias>:<subject>, or svc:<id>."`
	Role     string `json:"role" validate:"required,oneof=viewer operator provisioner owner break-glass" doc:"The role."`
	On       On     `json:"on" validate:"required" doc:"What it is bound on; exactly one."`
}

// BindingOut is one binding.
type BindingOut struct {
	Binding Binding `json:"binding"`
}

// AccessRevokeIn is the input of access/revoke.
type AccessRevokeIn struct {
	TenantIn
	BindingID string `json:"bindingId" validate:"required,max=64,pattern=bindingId" doc:"The binding."`
}

// AccessListIn is the input of access/list.
type AccessListIn struct {
	TenantIn
	Identity *string `json:"identity,omitempty" validate:"omitempty,max=289" doc:"Only bindings of this identity."`
	PageIn
}

// BindingsPage is a page of bindings.
type BindingsPage struct {
	Items      []Binding `json:"items"`
	NextCursor string    `json:"nextCursor,omitempty"`
}

// AccessAuditIn is the input of access/audit.
type AccessAuditIn struct {
	TenantIn
	NodeID   *string `json:"nodeId,omitempty" validate:"omitempty,max=64,pattern=nodeId" doc:"Only calls on this node."`
	Identity *string `json:"identity,omitempty" validate:"omitempty,max=289" doc:"Only calls of this identity."`
	PageIn
}

// AuditPage is a page of the audit, newest first.
type AuditPage struct {
	Items      []AuditEntry `json:"items"`
	NextCursor string       `json:"nextCursor,omitempty"`
}

// AccessIssueTokenIn is the input of access/issueToken.
type AccessIssueTokenIn struct {
	TenantIn
	Name       string `json:"name" validate:"required,max=63,pattern=dnsLabel" doc:"What the token is for."`
	Role       string `json:"role" validate:"required,oneof=viewer operator provisioner owner" doc:"The token's role."`
	On         On     `json:"on" validate:"required" doc:"What the role is bound on; exactly one."`
	TTLSeconds int64  `json:"ttlSeconds" validate:"required,min=60,max=7776000" doc:"The token's life, at most 90 days."`
}

// ServiceTokenSecretOut is a new token with its secret, which is shown once.
type ServiceTokenSecretOut struct {
	ServiceToken ServiceToken `json:"serviceToken"`
	Secret       string       `json:"secret" secret:"true"`
}

// AccessListTokensIn is the input of access/listTokens.
type AccessListTokensIn struct {
	TenantIn
	PageIn
}

// ServiceTokensPage is a page of service tokens.
type ServiceTokensPage struct {
	Items      []ServiceToken `json:"items"`
	NextCursor string         `json:"nextCursor,omitempty"`
}

// AccessRevokeTokenIn is the input of access/revokeToken.
type AccessRevokeTokenIn struct {
	TenantIn
	ServiceTokenID string `json:"serviceTokenId" validate:"required,max=64,pattern=serviceTokenId" doc:"The token."`
}

// ServiceTokenOut is one service token.
type ServiceTokenOut struct {
	ServiceToken ServiceToken `json:"serviceToken"`
}

var accessMethods = []Method{
	{Group: "access", Name: "grant", Kind: KindMutation, Permission: PermAccessGrant, Resource: OnTenant, Module: "server", Phase: "v0.1",
		In: AccessGrantIn{}, Out: BindingOut{}, Errors: []Code{CodeNotFound, CodeConflict}, Summary: "Bind a role to an identity on a tenant, a pool or a node."},
	{Group: "access", Name: "revoke", Kind: KindMutation, Permission: PermAccessRevoke, Resource: OnTenant, Module: "server", Phase: "v0.1",
		In: AccessRevokeIn{}, Out: BindingOut{}, Errors: []Code{CodeNotFound}, Summary: "Take a binding back."},
	{Group: "access", Name: "list", Kind: KindRead, Permission: PermAccessRead, Resource: OnTenant, Module: "server", Phase: "v0.1",
		In: AccessListIn{}, Out: BindingsPage{}, Summary: "List the tenant's bindings."},
	{Group: "access", Name: "audit", Kind: KindRead, Permission: PermAccessRead, Resource: OnTenant, Module: "server", Phase: "v0.1",
		In: AccessAuditIn{}, Out: AuditPage{}, Summary: "Read the audit, newest first."},
	{Group: "access", Name: "issueToken", Kind: KindMutation, Permission: PermAccessIssueToken, Resource: OnTenant, Module: "server", Phase: "v0.1",
		In: AccessIssueTokenIn{}, Out: ServiceTokenSecretOut{}, Errors: []Code{CodeNotFound, CodeConflict}, Summary: "Issue a service token; its secret is shown once."},
	{Group: "access", Name: "listTokens", Kind: KindRead, Permission: PermAccessRead, Resource: OnTenant, Module: "server", Phase: "v0.1",
		In: AccessListTokensIn{}, Out: ServiceTokensPage{}, Summary: "List the tenant's service tokens."},
	{Group: "access", Name: "revokeToken", Kind: KindMutation, Permission: PermAccessRevokeToken, Resource: OnTenant, Module: "server", Phase: "v0.1",
		In: AccessRevokeTokenIn{}, Out: ServiceTokenOut{}, Errors: []Code{CodeNotFound}, Summary: "Revoke a service token."},
}
