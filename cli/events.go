package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/fleet"
)

// streamSilence is how long a stream, which says every 15 seconds that it lives,
// may be silent before it is opened anew.
const streamSilence = time.Minute

// eventStream is what computectl events follows.
type eventStream struct {
	*app
	node, prefix string
	// cursor is the last event that was printed or passed over.
	cursor string
	names  map[string]string
}

// eventsCmd follows the events of all nodes.
func (a *app) eventsCmd() *cobra.Command {
	s := &eventStream{app: a, names: map[string]string{}}
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Follow the events of all nodes as they happen",
		Long: "Prints events from now on, or from --cursor on, until interrupted. It resumes where it was after an outage of the API.\n" +
			"What happened before is in `computectl nodes events NODE`.",
		Args: arguments(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			in := map[string]any{"tenantId": a.tenant, "nodeId": s.node}
			if err := a.resolveNode(cmd.Context(), in); err != nil {
				return err
			}
			s.node, _ = in["nodeId"].(string)
			return s.follow(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.node, "node", "", "only events of this node")
	f.StringVar(&s.prefix, "type", "", "only events whose type begins so, such as node.operation. or security.")
	f.StringVar(&s.cursor, "cursor", "", "go on after this event")
	return cmd
}

// follow reads the stream, again and again from where it was.
func (s *eventStream) follow(ctx context.Context) error {
	for {
		err := s.steadily(ctx, func() error { return s.read(ctx) })
		stopped := ctx.Err() != nil
		if stopped {
			err = nil // by who watches: no failure
		}
		if err != nil || stopped {
			if s.cursor != "" {
				fmt.Fprintf(s.err, "to go on after the last one: --cursor %s\n", s.cursor)
			}
			return err
		}
		select { // it ended well: the process or the session did
		case <-ctx.Done():
		case <-time.After(awayPause):
		}
	}
}

// read reads one stream to its end.
func (s *eventStream) read(ctx context.Context) error {
	if err := s.checkURL(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watchdog := time.AfterFunc(streamSilence, cancel)
	defer watchdog.Stop()
	query := url.Values{"tenantId": {s.tenant}}
	for name, v := range map[string]string{"nodeId": s.node, "type": s.prefix, "cursor": s.cursor} {
		if v != "" {
			query.Set(name, v)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(s.url, "/")+"/api/compute/events/stream?"+query.Encode(), nil)
	if err != nil {
		return usagef("%q is no URL: %w", s.url, err)
	}
	req.Header.Set("Authorization", "Bearer "+cmp.Or(s.token, os.Getenv("COMPUTE_TOKEN")))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotReached, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			return fmt.Errorf("%w: read its answer: %w", errNotReached, err)
		}
		return problemOf(resp, answer)
	}
	var id, kind string
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		watchdog.Reset(streamSilence)
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			if err := s.show(ctx, kind, value); err != nil {
				return err
			}
		case "": // the end of an event, or a sign of life
			s.cursor = cmp.Or(id, s.cursor)
			kind = ""
		}
	}
	return nil // however it was cut off, the next one goes on
}

// show prints one event, or says that some are gone.
func (s *eventStream) show(ctx context.Context, kind, data string) error {
	if kind == "gap" {
		fmt.Fprintln(s.err, "events after the cursor are kept no more; what follows begins later")
		return nil
	}
	var e fleet.Event
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		return fmt.Errorf("read an event: %w", err)
	}
	if s.output == "json" {
		fmt.Fprintln(s.out, data)
		return nil
	}
	fmt.Fprintf(s.out, "%s  %-32s %-20s %-20s %s\n", e.At.Format(fleet.TimeFormat), e.Type, s.nameOf(ctx, e.NodeID), e.Actor, pairs(e.Data))
	return nil
}

// nameOf is a node's name, which is asked for once; its id where it has none.
func (s *eventStream) nameOf(ctx context.Context, id string) string {
	if id == "" {
		return "-"
	}
	name, known := s.names[id]
	if !known {
		var out struct{ Node fleet.Node }
		if s.call(ctx, "nodes", "get", map[string]any{"tenantId": s.tenant, "nodeId": id}, &out) == nil {
			name = out.Node.Name
		}
		s.names[id] = name
	}
	return cmp.Or(name, id)
}
