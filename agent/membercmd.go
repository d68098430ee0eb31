package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync"
	"time"
)

// TypeAccept is the command that finds what an adopted host is judged by.
const TypeAccept = "accept"

// run runs a command of a session at most once, over restarts of the agent too,
// and tells its outcome.
func (m *membership) run(ctx context.Context, cmd command) error {
	out, err := m.outcome(ctx, cmd)
	if err != nil {
		return err
	}
	_, err = m.client.persist(ctx, "/node/v1/session/commands/"+cmd.ID+"/result", out, nil)
	var status *statusError
	if errors.As(err, &status) && (status.Status == http.StatusGone || status.Status == http.StatusNotFound) {
		m.cfg.Log.Warn("the result was not taken", "command", cmd.ID, "type", cmd.Type, "reason", status.Reason)
		return nil
	}
	return err
}

// outcome is what becomes of a command that is delivered: it runs, unless it
// began before. One whose beginning cannot be noted is not run, since it could
// run twice, and says so instead of being delivered again and again.
func (m *membership) outcome(ctx context.Context, cmd command) (outcome, error) {
	before, err := m.cfg.State.begin(cmd.ID)
	switch {
	case err != nil:
		m.cfg.Log.Error("command not run", "command", cmd.ID, "type", cmd.Type, "error", err)
		return outcome{Error: "not run, since the agent could not note that it begins: " + err.Error()}, nil
	case before != nil:
		return *before, nil
	}
	m.cfg.Log.Info("command begins", "command", cmd.ID, "type", cmd.Type)
	out, err := m.execute(ctx, cmd)
	if err != nil {
		return outcome{}, err
	}
	// One whose end is not noted is told now, and only after a restart in between
	// as interrupted.
	if err := m.cfg.State.end(cmd.ID, out); err != nil {
		m.cfg.Log.Error("the outcome of a command could not be kept", "command", cmd.ID, "error", err)
	}
	return out, nil
}

// execute runs a command while it tells of its progress, which keeps the session
// alive too.
func (m *membership) execute(ctx context.Context, cmd command) (outcome, error) {
	cmdCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &reporter{client: m.client, log: m.cfg.Log, path: "/node/v1/session/commands/" + cmd.ID + "/progress", percent: -1}
	var telling sync.WaitGroup
	stop := make(chan struct{})
	telling.Go(func() {
		p.tell(cmdCtx, Config{ProgressEvery: m.cfg.ProgressEvery, Heartbeat: m.cfg.Heartbeat}, stop, cancel)
	})
	data, err := m.guarded(cmdCtx, cmd)
	close(stop)
	telling.Wait()
	if ctx.Err() != nil {
		return outcome{}, ctx.Err()
	}
	out := outcome{OK: err == nil, Data: data}
	if err != nil {
		out.Error = err.Error()
	}
	m.cfg.Log.Info("command ended", "command", cmd.ID, "type", cmd.Type, "ok", out.OK, "error", out.Error)
	return out, nil
}

func (m *membership) guarded(ctx context.Context, cmd command) (data any, err error) {
	defer func() {
		if p := recover(); p != nil {
			m.cfg.Log.Error("command panicked", "command", cmd.ID, "type", cmd.Type, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("the agent failed inside %s; its log has more", cmd.Type)
		}
	}()
	switch cmd.Type {
	case TypeInventory:
		return m.cfg.Host.Inventory(ctx)
	case TypeAccept:
		return m.accept(ctx)
	default:
		return nil, unsupported("command " + cmd.Type)
	}
}

// acceptWithin bounds the checks: a driver that hangs must not keep the answer.
const acceptWithin = 10 * time.Minute

// accept adds to the host's facts what the agent knows of the gateway.
func (m *membership) accept(ctx context.Context) (any, error) {
	ctx, done := context.WithTimeout(ctx, acceptWithin)
	defer done()
	facts, err := m.cfg.Host.Acceptance(ctx)
	if err != nil {
		return nil, err
	}
	// A connection of its own: the session's proves only that it was possible once.
	probe, err := dial(m.id.GatewayURL, m.id.CAFingerprint, nil, m.cfg.RetryPause, m.cfg.Log.Warn)
	if err != nil {
		return nil, err
	}
	defer probe.http.CloseIdleConnections()
	tried, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	before := time.Now()
	_, err = probe.post(tried, "/node/v1/ping", struct{}{}, nil)
	took := time.Since(before)
	if err != nil {
		facts.GatewayError = err.Error()
		return facts, nil
	}
	if at := probe.serverTime(); !at.IsZero() {
		off := before.Add(took / 2).Sub(at).Seconds()
		facts.ClockOffsetSeconds = &off
	}
	return facts, nil
}
