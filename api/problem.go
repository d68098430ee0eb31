package api

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel/trace"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// statuses is the HTTP status of each code.
var statuses = map[fleet.Code]int{
	fleet.CodeInvalidInput: http.StatusBadRequest, fleet.CodeUnauthenticated: http.StatusUnauthorized, fleet.CodeAccessDenied: http.StatusForbidden,
	fleet.CodeNotFound: http.StatusNotFound, fleet.CodeConflict: http.StatusConflict, fleet.CodeInvalidState: http.StatusUnprocessableEntity,
	fleet.CodeRateLimited: http.StatusTooManyRequests, fleet.CodeUnavailable: http.StatusServiceUnavailable,
	fleet.CodeUnsupported: http.StatusNotImplemented, fleet.CodeInternal: http.StatusInternalServerError,
}

var titles = map[fleet.Code]string{
	fleet.CodeInvalidInput: "The input is not valid", fleet.CodeUnauthenticated: "Who calls is not known", fleet.CodeAccessDenied: "Not permitted",
	fleet.CodeNotFound: "Not found", fleet.CodeConflict: "Something else came first", fleet.CodeInvalidState: "Not in this state",
	fleet.CodeRateLimited: "Too many calls", fleet.CodeUnavailable: "Not available now", fleet.CodeUnsupported: "Not supported",
	fleet.CodeInternal: "Internal error",
}

// laterAgain is when to try again what names no time of its own.
const laterAgain = 30 * time.Second

// retryAfter is when a repeat can come to something else, 0 for what does not
// change by waiting: UNAVAILABLE and RATE_LIMITED always do.
func retryAfter(e *fleet.Error) time.Duration {
	if e.RetryAfter <= 0 && (e.Code == fleet.CodeUnavailable || e.Code == fleet.CodeRateLimited) {
		return laterAgain
	}
	return e.RetryAfter
}

// writeProblem is the only writer of errors: problem+json (RFC 9457). What is
// internal is logged under the request's id and does not leave.
func writeProblem(g *gin.Context, log *slog.Logger, err error) {
	var e *fleet.Error
	switch {
	case errors.As(err, &e):
	case store.Away(err), errors.Is(err, context.DeadlineExceeded):
		e = fleet.Errorf(fleet.CodeUnavailable, "database", "the database does not answer; nothing was changed unless a repeat with the same Idempotency-Key says so; try again")
		e.RetryAfter = time.Second
	default:
		e = fleet.Errorf(fleet.CodeInternal, "", "the call failed for a reason of ours; its request id finds it in the log")
		e.Err = err
	}
	requestID := g.GetString(requestIDKey)
	g.Set(codeKey, string(e.Code))
	switch {
	case e.Code == fleet.CodeInternal, e.Code == fleet.CodeUnavailable:
		log.ErrorContext(g.Request.Context(), "call failed", "request", requestID, "path", g.Request.URL.Path, "error", err)
	case e.Code == fleet.CodeUnauthenticated && e.Err != nil:
		// The caller is not told which of a token's claims is wrong; who runs this is.
		log.InfoContext(g.Request.Context(), "token refused", "request", requestID, "path", g.Request.URL.Path, "error", e.Err)
	}
	status := e.Status
	if status == 0 {
		status = statuses[e.Code]
	}
	body := map[string]any{"type": "about:blank", "title": titles[e.Code], "status": status, "detail": e.Detail,
		"instance": g.Request.URL.Path, "code": e.Code, "requestId": requestID}
	if span := trace.SpanContextFromContext(g.Request.Context()); span.IsValid() {
		body["traceId"] = span.TraceID().String()
	}
	if e.Reason != "" {
		body["reason"] = e.Reason
	}
	if len(e.Fields) > 0 {
		body["fields"] = e.Fields
	}
	for name, v := range e.Members {
		body[name] = v
	}
	if after := retryAfter(e); after > 0 {
		g.Header("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	}
	if status == http.StatusUnauthorized {
		g.Header("WWW-Authenticate", "Bearer")
	}
	b, err := json.Marshal(body)
	if err != nil {
		log.ErrorContext(g.Request.Context(), "write a problem", "request", requestID, "error", err)
		g.AbortWithStatus(http.StatusInternalServerError)
		return
	}
	g.Abort()
	g.Data(status, "application/problem+json", b)
}
