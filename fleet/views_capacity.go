package fleet

// ReservationState is where a reservation is.
type ReservationState string

// The reservation states.
const (
	ReservationOpen      ReservationState = "open"
	ReservationEnded     ReservationState = "ended"
	ReservationCancelled ReservationState = "cancelled"
)

// Reservation is GPUs of a pool that are set aside for a tenant for a time.
type Reservation struct {
	ID        string           `json:"id"`
	TenantID  string           `json:"tenantId"`
	PoolID    string           `json:"poolId"`
	GPUs      int              `json:"gpus"`
	From      Time             `json:"from"`
	To        Time             `json:"to"`
	State     ReservationState `json:"state"`
	CreatedAt Time             `json:"createdAt"`
	// Used are the GPUs of the live allocations under it.
	Used int `json:"used"`
}

// AllocationState is where an allocation is. Active is what "live" and "open"
// mean; a queued one holds nothing yet.
type AllocationState string

// The allocation states.
const (
	AllocationQueued    AllocationState = "queued"
	AllocationActive    AllocationState = "active"
	AllocationReleased  AllocationState = "released"
	AllocationExpired   AllocationState = "expired"
	AllocationCancelled AllocationState = "cancelled"
)

// AllocatedDevice is one device of an allocation.
type AllocatedDevice struct {
	ID         string `json:"id"`
	Model      string `json:"model"`
	Serial     string `json:"serial,omitempty"`
	UUID       string `json:"uuid,omitempty"`
	PCIAddress string `json:"pciAddress,omitempty"`
	Slot       string `json:"slot,omitempty"`
}

// QueuePlace is where a queued allocation stands.
type QueuePlace struct {
	// Position counts from 1 over all that wait for the pool.
	Position int `json:"position"`
	// WaitsFor is capacity, or quota while the tenant's own quota is what is
	// short, which lets others pass.
	WaitsFor string `json:"waitsFor"`
	// Until is when it gives up.
	Until *Time `json:"until,omitempty"`
}

// Allocation is devices of one node that a holder has to itself.
type Allocation struct {
	ID       string `json:"id"`
	TenantID string `json:"tenantId"`
	PoolID   string `json:"poolId"`
	NodeID   string `json:"nodeId,omitempty"`
	// GPUs is how many were asked for; of a whole node it is known once it is
	// placed.
	GPUs          int               `json:"gpus,omitempty"`
	Devices       []AllocatedDevice `json:"devices"`
	Holder        string            `json:"holder"`
	ReservationID string            `json:"reservationId,omitempty"`
	State         AllocationState   `json:"state"`
	Queue         *QueuePlace       `json:"queue,omitempty"`
	CreatedAt     Time              `json:"createdAt"`
	ExpiresAt     *Time             `json:"expiresAt,omitempty"`
	EndedAt       *Time             `json:"endedAt,omitempty"`
}
