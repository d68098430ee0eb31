package gateway

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// problem is an error as machines read it (RFC 9457).
type problem struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Reason string `json:"reason,omitempty"`
	Detail string `json:"detail"`
	// YouCan are the ways out, for a person.
	YouCan []string `json:"youCan,omitempty"`
}

func answerProblem(w http.ResponseWriter, status int, code, reason, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	writeJSON(w, status, problem{Status: status, Code: code, Reason: reason, Detail: detail})
}

func answerJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	writeJSON(w, http.StatusOK, v)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// A machine that is gone does not read its answer; it asks again.
	_ = json.NewEncoder(w).Encode(v)
}

// statuses maps codes to what machines are answered.
var statuses = map[fleet.Code]int{
	fleet.CodeInvalidInput: http.StatusBadRequest, fleet.CodeUnauthenticated: http.StatusUnauthorized, fleet.CodeAccessDenied: http.StatusForbidden,
	fleet.CodeNotFound: http.StatusNotFound, fleet.CodeConflict: http.StatusConflict, fleet.CodeInvalidState: http.StatusUnprocessableEntity,
	fleet.CodeRateLimited: http.StatusTooManyRequests, fleet.CodeUnsupported: http.StatusNotImplemented, fleet.CodeUnavailable: http.StatusServiceUnavailable,
}

// answerError answers an error; what is ours alone is logged and not told.
func (g *Gateway) answerError(w http.ResponseWriter, r *http.Request, err error) {
	var e *fleet.Error
	if !errors.As(err, &e) || statuses[e.Code] == 0 {
		g.log.ErrorContext(r.Context(), "request failed", "route", r.Pattern, "error", err)
		w.Header().Set("Retry-After", "1")
		answerProblem(w, http.StatusInternalServerError, string(fleet.CodeInternal), "", "something failed here; try again")
		return
	}
	status := statuses[e.Code]
	if e.Reason == store.ReasonCommandEnded {
		status = http.StatusGone
	}
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(e.RetryAfter.Seconds()))))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	youCan, _ := e.Members["youCan"].([]string) // absent where there is none
	writeJSON(w, status, problem{Status: status, Code: string(e.Code), Reason: e.Reason, Detail: e.Detail, YouCan: youCan})
}

// readJSON reads a bounded body. Members that we do not know are left alone: an
// agent can be newer than we are.
func readJSON(w http.ResponseWriter, r *http.Request, limit int64, v any) error {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return fleet.Errorf(fleet.CodeInvalidInput, "too-large", "the body is larger than %d bytes", limit)
	}
	if err != nil {
		return fleet.Errorf(fleet.CodeInvalidInput, "", "the body could not be read")
	}
	if err := jsonv2.Unmarshal(b, v); err != nil {
		return fleet.Errorf(fleet.CodeInvalidInput, "", "the body is not the JSON that this request takes")
	}
	return nil
}
