package fleet

import (
	"encoding/json"
	"time"
)

// Work is what an operation is to do and what is known of its node, without
// secrets.
type Work struct {
	OperationID string
	NodeID      string
	TenantID    string
	SiteID      string
	PoolID      string
	NodeName    string
	Verb        Verb
	// Input is the verb's input as stored (In type of the method table).
	Input json.RawMessage
	// RequestedBy is the identity that asked; Reason is why.
	RequestedBy string
	Reason      string
	ReturnTo    ProvisionState
	State       ProvisionState
	Site        SiteSpec
	Waits       Waits
	// Pool is what commission checks against; nil without a pool.
	Pool *PoolWant
	// Erase is the effective erase of a release or retire, decided when the
	// verb was admitted.
	Erase      EraseMethod
	MaybeInUse bool
	EraseOwed  bool
	BootMAC    string
	// BMCUsername is the recorded account.
	BMCUsername  string
	BMCIdentity  BMCIdentity
	Capabilities Capabilities
	Inventory    *Inventory
	Image        *ImageView
	// LeftBehind is what operations before could not clean up and none since has.
	LeftBehind []string
	// Boots is the number of the operation's last armed boot, 0 before the first.
	Boots int
	// Steps are the operation's steps as recorded.
	Steps []Step
	// Secrets names the sealed secrets that the operation carries.
	Secrets []string
}

// PoolWant is what a pool demands of a node's hardware.
type PoolWant struct {
	PoolID, GPUModel string
	GPUsPerNode      int
}

// OperationResult is what a successful operation leaves on the node; nil members
// change nothing.
type OperationResult struct {
	// Image is recorded by deploy; Whole that its whole image was verified.
	Image *ImageView
	Whole *bool
	// EndChain says that no operation follows, whatever the chain says: the
	// machine may be in use.
	EndChain bool
	// ForgetBMCPassword is retire's.
	ForgetBMCPassword bool
	// NotDone is what a forced retire could not do: it is stored as the
	// operation's leftBehind and told in the event.
	NotDone []string
}

// OperationFailure is why an operation failed, in words for a person.
type OperationFailure struct {
	Step, Code, Cause, Remedy string
	// Park keeps the workflow open for retry and abort.
	Park bool
	// LeftBehind is what could not be cleaned up on the machine.
	LeftBehind []string
}

// SafePoint is what a workflow learns before a step that could change power,
// boot or disk.
type SafePoint struct {
	// Go says that the step may start; else WaitingFor says why not.
	Go         bool
	WaitingFor *WaitingFor
	// Again is when to look again unless woken.
	Again time.Duration
}

// Boot is one armed power-on that boots our image.
type Boot struct {
	ID string
	// ISOURL and HTTPURL are what the BMC or the firmware is told.
	ISOURL, HTTPURL string
	Number          int
}

// Command is a command to a machine as it stands.
type Command struct {
	ID, Type, State string // pending delivered succeeded failed cancelled expired
	Percent         *int
	Detail          string
	Error           string
	ProgressAt      *time.Time
	Data            json.RawMessage
}

// Machine is what is known of the machine since the operation's last boot was
// armed.
type Machine struct {
	// CalledIn says that it called in on that boot.
	CalledIn bool
	// Reused says that the boot's used token was shown again: the machine
	// restarted by itself.
	Reused bool
	// Present says that the machine that called in was heard of within the last
	// 90 seconds.
	Present bool
	// ReadAt is when a file of the boot was read last, nil when none was.
	ReadAt *time.Time
}

// CommandIn is a command to be sent.
type CommandIn struct {
	// Key names the command within (operation, boot): the same key is sent once.
	Key, Type string
	// Args are the arguments without secrets.
	Args any
	// Secrets maps names of arguments to names of the operation's secrets,
	// which are merged into the arguments at delivery. A secret that the
	// operation does not carry is left out.
	Secrets map[string]string
	// Sealed are arguments that are secrets themselves: sealed where they lie, and
	// merged into the others at delivery.
	Sealed  map[string]string
	Expires time.Duration
}
