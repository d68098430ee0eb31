package fleet

// NodesListIn is the input of nodes/list.
type NodesListIn struct {
	TenantIn
	PoolID         *string `json:"poolId,omitempty" validate:"omitempty,max=128,pattern=poolRef" doc:"Only nodes of this pool."`
	SiteID         *string `json:"siteId,omitempty" validate:"omitempty,max=64,pattern=siteId" doc:"Only nodes of this site."`
	Cordoned       *bool   `json:"cordoned,omitempty" doc:"Only nodes that are, or are not, cordoned."`
	ProvisionState *string `json:"provisionState,omitempty" validate:"omitempty,oneof=adopting adopted enrolling inspecting commissioning ready deploying deployed releasing rescue failed retiring retired" doc:"Only nodes in this state."`
	PageIn
}

// NodesPage is a page of nodes.
type NodesPage struct {
	Items      []Node `json:"items"`
	NextCursor string `json:"nextCursor,omitempty"`
}

// NodeOut is one node.
type NodeOut struct {
	Node Node `json:"node"`
}

// NodesGetIn is the input of nodes/get.
type NodesGetIn struct{ NodeIn }

// NodesEventsIn is the input of nodes/events.
type NodesEventsIn struct {
	NodeIn
	Type   *string `json:"type,omitempty" validate:"omitempty,max=64,pattern=eventType" doc:"Only events whose type starts with this."`
	Limit  *int    `json:"limit,omitempty" validate:"omitempty,min=1,max=200" default:"100" doc:"Events a page."`
	Cursor *string `json:"cursor,omitempty" validate:"omitempty,max=41,pattern=eventCursor" doc:"Cursor of the last event seen."`
}

// EventsPage is a page of events.
type EventsPage struct {
	Items      []Event `json:"items"`
	NextCursor string  `json:"nextCursor,omitempty"`
	// Gap says that retention removed events after the caller's cursor, which
	// this page therefore does not hold.
	Gap bool `json:"gap,omitempty"`
}

// NodeChangeIn is the input of cordon, uncordon and their like.
type NodeChangeIn struct {
	NodeIn
	VersionIn
	ReasonIn
}

// RevokedIdentityOut is a node whose identity was revoked.
type RevokedIdentityOut struct {
	Node Node `json:"node"`
	// RevokedCertificates is how many certificates were live.
	RevokedCertificates int `json:"revokedCertificates"`
}

// DeletedOut says whether this call deleted the node; false is a repeat.
type DeletedOut struct {
	Deleted bool `json:"deleted"`
}

// NodesLabelIn is the input of nodes/label.
type NodesLabelIn struct {
	NodeIn
	Set    map[string]string `json:"set,omitempty" validate:"omitempty,max=64,dive,keys,pattern=labelKey,endkeys" doc:"Labels to set."`
	Remove []string          `json:"remove,omitempty" validate:"omitempty,max=64,unique" doc:"Keys of operator labels to remove."`
	VersionIn
}

// NodesTaintIn is the input of nodes/taint.
type NodesTaintIn struct {
	NodeIn
	Add    []string `json:"add,omitempty" validate:"omitempty,max=32,unique,dive,min=1" doc:"Taint keys to add."`
	Remove []string `json:"remove,omitempty" validate:"omitempty,max=32,unique,dive,min=1" doc:"Taint keys to remove."`
	VersionIn
}

