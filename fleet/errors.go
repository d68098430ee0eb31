package fleet

import (
	"errors"
	"fmt"
	"time"
)

// Code is the kind of an API error.
type Code string

// The codes, with the HTTP status each answers (spec api.md, "Errors").
const (
	CodeInvalidInput    Code = "INVALID_INPUT"   // 400, 413, 415
	CodeUnauthenticated Code = "UNAUTHENTICATED" // 401
	CodeAccessDenied    Code = "ACCESS_DENIED"   // 403
	CodeNotFound        Code = "NOT_FOUND"       // 404, 405
	CodeConflict        Code = "CONFLICT"        // 409
	CodeInvalidState    Code = "INVALID_STATE"   // 422
	CodeRateLimited     Code = "RATE_LIMITED"    // 429
	CodeInternal        Code = "INTERNAL"        // 500
	CodeUnsupported     Code = "UNSUPPORTED"     // 501
	CodeUnavailable     Code = "UNAVAILABLE"     // 503
)

// FieldError is one offending field of an input and the constraint it broke.
type FieldError struct {
	Field      string `json:"field"`
	Constraint string `json:"constraint"`
}

// Error is an error that a caller of the API may see.
type Error struct {
	Code Code
	// Reason is a kebab-case word that programs can switch on.
	Reason string
	// Detail says what was wrong, what is allowed and what to do next.
	Detail string
	Fields []FieldError
	// Members are further members of the problem document, such as version.
	Members map[string]any
	// RetryAfter is sent as the Retry-After header when positive.
	RetryAfter time.Duration
	// Status overrides the code's HTTP status (405, 413, 415) when not 0.
	Status int
	// Err is the internal cause; it is logged and never leaves.
	Err error
}

// Error returns code, reason and detail.
func (e *Error) Error() string {
	s := string(e.Code)
	if e.Reason != "" {
		s += " (" + e.Reason + ")"
	}
	s += ": " + e.Detail
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the internal cause.
func (e *Error) Unwrap() error { return e.Err }

// With returns e with a further member of the problem document.
func (e *Error) With(name string, value any) *Error {
	if e.Members == nil {
		e.Members = map[string]any{}
	}
	e.Members[name] = value
	return e
}

// Errorf makes an Error with a code, a reason (may be empty) and a detail.
func Errorf(code Code, reason, format string, args ...any) *Error {
	return &Error{Code: code, Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// Invalid makes an INVALID_INPUT that names one field.
func Invalid(field, constraint string) *Error {
	return &Error{Code: CodeInvalidInput, Detail: field + ": " + constraint,
		Fields: []FieldError{{Field: field, Constraint: constraint}}}
}

// ReasonRejected is the reason of an INTERNAL error that repeating cannot mend:
// the database refused what was to be recorded.
const ReasonRejected = "record-rejected"

// ReasonCAKey is the reason of an UNAVAILABLE error: a CA's key lies in a token
// or a key service that does not sign now.
const ReasonCAKey = "ca-key-unavailable"

// NotFound makes the one NOT_FOUND of a kind of thing. Its words are the same
// for what is not there and for what the caller may not see.
func NotFound(kind string) *Error {
	return Errorf(CodeNotFound, "", "no such %s, or it is not visible to this tenant", kind)
}

// CodeOf returns the code of an error, CodeInternal for one that is not an
// Error, and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}

// ReasonOf returns the reason of an Error, else "".
func ReasonOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}
