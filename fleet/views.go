package fleet

// The views are what leaves the API (spec api.md, "Shape"). Absent members are
// left out, never null.

// Failure is why a node is failed.
type Failure struct {
	From   ProvisionState `json:"from"`
	Step   string         `json:"step"`
	Cause  string         `json:"cause,omitempty"`
	Remedy string         `json:"remedy,omitempty"`
	At     Time           `json:"at"`
}

// Session is the node's connection to a gateway.
type Session struct {
	Epoch          int64  `json:"epoch"`
	Gateway        string `json:"gateway"`
	ConnectedAt    Time   `json:"connectedAt"`
	LastSeenAt     Time   `json:"lastSeenAt"`
	DisconnectedAt *Time  `json:"disconnectedAt,omitempty"`
}

// NodeOperations names the node's present operations.
type NodeOperations struct {
	// Provision is the live one, else the parked one.
	Provision string `json:"provision,omitempty"`
	Drain     string `json:"drain,omitempty"`
}

// Node is a node as its tenant sees it.
type Node struct {
	ID                 string            `json:"id"`
	TenantID           string            `json:"tenantId"`
	SiteID             string            `json:"siteId"`
	PoolID             string            `json:"poolId,omitempty"`
	Name               string            `json:"name,omitempty"`
	ProvisionState     ProvisionState    `json:"provisionState"`
	Failed             *Failure          `json:"failed,omitempty"`
	Cordoned           bool              `json:"cordoned"`
	CordonReason       string            `json:"cordonReason,omitempty"`
	NoScheduleReasons  []string          `json:"noScheduleReasons"`
	Labels             map[string]string `json:"labels"`
	Conditions         []Condition       `json:"conditions"`
	Session            *Session          `json:"session,omitempty"`
	IdentityGeneration int64             `json:"identityGeneration"`
	Guarded            bool              `json:"guarded"`
	Hold               *Hold             `json:"hold,omitempty"`
	Operations         *NodeOperations   `json:"operations,omitempty"`
	Version            int64             `json:"version"`
	CreatedAt          Time              `json:"createdAt"`
	UpdatedAt          Time              `json:"updatedAt"`
}

// BMCTLSView is a BMC's trust without its CA's text.
type BMCTLSView struct {
	Mode        string `json:"mode"`
	Fingerprint string `json:"fingerprint,omitempty"`
	// Shown is the certificate that the BMC shows instead of the pinned one,
	// until it is accepted or gone.
	Shown string `json:"shown,omitempty"`
	CASet bool   `json:"caSet"`
}

// BMCView is a node's BMC without credentials.
type BMCView struct {
	Address        string      `json:"address"`
	Driver         string      `json:"driver"`
	TLS            BMCTLSView  `json:"tls"`
	CredentialsSet bool        `json:"credentialsSet"`
	Username       string      `json:"username"`
	Identity       BMCIdentity `json:"identity"`
	// ShownIdentity is the other machine that the BMC shows instead of the
	// enrolled one, until it is accepted or gone.
	ShownIdentity *BMCIdentity `json:"shownIdentity,omitempty"`
	Capabilities  Capabilities `json:"capabilities"`
	Quirks        []string     `json:"quirks"`
	Reachable     bool         `json:"reachable"`
	LastError     string       `json:"lastError,omitempty"`
	CheckedAt     *Time        `json:"checkedAt,omitempty"`
}

// PowerView is the power state as last read.
type PowerView struct {
	State string `json:"state"`
	At    Time   `json:"at"`
}

// ImageView is the image last deployed, without the query of its URL.
type ImageView struct {
	URL      string `json:"url"`
	Checksum string `json:"checksum"`
	Format   string `json:"format"`
	// Verified says whether the machine checked the whole image's checksum.
	Verified   bool  `json:"verified"`
	DeployedAt *Time `json:"deployedAt,omitempty"`
	// Confirmed is what confirmed the boot: report, session or boot.
	Confirmed string `json:"confirmed,omitempty"`
}

// MetalNode is a node with its hardware.
type MetalNode struct {
	Node
	BMC         *BMCView   `json:"bmc,omitempty"`
	Power       *PowerView `json:"power,omitempty"`
	Inventory   *Inventory `json:"inventory,omitempty"`
	InspectedAt *Time      `json:"inspectedAt,omitempty"`
	Image       *ImageView `json:"image,omitempty"`
	EraseOwed   bool       `json:"eraseOwed"`
	// MaybeInUse is true while the machine is presumed to run somebody's work.
	MaybeInUse bool `json:"maybeInUse"`
	// SkippedDisks are disks that left without an erase, which stays shown.
	SkippedDisks []DiskErase `json:"skippedDisks,omitempty"`
}

// StepState is where a step of an operation is.
type StepState string

// The step states.
const (
	StepPending StepState = "pending"
	StepRunning StepState = "running"
	StepDone    StepState = "done"
	StepFailed  StepState = "failed"
	StepSkipped StepState = "skipped"
)

// Step is one step of an operation.
type Step struct {
	Name      string    `json:"name"`
	State     StepState `json:"state"`
	StartedAt *Time     `json:"startedAt,omitempty"`
	EndedAt   *Time     `json:"endedAt,omitempty"`
	Attempts  int       `json:"attempts"`
	Detail    string    `json:"detail,omitempty"`
}

// WaitingFor says on whom and what an operation waits.
type WaitingFor struct {
	Actor    string   `json:"actor"`
	What     string   `json:"what"`
	Since    Time     `json:"since"`
	Deadline *Time    `json:"deadline,omitempty"`
	Then     string   `json:"then"`
	YouCan   []string `json:"youCan"`
}

