// Package activities holds what workflows do: one struct of activities a
// concern, each with the small interfaces it needs. Activities can be repeated:
// they read before they act and save that they are starting before they do.
package activities

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// What the ports speak of is the vocabulary's, since the store knows it too.
type (
	Work      = fleet.Work
	PoolWant  = fleet.PoolWant
	Result    = fleet.OperationResult
	Failure   = fleet.OperationFailure
	SafePoint = fleet.SafePoint
	Boot      = fleet.Boot
	Command   = fleet.Command
	Machine   = fleet.Machine
	CommandIn = fleet.CommandIn
)

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
	// kept for it in an earlier attempt, nil if nothing. round counts how often the
	// operation went back in its plan: a step of before the present one is not
	// started again in the same round, nor any of a round before.
	StartStep(ctx context.Context, operationID, step string, round int) (json.RawMessage, error)
	// Journal reads what SaveJournal kept for a step, nil if nothing.
	Journal(ctx context.Context, operationID, step string) (json.RawMessage, error)
	// SaveJournal keeps an entry for a step before it acts.
	SaveJournal(ctx context.Context, operationID, step string, entry any) error
	// NoteStep sets a running step's detail.
	NoteStep(ctx context.Context, operationID, step, detail string) error
	// EndStep marks a step done, skipped or failed.
	EndStep(ctx context.Context, operationID, step string, state fleet.StepState, detail string) error
	// PlanSteps records the steps to come as pending; known ones stay.
	PlanSteps(ctx context.Context, operationID string, names []string) error
	// CheckSafePoint judges hold, the site's pause and its limits. kind is
	// "power", "deploy" or "" (only hold and pause). A Go takes a place in the
	// kind's limit: of "power" until the step that is started next ends, of
	// "deploy" until the operation ends or parks. Asking again while the place
	// is held is Go. The caller asks before each step that could change power,
	// boot or disk, and in its long waits with "".
	CheckSafePoint(ctx context.Context, operationID, kind string) (SafePoint, error)
	// SetWaiting records what the operation waits for (state waiting); nil makes
	// it running again.
	SetWaiting(ctx context.Context, operationID string, w *fleet.WaitingFor) error
	// SucceedOperation ends it well: node state, event, next operation of the
	// chain in one transaction.
	SucceedOperation(ctx context.Context, operationID string, r Result) error
	// FinishDrain ends a drain well if no live allocation holds its node, in one
	// transaction: the reason draining goes, node.drained is told. Else it records
	// what the drain waits for and returns that.
	FinishDrain(ctx context.Context, operationID string) (*fleet.WaitingFor, error)
	// SaveEvidence keeps the last BMC exchanges of an act that failed, replacing
	// those kept before.
	SaveEvidence(ctx context.Context, operationID string, exchanges []bmc.Exchange) error
	// FailOperation ends it failed, or parks it: node failed with step, cause,
	// remedy, event.
	FailOperation(ctx context.Context, operationID string, f Failure) error
	// AbortOperation ends it aborted with what could not be cleaned up. One that
	// is already aborted gets leftBehind and is no error.
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
	// JoinedHardware is what the node's machine said of itself when it joined,
	// empty when it never did.
	JoinedHardware(ctx context.Context, nodeID string) (fleet.Hardware, error)
	// RecordMaybeInUse sets or clears the presumption.
	RecordMaybeInUse(ctx context.Context, operationID string, inUse bool) error
	// RecordInventory stores an inventory, its devices and differences as
	// events and labels under inventory/.
	RecordInventory(ctx context.Context, operationID string, inv fleet.Inventory) error
	// RecordPower stores an observed power state; an event when it changed.
	RecordPower(ctx context.Context, nodeID, actor string, state bmc.PowerState, at time.Time) error
	// SetCondition stores a condition and its noScheduleReason.
	SetCondition(ctx context.Context, nodeID string, c fleet.Condition) error
	// CertificateChanged records the certificate that a BMC shows in place of
	// the pinned one, with its condition and event.
	CertificateChanged(ctx context.Context, nodeID, shown, message string) error
	// MachineChanged records the machine that a BMC shows in place of the
	// enrolled one, with its event.
	MachineChanged(ctx context.Context, nodeID string, shown fleet.BMCIdentity, message string) error
	// RevokeIdentity revokes the node's certificates and raises its generation;
	// once an operation, however often it is called.
	RevokeIdentity(ctx context.Context, operationID, reason string) error
	// RecordEraseOwed marks disks as holding a deployed image from now on, and
	// that none is known to be whole.
	RecordEraseOwed(ctx context.Context, operationID string) error
	// RecordImage stores the image on the disk as soon as it is there; whole
	// says that all of it was verified.
	RecordImage(ctx context.Context, operationID string, image fleet.ImageView, whole bool) error
	// RecordErase stores erase records and clears what is owed once every disk
	// of the inventory has one. key names what made them within the operation:
	// the same key stores them once, however often it is called.
	RecordErase(ctx context.Context, operationID, key string, disks []fleet.DiskErase) error
	// StoreCredentials replaces the sealed BMC credentials by those the
	// operation carries (or the staged ones), and forgets the staged ones.
	StoreCredentials(ctx context.Context, operationID string) error
	// StageCredentials seals a new password beside the present one before it is
	// set on the BMC: the operation's own, or a generated one. The operation
	// that calls it again keeps what it staged.
	StageCredentials(ctx context.Context, operationID string) error
	// StagedPassword opens the staged password, to be set on the BMC. It stays
	// in the memory of the activity that asked.
	StagedPassword(ctx context.Context, operationID string) (string, error)
}

