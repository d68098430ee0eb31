// Package bmc is the one interface through which the control plane touches a
// machine's baseboard management controller. Two drivers implement it:
// bmc/redfish over gofish and bmc/ipmi over bmclib and ipmitool. bmc/bmctest
// holds the suite every driver passes.
//
// The rules all drivers keep: success is a state read from the BMC, never a
// status code; a lost reply is "unknown" and is answered by reading; nothing
// is chosen by position or by a built path; an authentication or trust failure
// is never repeated.
package bmc

import (
	"context"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// Client is a logged-in conversation with the BMC of one machine. Its methods
// return errors that KindOf understands. Every waiting method polls with its
// own spacing and ends with the context's deadline.
//
// A Client is used by one goroutine at a time.
type Client interface {
	// Identify reads who the machine is and what its BMC can do.
	Identify(ctx context.Context) (Found, error)
	// Power reads the power state now.
	Power(ctx context.Context) (PowerState, error)
	// SetPower makes one change and waits until the state it aims at is read.
	// An aim that is already reached sends nothing and is a success.
	SetPower(ctx context.Context, change PowerChange) (PowerResult, error)
	// Boot reads the boot override.
	Boot(ctx context.Context) (BootOverride, error)
	// SetBoot sets the override, or clears it (Target None), and reads it back
	// from the resource that was written.
	SetBoot(ctx context.Context, want BootOverride) error
	// InsertMedia puts an image into a virtual CD slot and waits until the slot
	// shows it. A slot that already shows it is left alone; one that holds
	// something else is emptied first. Unsupported where there is no slot.
	InsertMedia(ctx context.Context, imageURL string) error
	// EjectMedia empties every virtual CD slot that holds an image whose URL
	// the keep function does not claim; a nil keep empties all slots.
	EjectMedia(ctx context.Context, keep func(url string) bool) error
	// Inventory reads the hardware. What could not be read is named in
	// Inventory.Missing; nothing is invented.
	Inventory(ctx context.Context) (fleet.Inventory, error)
	// EraseDrives erases the drives with the given serials by the BMC's own
	// secure erase and proves each by reading back. Unsupported where the BMC
	// offers none for a drive.
	EraseDrives(ctx context.Context, serials []string) ([]fleet.DiskErase, error)
	// SetPassword changes the password of the account in use and proves the
	// new one by a fresh login before it returns.
	SetPassword(ctx context.Context, password string) error
	// Log returns the BMC's own event log entries since the given time.
	Log(ctx context.Context, since time.Time) ([]LogEntry, error)
	// Close ends the conversation. Session.Keep decides whether the BMC's
	// session is left for the next holder or deleted.
	Close(ctx context.Context) error
}

// What is known of a machine through its BMC is the vocabulary's, since the
// store keeps it.
type (
	PowerState = fleet.PowerState
	Found      = fleet.Found
	Exchange   = fleet.Exchange
)

// The power states; see fleet.
const (
	PowerOn      = fleet.PowerOn
	PowerOff     = fleet.PowerOff
	PoweringOn   = fleet.PoweringOn
	PoweringOff  = fleet.PoweringOff
	PowerUnknown = fleet.PowerUnknown
)

// PowerAim is what a power change is for. The driver maps it to what the
// machine offers.
type PowerAim string

// The aims. AimOff forces (ForceOff); AimSoftOff asks the operating system and
// never escalates; AimCycle and AimReset are switch-on for a machine that is
// off.
const (
	AimOn      PowerAim = "on"
	AimOff     PowerAim = "off"
	AimSoftOff PowerAim = "softOff"
	AimCycle   PowerAim = "cycle"
	AimReset   PowerAim = "reset"
)

// PowerChange is one order to change the power.
type PowerChange struct {
	Aim PowerAim
	// Spent says that an earlier run may already have sent this change: the
	// driver then reads first and sends only what the state shows to be
	// missing. A cycle or reset that may have been sent is not sent again.
	Spent bool
	// Acting is called immediately before each changing request, so that the
	// caller records the intent first; an error from it stops the change.
	Acting func(ctx context.Context, request string) error
	// Progress, when not nil, is called at every poll with what was seen.
	Progress func(detail string)
}

// PowerResult says what a SetPower did.
type PowerResult struct {
	// State is the state read last.
	State PowerState
	// AlreadySo is true when nothing was sent because the aim was reached.
	AlreadySo bool
	// Sent lists the requests that were, or may have been, acted upon, such as
	// "Reset ForceOff", also beside an error. One that certainly never left, or
	// that the BMC answered with a refusal, is not in it although Acting was
	// called for it.
	Sent []string
	// Unproved says that a cycle or reset which an earlier run may have sent was
	// not sent again, and that nothing shows whether it was made.
	Unproved bool
}

// BootTarget is where a machine boots from.
type BootTarget string

// The boot targets. BootNone clears the override.
const (
	BootNone BootTarget = "none"
	BootDisk BootTarget = "disk"
	BootCD   BootTarget = "cd"
	BootPXE  BootTarget = "pxe"
	BootHTTP BootTarget = "http"
)

// BootOverride is the boot source for the next boot, or for all boots.
type BootOverride struct {
	Target BootTarget
	// Persistent keeps the override over boots; false is for the next boot.
	Persistent bool
	// HTTPURL is the boot URI for BootHTTP.
	HTTPURL string
	// UEFI and Legacy say the mode as read; when setting, at most one is
	// true and means the mode is required.
	UEFI, Legacy bool
	// Progress is, as read, how far the machine's boot has come, in the words of
	// Redfish's BootProgress; "" where the BMC does not show it.
	Progress string
}

// ProgressOSRunning is the progress of a machine on which an operating system
// runs.
const ProgressOSRunning = "OSRunning"

// LogEntry is one line of a BMC's own log.
type LogEntry struct {
	At       time.Time `json:"at"`
	Severity string    `json:"severity,omitempty"`
	Message  string    `json:"message"`
}

// Target names a BMC and says how to trust it and log in.
type Target struct {
	// Address is canonical: scheme, host, port; see fleet.ParseBMCAddress.
	Address fleet.BMCAddress
	// System is the recorded path of the machine's ComputerSystem, or "".
	System string
	// Driver is redfish, ipmi or auto.
	Driver   string
	Username string
	Password string
	TLS      TLS
	// CipherSuites is the allowed order of IPMI cipher suites; nil is 17, 3.
	CipherSuites []int
	// Identity, when set, is compared before every change: a mismatch is
	// KindWrongMachine and nothing is sent.
	Identity *fleet.BMCIdentity
	// Quirks are what this BMC was learned to need, as Options.Learned told.
	Quirks []string
}

// TLS is the trust in a BMC's certificate.
type TLS struct {
	// Mode is verify, pin or insecure.
	Mode string
	// CA is a PEM bundle for verify; empty means the system's.
	CA string
	// Fingerprint is "sha256:" and the hex of the leaf certificate's hash for
	// pin. Empty with pin trusts the first certificate seen and reports it
	// through Options.Pinned before a credential is sent.
	Fingerprint string
	// Legacy allows ciphers and versions that old BMCs need.
	Legacy bool
}

// Options are what the caller lends to a driver.
type Options struct {
	// AllowAddress is asked for each resolved address in the dial, before any
	// packet; its error ends the dial with KindNotAllowed.
	AllowAddress func(ip string) error
	// Pinned receives the fingerprint trusted on first use.
	Pinned func(fingerprint string) error
	// Learned receives all quirks whenever another one is learned, so that the
	// next client of this BMC begins with them.
	Learned func(quirks []string)
	// BeforeChange is asked immediately before each changing request (the
	// lease check); its error stops the request.
	BeforeChange func(ctx context.Context) error
	// NotBefore is the earliest time of the next request, as the BMC asked of
	// whoever talked to it last; nil and the zero time are no wait. Hinted is told
	// when the BMC asks to be left alone until a time.
	NotBefore func() time.Time
	Hinted    func(until time.Time)
	// Session is the BMC session to take over and keep; nil logs in and out.
	Session SessionStore
	// Observe receives each exchange, without secrets, for evidence.
	Observe func(Exchange)
	// Waits are the driver's own waits; the zero value is DefaultWaits.
	Waits Waits
}

// SessionStore keeps one BMC session between holders of the lease.
type SessionStore interface {
	// Load returns the kept session's URI and token, or empty strings for the
	// caller to log in. It waits while another holder logs in.
	Load(ctx context.Context) (uri, token string, err error)
	// Save keeps a session; empty strings forget it, or say that none is made.
	Save(ctx context.Context, uri, token string) error
	// Keep says whether Close leaves the session open for the next holder.
	Keep() bool
}

// Waits are the spacings and bounds of a driver's polling.
type Waits struct {
	// Request bounds one request; Poll spaces reads of a state that changes.
	Request, Poll time.Duration
	// Busy is the wait after a "not ready" that gives no hint.
	Busy time.Duration
	// Change bounds the wait for a power state, a task or a media slot.
	Change time.Duration
	// Post bounds the wait for a machine in POST to take a boot override.
	Post time.Duration
	// Scale divides hints given by the BMC in seconds, for tests that run a
	// simulated rack on a faster clock; 0 and 1 leave them as they are.
	Scale float64
}

// DefaultWaits are the waits used against real hardware.
var DefaultWaits = Waits{
	Request: 30 * time.Second, Poll: 3 * time.Second, Busy: 10 * time.Second,
	Change: 5 * time.Minute, Post: 10 * time.Minute, Scale: 1,
}
