// Package activities holds what workflows do: one struct of activities a
// concern, each with the small interfaces it needs. Activities can be repeated:
// they read before they act and save that they are starting before they do.
package activities

import (
	"context"
	"encoding/json"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
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
	Verb        fleet.Verb
	// Input is the verb's input as stored (In type of the method table).
	Input json.RawMessage
	// RequestedBy is the identity that asked; Reason is why.
	RequestedBy string
	Reason      string
	ReturnTo    fleet.ProvisionState
	State       fleet.ProvisionState
	Site        fleet.SiteSpec
	Waits       fleet.Waits
	// Pool is what commission checks against; nil without a pool.
	Pool *PoolWant
	// Erase is the effective erase of a release or retire, decided when the
	// verb was admitted.
	Erase        fleet.EraseMethod
	MaybeInUse   bool
	EraseOwed    bool
	BootMAC      string
	BMCIdentity  fleet.BMCIdentity
	Capabilities fleet.Capabilities
	Inventory    *fleet.Inventory
	Image        *fleet.ImageView
	// LeftBehind is what an aborted operation before could not clean up.
	LeftBehind []string
	// Done names the steps that already ended well, for a resumed operation.
	Done []string
}

// PoolWant is what a pool demands of a node's hardware.
type PoolWant struct {
	PoolID, GPUModel string
	GPUsPerNode      int
}

// Result is what a successful operation leaves on the node; nil members
// change nothing.
type Result struct {
	// Image is recorded by deploy; Whole that its whole image was verified.
	Image *fleet.ImageView
	Whole *bool
	// ForgetBMCPassword and RevokeIdentity are retire's.
	ForgetBMCPassword bool
	Detail            string
}

// Failure is why an operation failed, in words for a person.
type Failure struct {
	Step, Code, Cause, Remedy string
	// Park keeps the workflow open for retry and abort.
	Park bool
	// Evidence are the last BMC exchanges.
	Evidence []bmc.Exchange
}

// SafePoint is what a workflow learns before a step that could change power,
// boot or disk.
type SafePoint struct {
	// Go says that the step may start; else WaitingFor says why not.
	Go         bool
	WaitingFor *fleet.WaitingFor
	// Again is when to look again unless woken.
	Again time.Duration
}

// Operations is the record of operations in Postgres. Every write is fenced by
// the operation's id on its node: when the fence is another's it returns an
// error for which fleet.ReasonOf is "superseded", and nothing was written. An
// operation whose row is missing is "unknown-operation".
type Operations interface {
	// BeginOperation makes a pending operation running and records the run.
	BeginOperation(ctx context.Context, operationID, runID string) (Work, error)
	// LoadWork reads it again without a change.
	LoadWork(ctx context.Context, operationID string) (Work, error)
	// StartStep marks a step running (attempts + 1) and returns what SaveJournal
	// kept for it in an earlier attempt, nil if nothing.
	StartStep(ctx context.Context, operationID, step string) (json.RawMessage, error)
	// SaveJournal keeps an entry for a step before it acts.
	SaveJournal(ctx context.Context, operationID, step string, entry any) error
	// NoteStep sets a running step's detail.
	NoteStep(ctx context.Context, operationID, step, detail string) error
	// EndStep marks a step done, skipped or failed.
	EndStep(ctx context.Context, operationID, step string, state fleet.StepState, detail string) error
	// PlanSteps records the steps to come as pending; known ones stay.
	PlanSteps(ctx context.Context, operationID string, names []string) error
	// CheckSafePoint judges hold, the site's pause and its limits. kind is
	// "power", "deploy" or "" (only hold and pause).
	CheckSafePoint(ctx context.Context, operationID, kind string) (SafePoint, error)
	// SetWaiting records what the operation waits for (state waiting); nil makes
	// it running again.
	SetWaiting(ctx context.Context, operationID string, w *fleet.WaitingFor) error
	// SucceedOperation ends it well: node state, event, next operation of the
	// chain in one transaction.
	SucceedOperation(ctx context.Context, operationID string, r Result) error
	// FailOperation ends it failed, or parks it: node failed with step, cause,
	// remedy, event.
	FailOperation(ctx context.Context, operationID string, f Failure) error
	// AbortOperation ends it aborted with what could not be cleaned up.
	AbortOperation(ctx context.Context, operationID, cause string, leftBehind []string) error
	// RetryOperation makes, or finds made, the judged transaction of
	// metal/retry. refused is empty when the operation may go on, else why not.
	// actor is used when no API call made it.
	RetryOperation(ctx context.Context, operationID, actor string) (refused string, err error)
}

