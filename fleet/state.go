package fleet

import "slices"

// ProvisionState is where a node is in its life.
type ProvisionState string

// The provision states, as nodes/list names them.
const (
	Adopting      ProvisionState = "adopting"
	Adopted       ProvisionState = "adopted"
	Enrolling     ProvisionState = "enrolling"
	Inspecting    ProvisionState = "inspecting"
	Commissioning ProvisionState = "commissioning"
	Ready         ProvisionState = "ready"
	Deploying     ProvisionState = "deploying"
	Deployed      ProvisionState = "deployed"
	Releasing     ProvisionState = "releasing"
	Rescue        ProvisionState = "rescue"
	Failed        ProvisionState = "failed"
	Retiring      ProvisionState = "retiring"
	Retired       ProvisionState = "retired"
)

// ProvisionStates lists all states in the reference's order.
var ProvisionStates = []ProvisionState{Adopting, Adopted, Enrolling, Inspecting, Commissioning, Ready,
	Deploying, Deployed, Releasing, Rescue, Failed, Retiring, Retired}

// OperationState is where an operation is.
type OperationState string

// The operation states. Pending, Running and Waiting are live.
const (
	OpPending   OperationState = "pending"
	OpRunning   OperationState = "running"
	OpWaiting   OperationState = "waiting"
	OpFailed    OperationState = "failed"
	OpSucceeded OperationState = "succeeded"
	OpAborted   OperationState = "aborted"
)

// Live says whether the state is one that the unique index on live operations
// covers.
func (s OperationState) Live() bool {
	return slices.Contains([]OperationState{OpPending, OpRunning, OpWaiting}, s)
}

// Verb is what an operation does. The verbs are the methods of the metal group
// that start a workflow, and adopt and drain of the nodes group.
type Verb string

// The verbs.
const (
	VerbEnroll         Verb = "enroll"
	VerbInspect        Verb = "inspect"
	VerbCommission     Verb = "commission"
	VerbDeploy         Verb = "deploy"
	VerbRescue         Verb = "rescue"
	VerbUnrescue       Verb = "unrescue"
	VerbRelease        Verb = "release"
	VerbRetire         Verb = "retire"
	VerbAdopt          Verb = "adopt"
	VerbDrain          Verb = "drain"
	VerbPower          Verb = "power"
	VerbSetCredentials Verb = "setCredentials"
	VerbManage         Verb = "manage"
	VerbUpdate         Verb = "update"
	VerbRetry          Verb = "retry"
	VerbAbort          Verb = "abort"
	VerbDelete         Verb = "delete"
)

// WorkflowTypes maps each verb that has a workflow to the registered name of
// its type.
var WorkflowTypes = map[Verb]string{
	VerbEnroll: "Enroll", VerbInspect: "Inspect", VerbCommission: "Commission", VerbDeploy: "Deploy",
	VerbRescue: "Rescue", VerbUnrescue: "Unrescue", VerbRelease: "Release", VerbRetire: "Retire",
	VerbAdopt: "Adopt", VerbDrain: "DrainNode", VerbPower: "Power", VerbSetCredentials: "SetCredentials",
	VerbManage: "Manage",
}

// MovesTo is the provision state a verb enters when it is accepted; verbs not
// in it leave the state as it is. Rescue enters `rescue` at once.
var MovesTo = map[Verb]ProvisionState{
	VerbEnroll: Enrolling, VerbInspect: Inspecting, VerbCommission: Commissioning, VerbDeploy: Deploying,
	VerbRescue: Rescue, VerbUnrescue: Deploying, VerbRelease: Releasing, VerbRetire: Retiring,
	VerbAdopt: Adopting,
}

// EndsIn is the provision state a verb's success leads to. Inspect is not in
// it: it ends in the operation's returnTo. Verbs that leave the state as it is
// are not in it either.
var EndsIn = map[Verb]ProvisionState{
	VerbEnroll: Enrolling, VerbCommission: Ready, VerbDeploy: Deployed, VerbRescue: Rescue,
	VerbUnrescue: Deployed, VerbRelease: Ready, VerbRetire: Retired, VerbAdopt: Adopted,
}

// FailsFrom is the `from` recorded when a verb's operation fails and the node
// becomes failed. Verbs not in it leave the state as it is on failure.
var FailsFrom = map[Verb]ProvisionState{
	VerbEnroll: Enrolling, VerbInspect: Inspecting, VerbCommission: Commissioning, VerbDeploy: Deploying,
	VerbRescue: Rescue, VerbUnrescue: Deploying, VerbRelease: Releasing, VerbRetire: Retiring,
}

// Signals a workflow understands. Each arrives with a SignalInput.
const (
	SignalRetry   = "retry"
	SignalAbort   = "abort"
	SignalCallIn  = "call-in"  // the machine called in with its boot token
	SignalReboot  = "reboot"   // the machine came back with a used token
	SignalCommand = "command"  // a command of the machine ended
	SignalReport  = "report"   // the installed system reported
	SignalWake    = "wake"     // hold lifted, site resumed, an allocation released: look again
	SignalEnd     = "end"      // superseded: close without touching anything
	QueryProgress = "progress" // query: the operation's steps as the workflow sees them
)
