package activities

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.temporal.io/sdk/temporal"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// TestErrorsToTemporal: which errors are tried again, after what delay, and
// under which code a workflow sees them.
func TestErrorsToTemporal(t *testing.T) {
	t.Parallel()
	kind := func(k bmc.Kind) error { return &bmc.Error{Kind: k, Doing: "act", Cause: "why"} }
	cases := []struct {
		name  string
		err   error
		code  string
		again bool
		delay time.Duration
	}{
		{"busy without a hint", kind(bmc.KindBusy), "busy", true, busyDelay},
		{"busy with a hint", &bmc.Error{Kind: bmc.KindBusy, RetryAfter: 30 * time.Second}, "busy", true, 30 * time.Second},
		{"unreachable", kind(bmc.KindUnreachable), "unreachable", true, 0},
		{"protocol", kind(bmc.KindProtocol), "protocol", true, 0},
		{"timeout", kind(bmc.KindTimeout), "timeout", false, 0},
		{"unsupported", kind(bmc.KindUnsupported), "unsupported", false, 0},
		{"authentication", kind(bmc.KindAuth), "authentication", false, 0},
		{"trust", kind(bmc.KindTrust), "trust", false, 0},
		{"wrong machine", kind(bmc.KindWrongMachine), "wrong-machine", false, 0},
		{"not allowed", kind(bmc.KindNotAllowed), "address-not-allowed", false, 0},
		{"refused", kind(bmc.KindRefused), "refused", false, 0},
		{"superseded", fleet.Errorf(fleet.CodeConflict, CodeSuperseded, "x"), CodeSuperseded, false, 0},
		{"unknown operation", fleet.Errorf(fleet.CodeNotFound, CodeUnknown, "x"), CodeUnknown, false, 0},
		{"already enrolled", fleet.Errorf(fleet.CodeConflict, CodeEnrolled, "x"), CodeEnrolled, false, 0},
		{"Postgres away", errors.New("connection refused"), CodeInternal, true, 0},
		{"Postgres away, said so", fleet.Errorf(fleet.CodeUnavailable, "", "x"), string(fleet.CodeUnavailable), true, 0},
		{"refused by the database", fleet.Errorf(fleet.CodeInternal, fleet.ReasonRejected, "x"), fleet.ReasonRejected, false, 0},
		{"an own reason", NewReason(CodeMismatch, "x"), CodeMismatch, false, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var app *temporal.ApplicationError
			if !errors.As(toTemporal(c.err), &app) {
				t.Fatal("not an application error")
			}
			if app.Type() != c.code || app.NonRetryable() == c.again || app.NextRetryDelay() != c.delay {
				t.Errorf("type %s, retried %v after %s", app.Type(), !app.NonRetryable(), app.NextRetryDelay())
			}
			if r := ReasonOf(app); r.Code != c.code || r.Remedy == "" {
				t.Errorf("reason %+v", r)
			}
		})
	}
	if err := toTemporal(context.Canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancel became %v", err)
	}
}

// TestCausesCanBeStored: whatever a BMC says, its operation can be recorded as
// failed.
func TestCausesCanBeStored(t *testing.T) {
	t.Parallel()
	said := "\xff\x00" + strings.Repeat("é", mostCause)
	for _, err := range []error{&bmc.Error{Kind: bmc.KindRefused, Cause: said}, NewReason(CodeMachine, "%s", said), errors.New(said)} {
		if cause := reasonFrom(err).Cause; strings.Contains(cause, "\x00") || !utf8.ValidString(cause) || len(cause) > mostCause {
			t.Errorf("%T: %d bytes, %.20q", err, len(cause), cause)
		}
	}
}

// TestEveryKindHasARemedy of its own.
func TestEveryKindHasARemedy(t *testing.T) {
	t.Parallel()
	for _, k := range []bmc.Kind{bmc.KindBusy, bmc.KindUnreachable, bmc.KindTimeout, bmc.KindUnsupported, bmc.KindAuth, bmc.KindTrust,
		bmc.KindWrongMachine, bmc.KindNotAllowed, bmc.KindRefused, bmc.KindProtocol} {
		if remedies[string(k)] == "" {
			t.Errorf("no remedy for %s", k)
		}
	}
}
