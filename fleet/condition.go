package fleet

// ConditionStatus is True, False or Unknown.
type ConditionStatus string

// The condition statuses.
const (
	ConditionTrue    ConditionStatus = "True"
	ConditionFalse   ConditionStatus = "False"
	ConditionUnknown ConditionStatus = "Unknown"
)

// Condition is an observation about a node.
type Condition struct {
	Type    string          `json:"type"`
	Status  ConditionStatus `json:"status"`
	Reason  string          `json:"reason,omitempty"`
	Message string          `json:"message,omitempty"`
	Since   Time            `json:"since"`
}

// ConditionKind says when a condition type is bad and which noScheduleReason
// a bad one adds ("" for none).
type ConditionKind struct {
	BadWhen   ConditionStatus
	AddReason string
}

// The reasons in noScheduleReasons that are not of conditions.
const (
	ReasonDraining    = "draining"
	ReasonUnreachable = "unreachable"
	TaintPrefix       = "taint:"
	ConditionPrefix   = "condition:"
)

// ConditionKinds is the table of condition types (spec metal.md, "Conditions").
var ConditionKinds = map[string]ConditionKind{
	"BmcReachable":       {ConditionFalse, ""},
	"BmcTrusted":         {ConditionFalse, ""},
	"BmcAuthenticated":   {ConditionFalse, ""},
	"Connected":          {ConditionFalse, ReasonUnreachable},
	"HardwareHealthy":    {ConditionFalse, ConditionPrefix + "HardwareHealthy"},
	"InventoryMatches":   {ConditionFalse, ConditionPrefix + "InventoryMatches"},
	"HardwareAccepted":   {ConditionFalse, ConditionPrefix + "HardwareAccepted"},
	"GpusAccepted":       {ConditionFalse, ConditionPrefix + "GpusAccepted"},
	"DriverPresent":      {ConditionFalse, ConditionPrefix + "DriverPresent"},
	"DiskSpace":          {ConditionFalse, ConditionPrefix + "DiskSpace"},
	"ClockInSync":        {ConditionFalse, ConditionPrefix + "ClockInSync"},
	"KernelAccepted":     {ConditionFalse, ConditionPrefix + "KernelAccepted"},
	"GatewayReachable":   {ConditionFalse, ConditionPrefix + "GatewayReachable"},
	"InventoryAmbiguous": {ConditionTrue, ConditionPrefix + "InventoryAmbiguous"},
	"DeviceMissing":      {ConditionTrue, ConditionPrefix + "DeviceMissing"},
	"StateUnverified":    {ConditionTrue, ConditionPrefix + "StateUnverified"},
	"IdentityAmbiguous":  {ConditionTrue, ConditionPrefix + "IdentityAmbiguous"},
	"SshConflict":        {ConditionTrue, ""},
}

// Bad says whether a status of this condition type is a bad one.
func (k ConditionKind) Bad(s ConditionStatus) bool { return s == k.BadWhen }
