package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// watchAnswer follows the operation that a verb's answer names, and those that
// follow it by themselves, and fails when one does.
func (a *app) watchAnswer(ctx context.Context, m fleet.Method, answer json.RawMessage) error {
	var out fleet.MetalOperationOut
	if err := json.Unmarshal(answer, &out); err != nil {
		return fmt.Errorf("read the API's answer: %w", err)
	}
	if m.Group == "nodes" && out.Node != nil {
		var ops fleet.NodeOperations
		if out.Node.Operations != nil { // a tenant that the node is offered to sees none
			ops = *out.Node.Operations
		}
		id := ops.Provision
		if m.Name == "drain" {
			id = ops.Drain
		}
		if id != "" {
			out.Operation = &fleet.Operation{ID: id}
		}
	}
	if out.Operation == nil {
		return a.print(answer) // a dry run, or a drain that had nothing to wait for
	}
	op := *out.Operation
	tenant := a.tenant
	if out.Node != nil {
		tenant = out.Node.TenantID
	}
	for {
		end, err := a.follow(ctx, tenant, op)
		if err != nil {
			return err
		}
		if end.Next == "" || end.State != fleet.OpSucceeded {
			if m.FullName() == "metal/abort" {
				return a.watched(end, fleet.OpAborted)
			}
			return a.watched(end, fleet.OpSucceeded)
		}
		op = fleet.Operation{ID: end.Next}
	}
}

// watched is how the last operation that was watched ended: as JSON the whole of
// it, else its failure. An abort asks for another end than the others.
func (a *app) watched(op fleet.Operation, want fleet.OperationState) error {
	if a.output == "json" {
		raw, err := json.Marshal(fleet.OperationOut{Operation: op})
		if err != nil {
			return fmt.Errorf("print the operation: %w", err)
		}
		if err := a.print(raw); err != nil {
			return err
		}
	}
	if op.State != want {
		return failedOperation{op}
	}
	if want == fleet.OpAborted && op.Error != nil && a.output != "json" {
		fmt.Fprintf(a.out, "%s %s: %s\n", op.Verb, op.State, op.Error.Cause)
	}
	return nil
}

// awayFor bounds how long a command that watches bears with an API that does
// not answer, and awayPause how soon it asks again.
const (
	awayFor   = 10 * time.Minute
	awayPause = time.Second
)

// steadily makes a read again while the API does not answer: what is watched
// goes on meanwhile. It says so once.
func (a *app) steadily(ctx context.Context, read func() error) error {
	var since time.Time
	for {
		err := read()
		if err == nil || ctx.Err() != nil || !passes(err) {
			return err
		}
		if since.IsZero() {
			since = a.now()
			fmt.Fprintf(a.err, "%v; asking again until it answers\n", err)
		}
		if a.now().Sub(since) > awayFor {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(awayPause):
		}
	}
}

// passes says whether an error of a call goes away by itself: the API is not
// reached, is not available, or has had too many calls.
func passes(err error) bool {
	var p *problem
	if errors.As(err, &p) {
		return p.Code == fleet.CodeUnavailable || p.Code == fleet.CodeRateLimited
	}
	var gone *url.Error
	return errors.As(err, &gone)
}

// follow prints an operation's steps as they change until it ends or parks.
func (a *app) follow(ctx context.Context, tenant string, op fleet.Operation) (fleet.Operation, error) {
	p := &stepPrinter{out: a.out, seen: map[string]string{}}
	if a.output == "json" {
		p.out = a.err // the end of it is the answer
	}
	for {
		var out fleet.OperationOut
		err := a.steadily(ctx, func() error {
			return a.call(ctx, "operations", "get", map[string]any{"tenantId": tenant, "operationId": op.ID}, &out)
		})
		if err != nil {
			fmt.Fprintf(a.err, "no longer watching; the operation goes on: computectl operations get %s --watch\n", op.ID)
			return op, cmp.Or(ctx.Err(), err)
		}
		op = out.Operation
		p.show(op)
		if op.EndedAt != nil || op.State == fleet.OpFailed {
			return op, nil
		}
		// operations/wait returns when the state changes; the steps, which are
		// what a person watches, change more often.
		select {
		case <-ctx.Done():
			fmt.Fprintf(a.err, "no longer watching; the operation goes on: computectl operations get %s --watch\n", op.ID)
			return op, ctx.Err()
		case <-time.After(700 * time.Millisecond):
		}
	}
}

// stepPrinter prints each change once.
type stepPrinter struct {
	out    io.Writer
	seen   map[string]string
	headed bool
}

func (p *stepPrinter) show(op fleet.Operation) {
	if !p.headed {
		fmt.Fprintf(p.out, "%s %s\n", op.Verb, op.ID)
		p.headed = true
	}
	for _, s := range op.Steps {
		if s.State == fleet.StepPending {
			continue
		}
		if s.State == fleet.StepFailed && op.State != fleet.OpFailed && op.EndedAt == nil {
			p.once("step "+s.Name, fmt.Sprintf("  again    %s: it had failed: %s", s.Name, s.Detail))
			continue // it is being retried
		}
		line := fmt.Sprintf("  %-8s %s", s.State, s.Name)
		if s.Detail != "" {
			line += ": " + s.Detail
		}
		if s.StartedAt != nil && s.EndedAt != nil {
			took := s.EndedAt.Sub(s.StartedAt.Time).Round(100 * time.Millisecond).String()
			if s.Attempts > 1 {
				took += fmt.Sprintf(" since attempt 1 of %d", s.Attempts)
			}
			line += " (" + took + ")"
		}
		p.once("step "+s.Name, line)
	}
	waiting := ""
	if w := op.WaitingFor; w != nil {
		waiting = fmt.Sprintf("  waiting  for %s: %s (you can: %s)", w.Actor, w.What, strings.Join(w.YouCan, ", "))
	}
	p.once("waiting", waiting)
	if op.EndedAt != nil && op.State == fleet.OpSucceeded {
		p.once("end", fmt.Sprintf("%s succeeded in %s", op.Verb, op.EndedAt.Sub(op.CreatedAt.Time).Round(100*time.Millisecond)))
	}
}

func (p *stepPrinter) once(key, line string) {
	if p.seen[key] != line && line != "" {
		fmt.Fprintln(p.out, line)
	}
	p.seen[key] = line
}

// followEvents prints a node's events as they happen, until interrupted.
func (a *app) followEvents(ctx context.Context, in map[string]any) error {
	for {
		var page fleet.EventsPage
		if err := a.steadily(ctx, func() error { return a.call(ctx, "nodes", "events", in, &page) }); err != nil {
			return err
		}
		for _, e := range page.Items {
			a.printEvent(e)
			in["cursor"] = e.Cursor
		}
		if page.NextCursor != "" {
			in["cursor"] = page.NextCursor
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}
