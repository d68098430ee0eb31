package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// The codes of failures that are neither a kind of a BMC error nor a reason of
// the store's.
const (
	CodeSuperseded = "superseded"        // the fence is another operation's
	CodeUnknown    = "unknown-operation" // Postgres does not know the operation
	CodeEnrolled   = "already-enrolled"
	CodeInternal   = "internal"
	// CodeMachine is a failure that the machine itself reported.
	CodeMachine = "machine"
	// CodeNoCallIn and CodeStalled are waits that ran out.
	CodeNoCallIn = "no-call-in"
	CodeStalled  = "stalled"
	CodeNoReport = "no-report"
	// CodeNoSession is an agent that did not come, CodeNotAccepted a host that its
	// acceptance checks do not pass.
	CodeNoSession = "no-session"
	// CodeNoProof is a BMC that is not proved to be an adopted host's.
	CodeNoProof     = "no-proof"
	CodeNotAccepted = "not-accepted"
	CodeReboots     = "keeps-restarting"
	// CodeMismatch is hardware that is not what was asked for.
	CodeMismatch = "hardware-mismatch"
	CodeHealth   = "hardware-unhealthy"
	CodeErase    = "not-erased"
	// CodeCancelled is a workflow cancelled through Temporal.
	CodeCancelled = "cancelled"
)

// Reason is why an act failed, in words for a person. It travels as the
// details of an activity's error.
type Reason struct {
	Code   string `json:"code"`
	Cause  string `json:"cause"`
	Remedy string `json:"remedy"`
}

// Error returns the code and the cause.
func (r Reason) Error() string { return r.Code + ": " + r.Cause }

// Ends says that the operation is not this workflow's any more, so that it
// touches nothing.
func (r Reason) Ends() bool { return r.Code == CodeSuperseded || r.Code == CodeUnknown }

// Away says that the BMC could not be worked with at all, so that a clean-up
// right after would only wait.
func (r Reason) Away() bool {
	switch bmc.Kind(r.Code) {
	case bmc.KindUnreachable, bmc.KindAuth, bmc.KindTrust, bmc.KindWrongMachine, bmc.KindNotAllowed, bmc.KindBusy:
		return true
	default:
		return false
	}
}

// remedies say what a person can try, by code.
var remedies = map[string]string{
	string(bmc.KindBusy):         "see what else talks to the BMC (its own web sessions count), then retry",
	string(bmc.KindUnreachable):  "check the BMC's power, cable and address (metal/update sets another), then retry",
	string(bmc.KindTimeout):      "look at the machine's console and BMC log, then retry",
	string(bmc.KindUnsupported):  "the BMC offers no way to do this; see the machine's capabilities and choose another way",
	string(bmc.KindAuth):         "record working credentials with metal/setCredentials, then retry",
	string(bmc.KindTrust):        "compare the BMC's certificate; accept a new one with metal/update bmc.tls.fingerprint, then retry",
	string(bmc.KindWrongMachine): "another machine answers at this address; correct it with metal/update bmc.address, or accept a replaced board with acceptIdentity",
	string(bmc.KindNotAllowed):   "add the BMC's network to the site's allowedNetworks (sites/update), or correct the address",
	string(bmc.KindRefused):      "read the BMC's answer in the operation's evidence, change what it objects to, then retry",
	string(bmc.KindProtocol):     "the BMC answers nonsense; restart the BMC, then retry",
	CodeEnrolled:                 "this machine is enrolled already; use that node, or delete it first",
	CodeMachine:                  "see the machine's message and its console, then retry",
	CodeNoCallIn:                 "check that the machine boots from what its BMC offers and reaches the gateway (console, boot order, network), then retry",
	CodeStalled:                  "check the machine's network and where the image is served, then retry",
	CodeNoReport:                 "look at the installed system's console: it did not boot, has no network, or its cloud-init did not run; then retry, or deploy with expect: boot",
	CodeNoSession:                "look at the agent on the host (systemctl status nodeagent, nodeagent status) and whether it reaches the gateway, then call the verb again",
	CodeNoProof:                  "call metal/manage with the BMC of this very host: its UUID is what dmidecode -s system-uuid prints on the host",
	CodeNotAccepted:              "mend what the conditions name, then call nodes/adopt; a host whose hardware was changed on purpose joins again first (nodes/revokeIdentity, nodeagent join)",
	CodeReboots:                  "the machine restarts by itself in our image; look at its console and BMC log, then retry",
	CodeInternal:                 "see the worker's log for this operation, then retry",
	CodeCancelled:                "it was cancelled through Temporal; retry, or call the verb again",
}

