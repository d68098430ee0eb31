package redfish

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/stmcginnis/gofish/common"
	"github.com/stmcginnis/gofish/redfish"

	"github.com/bettercompute/compute/bmc"
)

// maxLog bounds how many entries of the BMC's logs are returned, and how many
// of one log are read one by one.
const maxLog = 200

// Log returns the entries of the machine's and its managers' logs since a time,
// oldest first.
func (c *Client) Log(ctx context.Context, since time.Time) ([]bmc.LogEntry, error) {
	s, err := c.findSystem(ctx)
	if err != nil {
		return nil, err
	}
	managers, err := c.managers(ctx, s)
	if err != nil {
		return nil, err
	}
	services := []common.Link{s.more.LogServices}
	for _, m := range managers {
		services = append(services, m.more.LogServices)
	}
	var out []bmc.LogEntry
	for _, l := range services {
		if l == "" {
			continue
		}
		entries, err := c.logEntries(ctx, string(l), since)
		if err != nil && !missing(err) {
			return nil, err
		}
		out = append(out, entries...)
	}
	slices.SortStableFunc(out, func(a, b bmc.LogEntry) int { return a.At.Compare(b.At) })
	return out[max(0, len(out)-maxLog):], nil
}

func (c *Client) logEntries(ctx context.Context, link string, since time.Time) ([]bmc.LogEntry, error) {
	doing := "read the log of " + c.name()
	logs, err := c.members(ctx, link, doing)
	if err != nil {
		return nil, err
	}
	var out []bmc.LogEntry
	for _, l := range logs {
		r, err := c.get(ctx, l, doing)
		if missing(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var svc struct{ Entries common.Link }
		_ = json.Unmarshal(r.raw, &svc) // a log without entries has none
		if svc.Entries == "" {
			continue
		}
		entries, err := c.entries(ctx, string(svc.Entries), since, doing)
		if err != nil && !missing(err) {
			return nil, err
		}
		out = append(out, entries...)
	}
	return out, nil
}

// entries reads one page of entries, which services give expanded, or else the
// last ones by their links.
func (c *Client) entries(ctx context.Context, link string, since time.Time, doing string) ([]bmc.LogEntry, error) {
	r, err := c.get(ctx, link, doing)
	if err != nil {
		return nil, err
	}
	var page struct{ Members []json.RawMessage }
	if err := json.Unmarshal(r.raw, &page); err != nil {
		return nil, c.nonsense(doing, err)
	}
	var out []bmc.LogEntry
	read := 0
	for i := len(page.Members) - 1; i >= 0 && len(out) < maxLog; i-- {
		raw := page.Members[i]
		var ref common.Link
		_ = json.Unmarshal(raw, &ref) // an entry without a link is itself
		e, _, err := decode[redfish.LogEntry](raw)
		if (err != nil || e.Created == "" && e.Message == "") && ref != "" && read < maxLog {
			read++
			er, err := c.get(ctx, string(ref), doing)
			if missing(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if e, _, err = decode[redfish.LogEntry](er.raw); err != nil {
				continue
			}
		}
		if e == nil {
			continue
		}
		at, err := time.Parse(time.RFC3339, e.Created)
		if err == nil && at.Before(since) {
			continue
		}
		out = append(out, bmc.LogEntry{At: at, Severity: string(e.Severity), Message: c.redact(clean(e.Message))})
	}
	return out, nil
}
