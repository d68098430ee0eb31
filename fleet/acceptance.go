package fleet

// AcceptanceFacts are what an agent finds on its host, for the control plane to
// judge.
type AcceptanceFacts struct {
	Inventory Inventory `json:"inventory"`
	// Drivers are the GPU drivers that are loaded, by the vendor of the GPUs.
	Drivers map[string]string `json:"drivers,omitempty"`
	// DiskFreeBytes is the room on the root file system, -1 when not known.
	DiskFreeBytes int64 `json:"diskFreeBytes"`
	// ClockOffsetSeconds is how far the host's clock is ahead of the gateway's;
	// nil when not known.
	ClockOffsetSeconds *float64 `json:"clockOffsetSeconds,omitempty"`
	// Kernel is the running kernel's release.
	Kernel string `json:"kernel,omitempty"`
	// GatewayError says why a new connection to the gateway failed; empty when it
	// did not.
	GatewayError string `json:"gatewayError,omitempty"`
}