// Machines is the machine-facing side: boots, commands and reports.
type Machines interface {
	// ArmBoot makes the operation's boot of this number (1 for its first
	// power-on with our image) and voids the ones before. The same number again
	// returns the same boot while it is unused.
	ArmBoot(ctx context.Context, operationID string, number int) (Boot, error)
	// VoidBoots ends all boots of the operation.
	VoidBoots(ctx context.Context, operationID string) error
	// Machine reads what is known of the machine on the operation's last boot.
	Machine(ctx context.Context, operationID string) (Machine, error)
	// SendCommand queues a command for the machine of the operation's last boot.
	SendCommand(ctx context.Context, operationID string, c CommandIn) (string, error)
	// SendNodeCommand queues a command for the agent of the operation's node,
	// which fetches it in its session. The same key of the operation is sent
	// once.
	SendNodeCommand(ctx context.Context, operationID string, c CommandIn) (string, error)
	// InSession says whether the agent of the operation's node has a session.
	InSession(ctx context.Context, operationID string) (bool, error)
	// JoinFile makes what the installed system joins as its node by, made once.
	JoinFile(ctx context.Context, operationID string) (fleet.JoinFile, error)
	// Command reads a command.
	Command(ctx context.Context, commandID string) (Command, error)
	// LastData is the data of the operation's last command of a type that
	// succeeded, nil without one.
	LastData(ctx context.Context, operationID, kind string) (json.RawMessage, error)
	// CancelCommands cancels the operation's open commands.
	CancelCommands(ctx context.Context, operationID string) error
	// ImageURL opens the whole URL of the operation's image, which a BMC is
	// told for an ISO. It stays in the memory of the activity that asked.
	ImageURL(ctx context.Context, operationID string) (string, error)
	// ReportURL returns the operation's one-time report URL, made once.
	ReportURL(ctx context.Context, operationID string) (string, error)
	// Reported says whether the installed system reported.
	Reported(ctx context.Context, operationID string) (bool, error)
}

// Credentials says which of a node's BMC credentials are meant.
type Credentials string

// The credentials of a node: those that its live operation carries, and those
// staged by a rotation.
const (
	OperationCredentials Credentials = "operation"
	StagedCredentials    Credentials = "staged"
)

// ErrLeased is in the error of a gate whose lease another worker or operation
// holds: the BMC is not away, and the lease ends by itself.
var ErrLeased = errors.New("the BMC's lease is held")

// Gate opens BMCs: it takes the lease, checks the address, takes over the
// session, loads the credentials (which never pass through an activity's
// input) and compares the recorded identity before every change.
type Gate interface {
	// Open opens the node's BMC for reading, or for a change. Without a free
	// lease it fails with bmc.KindBusy and a delay; for a change also like
	// Operations when the fence is another's. The release must be called.
	Open(ctx context.Context, operationID, nodeID string, change bool) (bmc.Client, func(context.Context), error)
	// OpenWith is Open for a change with other credentials than the recorded
	// ones, by a login of its own that is ended with the release.
	OpenWith(ctx context.Context, operationID, nodeID string, which Credentials) (bmc.Client, func(context.Context), error)
	// EndSessions deletes the BMC session kept for the node.
	EndSessions(ctx context.Context, nodeID string) error
	// Exchanges are the last exchanges with the node's BMC, for evidence.
	Exchanges(nodeID string) []bmc.Exchange
}
