package bmc

import (
	"errors"
	"fmt"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// Kind says what an error of a BMC means for what to do next. It is decided in
// one place per driver and carried here.
type Kind string

// The kinds. KindBusy and KindUnreachable may be tried again later; all others
// end the attempt until something changes.
const (
	// KindBusy: the BMC or the lease is taken or not ready; RetryAfter hints.
	KindBusy Kind = "busy"
	// KindUnreachable: no connection, or it broke and the outcome is unknown.
	KindUnreachable Kind = "unreachable"
	// KindTimeout: the wanted state was not read in time.
	KindTimeout Kind = "timeout"
	// KindUnsupported: the BMC or driver offers no way to do it.
	KindUnsupported Kind = "unsupported"
	// KindAuth: the login was refused. Never retried into a lockout.
	KindAuth Kind = "authentication"
	// KindTrust: the certificate is not the trusted one; no password was sent.
	KindTrust Kind = "trust"
	// KindWrongMachine: what answers is not the recorded machine.
	KindWrongMachine Kind = "wrong-machine"
	// KindNotAllowed: the address is outside the site's networks.
	KindNotAllowed Kind = "address-not-allowed"
	// KindRefused: the BMC understood and refused; repeating is pointless.
	KindRefused Kind = "refused"
	// KindProtocol: the answer makes no sense (cut or wrong JSON and the like)
	// and stayed so.
	KindProtocol Kind = "protocol"
)

// Error is an error from a BMC with its kind.
type Error struct {
	Kind Kind
	// Doing says what was attempted on which BMC, such as
	// "switch on 10.0.0.5".
	Doing string
	// Cause is in plain words, with status and message id where there are any.
	Cause string
	// Remedy says what a person can try.
	Remedy string
	// RetryAfter is the BMC's or the lease's hint, 0 without one.
	RetryAfter time.Duration
	// Status and MessageID are the BMC's own answer, where there was one.
	Status    int
	MessageID string
	// Unsent says that no byte of the request reached the BMC, so that a change
	// it carried was certainly not made.
	Unsent bool
	// Shown is the fingerprint of the certificate that the BMC shows in place of
	// the pinned one (KindTrust), ShownIdentity the machine that it shows in
	// place of the recorded one (KindWrongMachine).
	Shown         string
	ShownIdentity *fleet.BMCIdentity
	// Candidates are the systems of a service when none or several match.
	Candidates []string
	Err        error
}

// Error says what was being done, the kind and the cause.
func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Doing, e.Kind, e.Cause)
}

// Unwrap returns the underlying error.
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of an error from this package's drivers, or "" for
// any other.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}

// Retryable says whether an error may go away by itself.
func Retryable(err error) bool {
	switch KindOf(err) {
	case KindBusy, KindUnreachable, KindTimeout, KindProtocol:
		return true
	default:
		return false
	}
}
