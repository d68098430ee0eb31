package fleet

// ReservationsCreateIn is the input of reservations/create.
type ReservationsCreateIn struct {
	PoolIn
	GPUs int  `json:"gpus" validate:"required,min=1,max=1000000" doc:"How many GPUs are set aside."`
	From Time `json:"from" validate:"required" doc:"When it begins; a time that has passed is now."`
	To   Time `json:"to" validate:"required" doc:"When it ends; what is allocated under it ends then too."`
}

// ReservationIn names a reservation.
type ReservationIn struct {
	TenantIn
	ReservationID string `json:"reservationId" validate:"required,max=64,pattern=reservationId" doc:"The reservation."`
}

// ReservationsCancelIn is the input of reservations/cancel.
type ReservationsCancelIn struct {
	ReservationIn
	ReasonIn
}

// ReservationOut is one reservation.
type ReservationOut struct {
	Reservation Reservation `json:"reservation"`
}

// ReservationsListIn is the input of reservations/list.
type ReservationsListIn struct {
	TenantIn
	State  *string `json:"state,omitempty" validate:"omitempty,oneof=open ended cancelled" doc:"Only reservations in this state."`
	PoolID *string `json:"poolId,omitempty" validate:"omitempty,max=128,pattern=poolRef" doc:"Only reservations in this pool."`
	PageIn
}

// ReservationsPage is a page of reservations.
type ReservationsPage struct {
	Items      []Reservation `json:"items"`
	NextCursor string        `json:"nextCursor,omitempty"`
}

var reservationsMethods = []Method{
	{Group: "reservations", Name: "create", Kind: KindMutation, Permission: PermReservationsCreate, Resource: OnPool, Module: "server", Phase: "v0.1",
		In: ReservationsCreateIn{}, Out: ReservationOut{}, Errors: verbErrors, Summary: "Set GPUs of a pool aside for a time.",
		Doc: "It counts against the tenant's quota over its time; allocations under it do not count again. A pool that cannot hold it is UNAVAILABLE, reason no-capacity."},
	{Group: "reservations", Name: "get", Kind: KindRead, Permission: PermReservationsRead, Resource: OnReservation, Module: "server", Phase: "v0.1",
		In: ReservationIn{}, Out: ReservationOut{}, Errors: []Code{CodeNotFound}, Summary: "Show a reservation."},
	{Group: "reservations", Name: "list", Kind: KindRead, Permission: PermReservationsRead, Resource: OnTenant, Items: true, Module: "server", Phase: "v0.1",
		In: ReservationsListIn{}, Out: ReservationsPage{}, Summary: "List the tenant's reservations, and those in pools that it owns."},
	{Group: "reservations", Name: "cancel", Kind: KindMutation, Permission: PermReservationsCancel, Resource: OnReservation, Module: "server", Phase: "v0.1",
		In: ReservationsCancelIn{}, Out: ReservationOut{}, Errors: verbErrors, Summary: "Give a reservation back; what is queued under it is cancelled.",
		Doc: "INVALID_STATE while allocations under it are live, which it names."},
}

// AllocationsCreateIn is the input of allocations/create.
type AllocationsCreateIn struct {
	PoolIn
	GPUs                *int              `json:"gpus,omitempty" validate:"omitempty,min=1,max=1024" doc:"How many GPUs of one node; this or wholeNode."`
	WholeNode           bool              `json:"wholeNode,omitempty" doc:"All GPUs of a node that is free as a whole; this or gpus."`
	ReservationID       *string           `json:"reservationId,omitempty" validate:"omitempty,max=64,pattern=reservationId" doc:"A reservation of the tenant to take the GPUs from."`
	NodeSelector        map[string]string `json:"nodeSelector,omitempty" validate:"omitempty,max=64,dive,keys,pattern=labelKey,endkeys" doc:"Only nodes with all these labels."`
	Holder              string            `json:"holder" validate:"required,min=1,max=256,pattern=reason" doc:"Who or what uses the GPUs, for people to read: a job, a person."`
	TTLSeconds          *int64            `json:"ttlSeconds,omitempty" validate:"omitempty,min=1,max=315360000" doc:"How long it is held from when it is placed; without it until released, or until its reservation ends."`
	Wait                bool              `json:"wait,omitempty" doc:"Queue when the pool is full, in strict order."`
	QueueTimeoutSeconds *int64            `json:"queueTimeoutSeconds,omitempty" validate:"omitempty,min=1,max=31536000" doc:"How long to queue at most, with wait; a day when not given."`
}

// AllocationIn names an allocation.
type AllocationIn struct {
	TenantIn
	AllocationID string `json:"allocationId" validate:"required,max=64,pattern=allocationId" doc:"The allocation."`
}

// AllocationsReleaseIn is the input of allocations/release.
type AllocationsReleaseIn struct {
	AllocationIn
	ReasonIn
}

// AllocationOut is one allocation.
type AllocationOut struct {
	Allocation Allocation `json:"allocation"`
}

// AllocationsListIn is the input of allocations/list.
type AllocationsListIn struct {
	TenantIn
	State  *string `json:"state,omitempty" validate:"omitempty,oneof=queued active released expired cancelled" doc:"Only allocations in this state."`
	PoolID *string `json:"poolId,omitempty" validate:"omitempty,max=128,pattern=poolRef" doc:"Only allocations in this pool."`
	NodeID *string `json:"nodeId,omitempty" validate:"omitempty,max=64,pattern=nodeId" doc:"Only allocations on this node."`
	PageIn
}

// AllocationsPage is a page of allocations.
type AllocationsPage struct {
	Items      []Allocation `json:"items"`
	NextCursor string       `json:"nextCursor,omitempty"`
}

var allocationsMethods = []Method{
	{Group: "allocations", Name: "create", Kind: KindMutation, Permission: PermAllocationsCreate, Resource: OnPool, Module: "server", Phase: "v0.1",
		In: AllocationsCreateIn{}, Out: AllocationOut{}, Errors: verbErrors, Summary: "Take GPUs of one node of a pool.",
		Doc: "A full pool is UNAVAILABLE, reason no-capacity, with what is short; with wait the answer is queued, and get, events and the stream tell when it is placed. " +
			"Past the tenant's quota it is INVALID_STATE, reason quota-exceeded. A retry with the same Idempotency-Key finds the first call's allocation."},
	{Group: "allocations", Name: "get", Kind: KindRead, Permission: PermAllocationsRead, Resource: OnAllocation, Module: "server", Phase: "v0.1",
		In: AllocationIn{}, Out: AllocationOut{}, Errors: []Code{CodeNotFound}, Summary: "Show an allocation with its devices."},
	{Group: "allocations", Name: "list", Kind: KindRead, Permission: PermAllocationsRead, Resource: OnTenant, Items: true, Module: "server", Phase: "v0.1",
		In: AllocationsListIn{}, Out: AllocationsPage{}, Summary: "List the tenant's allocations, and those in pools that it owns."},
	{Group: "allocations", Name: "release", Kind: KindMutation, Permission: PermAllocationsRelease, Resource: OnAllocation, Module: "server", Phase: "v0.1",
		In: AllocationsReleaseIn{}, Out: AllocationOut{}, Errors: verbErrors, Summary: "Give an allocation's devices back; a queued one is cancelled.",
		Doc: "For the tenant that holds it, and for the pool's owner. One that has ended is returned as it is."},
}