// OperationError is why an operation failed.
type OperationError struct {
	Code   string `json:"code"`
	Step   string `json:"step"`
	Cause  string `json:"cause"`
	Remedy string `json:"remedy"`
}

// Operation is one run of a verb on a node.
type Operation struct {
	ID          string          `json:"id"`
	NodeID      string          `json:"nodeId"`
	Verb        Verb            `json:"verb"`
	State       OperationState  `json:"state"`
	Steps       []Step          `json:"steps"`
	Percent     *int            `json:"percent,omitempty"`
	ExpectedEnd *Time           `json:"expectedEnd,omitempty"`
	WaitingFor  *WaitingFor     `json:"waitingFor,omitempty"`
	Error       *OperationError `json:"error,omitempty"`
	LeftBehind  []string        `json:"leftBehind,omitempty"`
	Next        string          `json:"next,omitempty"`
	WorkflowID  string          `json:"workflowId"`
	RunID       string          `json:"runId,omitempty"`
	RequestedBy string          `json:"requestedBy"`
	CreatedAt   Time            `json:"createdAt"`
	EndedAt     *Time           `json:"endedAt,omitempty"`
	// Evidence is given by operations/get with evidence: true.
	Evidence *Evidence `json:"evidence,omitempty"`
}

// Evidence is what a failure left to look at.
type Evidence struct {
	Exchanges []any `json:"exchanges"`
	BMCLog    []any `json:"bmcLog"`
}

// Event is something that happened.
type Event struct {
	Cursor   string         `json:"cursor"`
	Type     string         `json:"type"`
	NodeID   string         `json:"nodeId,omitempty"`
	At       Time           `json:"at"`
	Actor    string         `json:"actor"`
	TenantID string         `json:"tenantId"`
	Version  int64          `json:"version,omitempty"`
	Data     map[string]any `json:"data"`
}

// Site is a place with its own networks and limits.
type Site struct {
	ID       string `json:"id"`
	TenantID string `json:"tenantId"`
	SiteSpec
	Version   int64 `json:"version"`
	CreatedAt Time  `json:"createdAt"`
	UpdatedAt Time  `json:"updatedAt"`
}

// GPUCount is a pool's GPUs.
type GPUCount struct {
	Total int `json:"total"`
	Free  int `json:"free"`
}

// Quota bounds what a tenant may hold in a pool.
type Quota struct {
	GPUs int `json:"gpus" validate:"required,min=0,max=1000000" doc:"GPUs the tenant may hold at once, its reservations over their time among them."`
}

// Offer is a pool offered to a tenant. Used are the GPUs that it holds without a
// reservation, and those of its reservations whose time it is.
type Offer struct {
	TenantID string `json:"tenantId"`
	Quota    Quota  `json:"quota"`
	Used     int    `json:"used"`
}

// Pool groups nodes of one site under one GPU model and one policy.
type Pool struct {
	ID          string     `json:"id"`
	TenantID    string     `json:"tenantId"`
	SiteID      string     `json:"siteId"`
	Name        string     `json:"name"`
	GPUModel    string     `json:"gpuModel"`
	GPUsPerNode int        `json:"gpusPerNode,omitempty"`
	SharingMode string     `json:"sharingMode"`
	Policy      PoolPolicy `json:"policy"`
	State       string     `json:"state"`
	GPUs        GPUCount   `json:"gpus"`
	Offers      []Offer    `json:"offers,omitempty"`
	Quota       *Quota     `json:"quota,omitempty"`
	Used        *int       `json:"used,omitempty"`
	Version     int64      `json:"version"`
	CreatedAt   Time       `json:"createdAt"`
	UpdatedAt   Time       `json:"updatedAt"`
}

// On names what a role is bound on: exactly one member is set.
type On struct {
	TenantID string `json:"tenantId,omitempty" validate:"omitempty,pattern=tenantId" doc:"The tenant."`
	PoolID   string `json:"poolId,omitempty" validate:"omitempty,pattern=poolRef" doc:"A pool of the tenant."`
	NodeID   string `json:"nodeId,omitempty" validate:"omitempty,pattern=nodeId" doc:"A node the tenant sees."`
}

// Binding is a role given to an identity.
type Binding struct {
	ID        string `json:"id"`
	Identity  string `json:"identity"`
	Role      string `json:"role"`
	On        On     `json:"on"`
	GrantedBy string `json:"grantedBy"`
	CreatedAt Time   `json:"createdAt"`
}

// ServiceToken is a token of a program, without its secret.
type ServiceToken struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	ExpiresAt Time   `json:"expiresAt"`
	RevokedAt *Time  `json:"revokedAt,omitempty"`
	CreatedBy string `json:"createdBy"`
	CreatedAt Time   `json:"createdAt"`
}

// AuditEntry is one judged call.
type AuditEntry struct {
	At        Time   `json:"at"`
	Identity  string `json:"identity"`
	Method    string `json:"method"`
	NodeID    string `json:"nodeId,omitempty"`
	Resource  string `json:"resource,omitempty"`
	Outcome   string `json:"outcome"`
	Reason    string `json:"reason,omitempty"`
	DryRun    bool   `json:"dryRun,omitempty"`
	RequestID string `json:"requestId"`
}

// PlanStep is one step that a dry run would take.
type PlanStep struct {
	Name        string `json:"name"`
	Destructive bool   `json:"destructive"`
	// ExpectedSeconds is absent under five samples.
	ExpectedSeconds int `json:"expected,omitempty"`
}

// Plan is what a dry run answers.
type Plan struct {
	Steps   []PlanStep     `json:"steps"`
	WouldBe ProvisionState `json:"wouldBe"`
}