// NewReason makes a Reason with the code's usual remedy.
func NewReason(code, format string, args ...any) Reason {
	remedy := remedies[code]
	if remedy == "" {
		remedy = "correct what the cause says, then retry"
	}
	return Reason{Code: code, Cause: fmt.Sprintf(format, args...), Remedy: remedy}
}

// mostCause bounds a cause, in bytes.
const mostCause = 2000

// reasonFrom is the one place where errors get words: those of BMCs, those of
// the store, and others. They are words that Postgres can store.
func reasonFrom(err error) Reason {
	r := wordsOf(err)
	r.Cause = fleet.Text(r.Cause, mostCause)
	return r
}

func wordsOf(err error) Reason {
	var own Reason
	if errors.As(err, &own) {
		return own
	}
	var be *bmc.Error
	if errors.As(err, &be) {
		r := NewReason(string(be.Kind), "%s: %s", be.Doing, be.Cause)
		if be.Remedy != "" {
			r.Remedy = be.Remedy
		}
		return r
	}
	var fe *fleet.Error
	if errors.As(err, &fe) {
		code := fe.Reason
		if code == "" {
			code = string(fe.Code)
		}
		return NewReason(code, "%s", fe.Detail)
	}
	return NewReason(CodeInternal, "%s", err)
}

// toTemporal turns an error into what Temporal judges: its type is the code,
// its details the Reason; errors that repeating cannot mend are not retried.
func toTemporal(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || temporal.IsCanceledError(err) {
		return err
	}
	var app *temporal.ApplicationError
	if errors.As(err, &app) {
		return err
	}
	r := reasonFrom(err)
	return temporal.NewApplicationErrorWithOptions(r.Cause, r.Code, temporal.ApplicationErrorOptions{
		NonRetryable: !retryable(err), NextRetryDelay: retryDelay(err), Details: []any{r},
	})
}

// final is toTemporal for an error that is not to be tried again. What the
// driver would have a person do while it is tried again is not its remedy.
func final(err error) error {
	r := reasonFrom(err)
	if retryable(err) {
		r.Remedy = NewReason(r.Code, "").Remedy
	}
	return temporal.NewApplicationErrorWithOptions(r.Cause, r.Code, temporal.ApplicationErrorOptions{NonRetryable: true, Details: []any{r}})
}

// retryable: a BMC that is busy or away, and Postgres away. A state that was
// not read within its bound is not waited for once more.
func retryable(err error) bool {
	var own Reason
	if errors.As(err, &own) {
		return false
	}
	switch bmc.KindOf(err) {
	case bmc.KindBusy, bmc.KindUnreachable, bmc.KindProtocol:
		return true
	case "":
	default:
		return false
	}
	switch fleet.CodeOf(err) {
	case fleet.CodeInternal, fleet.CodeUnavailable:
		// What the database refuses once it refuses again: the operation parks and
		// says so instead of trying for ever.
		return fleet.ReasonOf(err) != fleet.ReasonRejected
	default:
		return false
	}
}

// busyDelay is the wait after a "busy" without a hint.
const busyDelay = 5 * time.Second

func retryDelay(err error) time.Duration {
	var be *bmc.Error
	if !errors.As(err, &be) {
		return 0
	}
	if be.RetryAfter > 0 {
		return be.RetryAfter
	}
	if be.Kind == bmc.KindBusy {
		return busyDelay
	}
	return 0
}

// ReasonOf reads why an activity failed from the error that a workflow sees:
// the activity's own reason, a timeout, or whatever it was.
func ReasonOf(err error) Reason {
	var own Reason
	if errors.As(err, &own) {
		return own
	}
	var app *temporal.ApplicationError
	if errors.As(err, &app) {
		var r Reason
		if app.HasDetails() && app.Details(&r) == nil && r.Code != "" {
			return r
		}
		return NewReason(CodeInternal, "%s", app.Message())
	}
	var late *temporal.TimeoutError
	if errors.As(err, &late) {
		if late.TimeoutType() == enumspb.TIMEOUT_TYPE_HEARTBEAT {
			return NewReason(CodeInternal, "the worker that acted on the machine was lost")
		}
		return NewReason(string(bmc.KindTimeout), "the act did not end within its bound")
	}
	return NewReason(CodeInternal, "%s", err)
}
