package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// problem is an answer of the API that is an error (RFC 9457).
type problem struct {
	Title     string             `json:"title"`
	Status    int                `json:"status"`
	Detail    string             `json:"detail"`
	Code      fleet.Code         `json:"code"`
	Reason    string             `json:"reason"`
	Fields    []fleet.FieldError `json:"fields"`
	RequestID string             `json:"requestId"`
	members   map[string]json.RawMessage
}

func (p *problem) Error() string {
	s := string(p.Code)
	if p.Reason != "" {
		s += " (" + p.Reason + ")"
	}
	return s + ": " + p.Detail
}

// explain adds the fields and what else the answer names.
func (p *problem) explain() string {
	var b strings.Builder
	fmt.Fprintf(&b, "computectl: %s", p.Error())
	for _, f := range p.Fields {
		fmt.Fprintf(&b, "\n  %s: %s", f.Field, f.Constraint)
	}
	names := make([]string, 0, len(p.members))
	for name := range p.members {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Fprintf(&b, "\n  %s: %s", name, p.members[name])
	}
	if p.RequestID != "" {
		fmt.Fprintf(&b, "\n  request: %s", p.RequestID)
	}
	return b.String()
}

// known are the members of a problem that explain prints by itself.
var known = []string{"type", "title", "status", "detail", "instance", "code", "reason", "fields", "requestId"}

// call makes one call and decodes the answer into out.
func (a *app) call(ctx context.Context, group, method string, in, out any) error {
	if a.url == "" {
		return usagef("no API URL: set COMPUTE_URL or pass --url (after make dev: . .dev/env)")
	}
	if a.token == "" {
		a.token = os.Getenv("COMPUTE_TOKEN")
	}
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encode the input of %s/%s: %w", group, method, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(a.url, "/")+"/api/compute/"+group+"/"+method, bytes.NewReader(body))
	if err != nil {
		return usagef("the API's URL: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+a.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("reach the API: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("read the API's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return problemOf(resp, answer)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("read the API's answer: %w", err)
	}
	return nil
}

func problemOf(resp *http.Response, answer []byte) error {
	p := &problem{}
	if err := json.Unmarshal(answer, p); err != nil || p.Code == "" {
		return fmt.Errorf("the server answered %s, which is no answer of the API; is COMPUTE_URL right?", resp.Status)
	}
	if err := json.Unmarshal(answer, &p.members); err != nil {
		return fmt.Errorf("read the API's answer: %w", err)
	}
	for _, name := range known {
		delete(p.members, name)
	}
	return p
}
