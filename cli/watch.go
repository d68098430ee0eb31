package cli

import (
	"context"
	"encoding/json"
	"fmt"
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
		id := out.Node.Operations.Provision
		if m.Name == "drain" {
			id = out.Node.Operations.Drain
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
		if end.State != fleet.OpSucceeded {
			return failedOperation{end}
		}
		if end.Next == "" {
			return nil
		}
		op = fleet.Operation{ID: end.Next}
	}
}

// follow prints an operation's steps as they change until it ends or parks.
func (a *app) follow(ctx context.Context, tenant string, op fleet.Operation) (fleet.Operation, error) {
	p := &stepPrinter{app: a, seen: map[string]string{}}
	for {
		var out fleet.OperationOut
		if err := a.call(ctx, "operations", "get", map[string]any{"tenantId": tenant, "operationId": op.ID}, &out); err != nil {
			return op, err
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
			fmt.Fprintf(a.err, "no longer watching; the operation goes on: computectl operations get %s\n", op.ID)
			return op, ctx.Err()
		case <-time.After(700 * time.Millisecond):
		}
	}
}

// stepPrinter prints each change once.
type stepPrinter struct {
	app    *app
	seen   map[string]string
	headed bool
}

func (p *stepPrinter) show(op fleet.Operation) {
	if !p.headed {
		fmt.Fprintf(p.app.out, "%s %s\n", op.Verb, op.ID)
		p.headed = true
	}
	for _, s := range op.Steps {
		if s.State == fleet.StepPending {
			continue
		}
		line := fmt.Sprintf("  %-8s %s", s.State, s.Name)
		if s.Detail != "" {
			line += ": " + s.Detail
		}
		if s.StartedAt != nil && s.EndedAt != nil {
			line += fmt.Sprintf(" (%s)", s.EndedAt.Sub(s.StartedAt.Time).Round(100*time.Millisecond))
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
		fmt.Fprintln(p.app.out, line)
	}
	p.seen[key] = line
}

// followEvents prints a node's events as they happen, until interrupted.
func (a *app) followEvents(ctx context.Context, in map[string]any) error {
	for {
		var page fleet.EventsPage
		if err := a.call(ctx, "nodes", "events", in, &page); err != nil {
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
