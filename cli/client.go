package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sort"
	"strconv"
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
	// retryAfter is how long the API asked to wait before the same call.
	retryAfter time.Duration
	// command is the command line that was refused, and given what its flags
	// give; none where a command made a call of its own.
	command string
	given   []field
}

func (p *problem) Error() string {
	s := string(p.Code)
	if p.Reason != "" {
		s += " (" + p.Reason + ")"
	}
	return s + ": " + p.Detail
}

// explain adds what was called, the fields and what else the answer names.
func (p *problem) explain() string {
	var b strings.Builder
	b.WriteString("computectl: ")
	if p.command != "" {
		b.WriteString(p.command + ": ")
	}
	b.WriteString(p.Error())
	for _, f := range p.Fields {
		name := f.Field
		if flags := p.flagsOf(name); flags != "" {
			name += " (" + flags + ")"
		}
		fmt.Fprintf(&b, "\n  %s: %s", name, f.Constraint)
	}
	names := make([]string, 0, len(p.members))
	for name := range p.members {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Fprintf(&b, "\n  %s: %s", name, p.members[name])
	}
	if p.Code == fleet.CodeUnauthenticated && os.Getenv("COMPUTE_DEV_ISSUER") != "" {
		b.WriteString("\n  of the local stack: export COMPUTE_TOKEN=$(computectl login --dev)")
	}
	if p.RequestID != "" {
		fmt.Fprintf(&b, "\n  request: %s", p.RequestID)
	}
	return b.String()
}

// flagsOf are the flags that give a member: its own, or the needed ones of those
// that give what is in it.
func (p *problem) flagsOf(member string) string {
	if member == "tenantId" && p.command != "" {
		return "--tenant, COMPUTE_TENANT"
	}
	var within []string
	for _, f := range p.given {
		path := strings.Join(f.path, ".")
		if path == member {
			return "--" + f.name()
		}
		if f.required && strings.HasPrefix(path, member+".") {
			within = append(within, "--"+f.name())
		}
	}
	return strings.Join(within, ", ")
}

// known are the members of a problem that explain prints by itself.
var known = []string{"type", "title", "status", "detail", "instance", "code", "reason", "fields", "requestId"}

// call makes one call and decodes the answer into out.
func (a *app) call(ctx context.Context, group, method string, in, out any) error {
	return a.send(ctx, group, method, "", in, out)
}

// checkURL says what is wrong with the API's URL.
func (a *app) checkURL() error {
	if a.url == "" {
		return usagef("no API URL: set COMPUTE_URL or pass --url (after make dev: . .dev/env)")
	}
	if !strings.HasPrefix(a.url, "http://") && !strings.HasPrefix(a.url, "https://") {
		return usagef("the API's URL is %q; it begins with http:// or https:// (COMPUTE_URL or --url)", a.url)
	}
	return nil
}

// send is call with an Idempotency-Key, under which a call may be sent again
// after its answer was lost.
func (a *app) send(ctx context.Context, group, method, key string, in, out any) error {
	if err := a.checkURL(); err != nil {
		return err
	}
	token := a.token
	if token == "" {
		token = os.Getenv("COMPUTE_TOKEN")
	}
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encode the input of %s/%s: %w", group, method, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(a.url, "/")+"/api/compute/"+group+"/"+method, bytes.NewReader(body))
	if err != nil {
		return usagef("%q is no URL: %w", a.url, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotReached, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("%w: read its answer: %w", errNotReached, err)
	}
	if resp.StatusCode != http.StatusOK {
		return problemOf(resp, answer)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("read the API's answer: %w", err)
	}
	return nil
}

// errNotReached is a call whose answer did not come: whether it was acted upon
// is not known.
var errNotReached = errors.New("reach the API")

// notReached says what to make of a call without an answer.
func notReached(err error) string {
	if errors.Is(err, context.Canceled) {
		return "computectl: interrupted; whether the last call was carried out is not known: look before you repeat it"
	}
	text := "computectl: " + err.Error()
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return text + "\n  nothing was sent: is the API up, and is COMPUTE_URL (or --url) right?"
	}
	return text + "\n  the answer was lost: of a call that changes something it is not known whether it was carried out, so look before you repeat it"
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
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		p.retryAfter = time.Duration(seconds) * time.Second
	}
	return p
}
