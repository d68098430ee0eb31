package fleet

import "time"

// PowerState is what a BMC says of the host's power.
type PowerState string

// The power states. Everything a BMC says that is none of on, off and the two
// transitions is Unknown, which is neither on nor off.
const (
	PowerOn      PowerState = "on"
	PowerOff     PowerState = "off"
	PoweringOn   PowerState = "poweringOn"
	PoweringOff  PowerState = "poweringOff"
	PowerUnknown PowerState = "unknown"
)

// Found is what Identify learns of a machine.
type Found struct {
	Identity BMCIdentity
	// System is the path of the chosen ComputerSystem ("" over IPMI).
	System string
	// MachineKey identifies the hardware over address changes: the UUID where
	// it proves something, else manager UUID and system id, else certificate
	// or MAC and system id. Empty when nothing identifies it.
	MachineKey   string
	Capabilities Capabilities
	// Quirks are what this BMC was learned to need, for storing and showing.
	Quirks []string
	Power  PowerState
}

// Exchange is one request to a BMC and its answer, kept as evidence.
type Exchange struct {
	At        time.Time `json:"at"`
	Method    string    `json:"method"`
	Path      string    `json:"path"`
	Status    int       `json:"status,omitempty"`
	MessageID string    `json:"messageId,omitempty"`
	Error     string    `json:"error,omitempty"`
	Millis    int64     `json:"millis"`
}
