package api

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// A stream looks for events this often, and says that it lives this often.
const (
	streamEvery     = 250 * time.Millisecond
	streamKeepalive = 15 * time.Second
	streamPage      = 200
	// streamCheck is how often a stream's caller is judged again: a role that was
	// taken away ends it.
	streamCheck = 10 * time.Second
)

// streamMethod is what the stream is decided and audited as.
var streamMethod = fleet.Method{Group: "events", Name: "stream", Kind: fleet.KindRead, Permission: fleet.PermNodesRead, Resource: fleet.OnTenant}

// stream serves a tenant's events as server-sent events, from Last-Event-ID or
// cursor on, else from now.
func (s *Server) stream(g *gin.Context) {
	c, f, err := s.streamFilter(g)
	if err != nil {
		writeProblem(g, s.log, err)
		return
	}
	// The stream ends with the caller's session, and with the process.
	ctx, cancel := context.WithDeadline(g.Request.Context(), c.SessionEnd)
	defer cancel()
	defer context.AfterFunc(s.streams, cancel)()
	g.Header("Content-Type", "text/event-stream")
	g.Header("Cache-Control", "no-store")
	g.Header("X-Accel-Buffering", "no")
	if err := s.sendGap(ctx, g, &f); err != nil {
		return
	}
	g.Writer.Flush()
	tick := time.NewTicker(streamEvery)
	defer tick.Stop()
	quiet, judged := time.Now(), time.Now()
	for {
		if time.Since(judged) > streamCheck {
			if s.streamPermitted(ctx, c) != nil {
				return
			}
			judged = time.Now()
		}
		sent, err := s.sendEvents(ctx, g, c, &f)
		if err != nil {
			return // the client resumes with its last id
		}
		if sent == streamPage {
			continue
		}
		if sent > 0 {
			quiet = time.Now()
		} else if time.Since(quiet) > streamKeepalive {
			// The id moves on although nothing is told, so that who comes back reads on
			// from here.
			fmt.Fprintf(g.Writer, ": alive\nid: %s\n\n", eventCursor(f))
			g.Writer.Flush()
			quiet = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sendGap tells a client whose cursor is past retention that events after it
// are gone, and goes on from the oldest that is kept.
func (s *Server) sendGap(ctx context.Context, g *gin.Context, f *store.StreamFilter) error {
	gap, kept, err := store.EventsGap(ctx, s.store.Pool(), f.Tx, f.Seq)
	if err != nil || !gap {
		return err
	}
	b, err := json.Marshal(map[string]string{"cursor": kept, "detail": gapDetail})
	if err != nil {
		return fmt.Errorf("write a gap: %w", err)
	}
	if _, err := fmt.Fprintf(g.Writer, "id: %s\nevent: gap\ndata: %s\n\n", kept, b); err != nil {
		return err //nolint:wrapcheck // the client is gone
	}
	f.Tx, f.Seq, err = splitCursor(kept)
	return err
}

// gapDetail says what to do about a gap.
const gapDetail = "events between your cursor and this one were removed after 90 days; read the present state of what you follow anew"

// EndStreams ends all streams, whose clients then resume at another process; a
// server that is shut down would wait for them.
func (s *Server) EndStreams() { s.endStreams() }

func (s *Server) sendEvents(ctx context.Context, g *gin.Context, c *Call, f *store.StreamFilter) (int, error) {
	end, err := store.EventsEnd(ctx, s.store.Pool())
	if err != nil {
		return 0, err
	}
	list, err := store.TenantEvents(ctx, s.store.Pool(), *f)
	if err != nil {
		return 0, err
	}
	for _, e := range list {
		if f.Tx, f.Seq, err = splitCursor(e.Cursor); err != nil {
			return 0, err
		}
		if e.NodeID != "" && !c.May(fleet.PermNodesRead, Target{Kind: fleet.OnNode, ID: e.NodeID, OwnerTenant: e.TenantID, NodeID: e.NodeID}) {
			continue
		}
		b, err := json.Marshal(e)
		if err != nil {
			return 0, fmt.Errorf("write an event: %w", err)
		}
		if _, err := fmt.Fprintf(g.Writer, "id: %s\nevent: %s\ndata: %s\n\n", e.Cursor, e.Type, b); err != nil {
			return 0, err //nolint:wrapcheck // the client is gone
		}
	}
	if len(list) > 0 {
		g.Writer.Flush()
	}
	// All up to the end that was read before is told: a tenant of few events does
	// not read those of the others again each time.
	if len(list) < streamPage && end > f.Tx {
		f.Tx, f.Seq = end, math.MaxInt64
	}
	return len(list), nil
}

// streamFilter authenticates, checks the query and decides.
func (s *Server) streamFilter(g *gin.Context) (*Call, store.StreamFilter, error) {
	ctx := g.Request.Context()
	f := store.StreamFilter{TenantID: g.Query("tenantId"), NodeID: g.Query("nodeId"), Prefix: g.Query("type"), Limit: streamPage}
	caller, err := s.authn.caller(ctx, g.GetHeader("Authorization"))
	if err != nil {
		return nil, f, err
	}
	g.Set("identity", caller.Identity)
	cursor := g.GetHeader("Last-Event-ID")
	if cursor == "" {
		cursor = g.Query("cursor")
	}
	var wrong []fleet.FieldError
	for _, c := range []struct{ name, value, pattern string }{
		{"tenantId", f.TenantID, "tenantId"}, {"nodeId", f.NodeID, "nodeId"}, {"type", f.Prefix, "eventType"}, {"cursor", cursor, "eventCursor"},
	} {
		if (c.value != "" || c.name == "tenantId") && !fleet.MatchPattern(c.pattern, c.value) {
			wrong = append(wrong, fleet.FieldError{Field: c.name, Constraint: "matches " + fleet.Patterns[c.pattern]})
		}
	}
	if len(wrong) > 0 {
		return nil, f, invalidInput(wrong)
	}
	if cursor != "" {
		if f.Tx, f.Seq, err = splitCursor(cursor); err != nil {
			return nil, f, err
		}
	}
	c := &Call{Caller: caller, TenantID: f.TenantID, RequestID: g.GetString(requestIDKey), Method: streamMethod, srv: s}
	if err := s.streamPermitted(ctx, c); err != nil {
		return nil, f, err
	}
	if cursor == "" {
		f.Tx, err = store.EventsEnd(ctx, s.store.Pool())
	}
	return c, f, err
}

// streamPermitted judges a stream's caller by the roles that it holds now.
func (s *Server) streamPermitted(ctx context.Context, c *Call) error {
	if err := s.admit(ctx, c); err != nil {
		return err
	}
	c.decided = c.OnTenant()
	if err := c.Permit(fleet.PermNodesRead, c.decided); err != nil {
		return c.refuse(ctx, "", false, err)
	}
	return nil
}

func eventCursor(f store.StreamFilter) string {
	return strconv.FormatUint(f.Tx, 10) + ":" + strconv.FormatUint(f.Seq, 10)
}

// splitCursor reads an event's cursor; one beyond 64 bits is INVALID_INPUT.
func splitCursor(cursor string) (tx, seq uint64, err error) {
	a, b, _ := strings.Cut(cursor, ":")
	tx, err1 := strconv.ParseUint(a, 10, 64)
	seq, err2 := strconv.ParseUint(b, 10, 64)
	if err1 != nil || err2 != nil {
		return 0, 0, fleet.Invalid("cursor", "an event's cursor as it was given")
	}
	return tx, seq, nil
}
