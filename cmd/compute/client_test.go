package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// refusal is an error's answer of the API.
type refusal struct {
	Status     int
	Code       fleet.Code         `json:"code"`
	Reason     string             `json:"reason"`
	Detail     string             `json:"detail"`
	Fields     []fleet.FieldError `json:"fields"`
	RetryAfter string
}

// callAt calls one of several processes of the API. Headers are names and
// values in turn.
func (u *user) callAt(url, method string, in, out any, headers ...string) *refusal {
	u.t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		u.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(u.t.Context(), http.MethodPost, url+"/api/compute/"+method, bytes.NewReader(body))
	if err != nil {
		u.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+u.env["COMPUTE_TOKEN"])
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return &refusal{Detail: err.Error()}
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return &refusal{Detail: err.Error()}
	}
	if resp.StatusCode == http.StatusOK {
		if out == nil {
			return nil
		}
		if err := json.Unmarshal(answer, out); err != nil {
			u.t.Errorf("%s answered %s: %v", method, answer, err)
		}
		return nil
	}
	r := &refusal{Status: resp.StatusCode, RetryAfter: resp.Header.Get("Retry-After")}
	if err := json.Unmarshal(answer, r); err != nil {
		u.t.Errorf("%s answered %d %s: %v", method, resp.StatusCode, answer, err)
	}
	return r
}

// get reads a document of a server of ours.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// patience bounds what a test waits for; reaching it is a failure.
const patience = 8 * time.Minute

// until looks until there is what is wanted. The look says what is still
// missing, "" when nothing is.
func until(t *testing.T, look func() (missing string)) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		missing := look()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(missing)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(missing)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