var nodesMethods = []Method{
	{Group: "nodes", Name: "list", Kind: KindRead, Permission: PermNodesRead, Resource: OnTenant, Items: true,
		Module: "server", Phase: "v0.1", In: NodesListIn{}, Out: NodesPage{},
		Summary: "List the nodes a tenant sees, in id order.",
		Doc:     "Each node is decided on its own after the tenant; a page can hold fewer than limit items and still have a nextCursor."},
	{Group: "nodes", Name: "get", Kind: KindRead, Permission: PermNodesRead, Resource: OnNode,
		Module: "server", Phase: "v0.1", In: NodesGetIn{}, Out: NodeOut{}, Errors: []Code{CodeNotFound},
		Summary: "Show one node with its labels, conditions and session."},
	{Group: "nodes", Name: "events", Kind: KindRead, Permission: PermNodesRead, Resource: OnNode,
		Module: "server", Phase: "v0.1", In: NodesEventsIn{}, Out: EventsPage{}, Errors: []Code{CodeNotFound},
		Summary: "List a node's events, oldest first."},
	{Group: "nodes", Name: "cordon", Kind: KindMutation, Permission: PermNodesCordon, Resource: OnNode,
		Module: "server", Phase: "v0.1", In: NodeChangeIn{}, Out: NodeOut{}, Errors: []Code{CodeNotFound, CodeConflict},
		Summary: "Keep new work off a node; what runs on it stays."},
	{Group: "nodes", Name: "uncordon", Kind: KindMutation, Permission: PermNodesCordon, Resource: OnNode,
		Module: "server", Phase: "v0.1", In: NodeChangeIn{}, Out: NodeOut{}, Errors: []Code{CodeNotFound, CodeConflict},
		Summary: "Make a node placeable again and end a drain in progress."},
	{Group: "nodes", Name: "drain", Kind: KindMutation, Permission: PermNodesDrain, Resource: OnNode,
		Module: "server", Phase: "v0.1", In: NodeChangeIn{}, Out: NodeOut{}, Errors: []Code{CodeNotFound, CodeConflict},
		Summary: "Cordon a node and wait until no allocation holds it.",
		Doc:     "It releases nothing. While it waits its operation names the allocations, their holders and their ends; then node.drained is published and the node stays cordoned until nodes/uncordon."},
	{Group: "nodes", Name: "label", Kind: KindMutation, Permission: PermNodesUpdate, Resource: OnNode,
		Module: "server", Phase: "v0.1", In: NodesLabelIn{}, Out: NodeOut{}, Errors: []Code{CodeNotFound, CodeConflict},
		Summary: "Set and remove operator labels.",
		Doc:     "Keys that inventory or the system owns (inventory/, system/) cannot be set; remove touches operator labels only."},
	{Group: "nodes", Name: "taint", Kind: KindMutation, Permission: PermNodesUpdate, Resource: OnNode,
		Module: "server", Phase: "v0.1", In: NodesTaintIn{}, Out: NodeOut{}, Errors: []Code{CodeNotFound, CodeConflict},
		Summary: "Add and remove operator taints, shown in noScheduleReasons as taint:<key>."},
	{Group: "nodes", Name: "adopt", Kind: KindMutation, Permission: PermNodesProvision, Resource: OnNode,
		Module: "server", Phase: "v0.1", In: NodeChangeIn{}, Out: NodeOut{}, Errors: []Code{CodeNotFound, CodeConflict, CodeInvalidState},
		Summary: "Run the acceptance checks of an adopted host again.",
		Doc: "The node is adopting, and out of placement, until its agent has run the checks and all of them passed; live allocations stay.\n" +
			"A run that is live is superseded. Each check is a condition of the node; a run that does not pass leaves it adopting."},
	{Group: "nodes", Name: "revokeIdentity", Kind: KindMutation, Permission: PermNodesRevokeIdentity, Resource: OnNode,
		Module: "server", Phase: "v0.1", In: NodeChangeIn{}, Out: RevokedIdentityOut{}, Errors: []Code{CodeNotFound, CodeConflict},
		Summary: "Revoke every live certificate of a node; its machine comes back only by joining again.",
		Doc:     "The identity generation rises with each call, so that no certificate of an old one can renew. Sessions end within seconds on every gateway."},
	{Group: "nodes", Name: "delete", Kind: KindMutation, Permission: PermNodesDelete, Resource: OnNode, Verb: VerbDelete,
		Module: "server", Phase: "v0.2", In: NodeChangeIn{}, Out: DeletedOut{}, Errors: []Code{CodeNotFound, CodeConflict, CodeInvalidState},
		Summary: "Delete a node that is retired, adopting or enrolling, or adopted and cordoned, and that nothing holds.",
		Doc:     "Its machine can join or be enrolled again as a new node. What is live of it ends. A repeat answers deleted: false to those who saw the node and may delete it."},
}