// Nodes records observations and facts about nodes, fenced like Operations.
type Nodes interface {
	// RecordFound stores what Enroll learned: identity, machine key, system,
	// capabilities, quirks, power. A machine key another node has is CONFLICT
	// with reason "already-enrolled" and nothing is stored.
	RecordFound(ctx context.Context, operationID string, f bmc.Found, driver string) error
	// RecordMaybeInUse sets or clears the presumption.
	RecordMaybeInUse(ctx context.Context, operationID string, inUse bool) error
	// RecordInventory stores an inventory, its devices and differences as
	// events and labels under inventory/.
	RecordInventory(ctx context.Context, operationID string, inv fleet.Inventory) error
	// RecordPower stores an observed power state; an event when it changed.
	RecordPower(ctx context.Context, nodeID, actor string, state bmc.PowerState, at time.Time) error
	// SetCondition stores a condition and its noScheduleReason.
	SetCondition(ctx context.Context, nodeID string, c fleet.Condition) error
	// RevokeIdentity revokes the node's certificates and raises its generation;
	// once an operation, however often it is called.
	RevokeIdentity(ctx context.Context, operationID, reason string) error
	// RecordEraseOwed marks disks as holding a deployed image from now on.
	RecordEraseOwed(ctx context.Context, operationID string) error
	// RecordErase stores erase records and clears what is owed once every disk
	// of the inventory has one.
	RecordErase(ctx context.Context, operationID string, disks []fleet.DiskErase) error
	// StoreCredentials replaces the sealed BMC credentials by those the
	// operation carries (or the staged ones), and forgets the staged ones.
	StoreCredentials(ctx context.Context, operationID string) error
	// StageCredentials seals a new password beside the present one before it is
	// set on the BMC: the operation's own, or a generated one.
	StageCredentials(ctx context.Context, operationID string) error
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

// Machines is the machine-facing side: boots, commands and reports.
type Machines interface {
	// ArmBoot makes the boot of the operation's next power-on and voids the one
	// before. The call that finds an armed, unused boot of this step's number
	// returns it again.
	ArmBoot(ctx context.Context, operationID string) (Boot, error)
	// VoidBoots ends all boots of the operation.
	VoidBoots(ctx context.Context, operationID string) error
	// CalledIn says whether the machine called in on the operation's last boot.
	CalledIn(ctx context.Context, operationID string) (bool, error)
	// SendCommand queues a command once per (operation, boot, key).
	SendCommand(ctx context.Context, operationID, key, commandType string, args any, expires time.Duration) (string, error)
	// Command reads a command.
	Command(ctx context.Context, commandID string) (Command, error)
	// CancelCommands cancels the operation's open commands.
	CancelCommands(ctx context.Context, operationID string) error
	// ReportURL returns the operation's one-time report URL, made once.
	ReportURL(ctx context.Context, operationID string) (string, error)
	// Reported says whether the installed system reported.
	Reported(ctx context.Context, operationID string) (bool, error)
}

// Gate opens BMCs: it takes the lease, checks the address, takes over the
// session, loads the credentials (which never pass through an activity's
// input) and compares the recorded identity before every change.
type Gate interface {
	// Open opens the node's BMC for reading, or for a change. Without a free
	// lease it fails with bmc.KindBusy and a delay. The release must be called.
	Open(ctx context.Context, operationID, nodeID string, change bool) (bmc.Client, func(context.Context), error)
	// EndSessions deletes the BMC session kept for the node.
	EndSessions(ctx context.Context, nodeID string) error
	// Exchanges are the last exchanges with the node's BMC, for evidence.
	Exchanges(nodeID string) []bmc.Exchange
}
