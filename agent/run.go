package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// errStopped is the cause of a command's cancelled context when the control
// plane does not want it any more.
var errStopped = errors.New("the command was cancelled")

// runner runs the commands of one power-on, one after the other.
type runner struct {
	cfg    Config
	client *client
	host   Host
	log    *slog.Logger
	// done holds what every command that ended had to say, so that one that is
	// delivered again is not run again.
	done map[string]outcome
	// root is the disk that this run wrote an image to.
	root *fleet.Disk
}

func (r *runner) loop(ctx context.Context) error {
	r.done = map[string]outcome{}
	for {
		cmd, err := r.client.next(ctx)
		if err != nil {
			return err
		}
		if cmd == nil {
			continue
		}
		out, ran := r.done[cmd.ID]
		if !ran {
			if out, err = r.execute(ctx, *cmd); err != nil {
				return err
			}
			r.done[cmd.ID] = out
		}
		if err := r.report(ctx, *cmd, out); err != nil {
			return err
		}
		if cmd.Type == TypeFinish && out.OK {
			return nil
		}
	}
}

// report tells the gateway how a command ended. That it does not want to know
// any more is no error.
func (r *runner) report(ctx context.Context, cmd command, out outcome) error {
	_, err := r.client.persist(ctx, "/node/v1/commands/"+cmd.ID+"/result", out, nil)
	var status *statusError
	if errors.As(err, &status) && status.Status != http.StatusUnauthorized {
		r.log.Warn("the result was not taken", "command", cmd.ID, "type", cmd.Type, "status", status.Status, "reason", status.Reason)
		return nil
	}
	return endOf(err)
}

// execute runs a command while it tells of its progress. The error is only ever
// that the run is over.
func (r *runner) execute(ctx context.Context, cmd command) (outcome, error) {
	r.log.Info("command begins", "command", cmd.ID, "type", cmd.Type)
	began := time.Now()
	cmdCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &reporter{client: r.client, log: r.log, path: "/node/v1/commands/" + cmd.ID + "/progress", percent: -1}
	var telling sync.WaitGroup
	stop := make(chan struct{})
	telling.Go(func() { p.tell(cmdCtx, r.cfg, stop, cancel) })
	data, err := r.guarded(cmdCtx, cmd, p.set)
	close(stop)
	telling.Wait()
	if ctx.Err() != nil {
		return outcome{}, ctx.Err()
	}
	if cause := context.Cause(cmdCtx); errors.Is(cause, ErrBootEnded) {
		return outcome{}, cause
	}
	out := outcome{OK: err == nil, Data: data}
	if err != nil {
		out.Error = err.Error()
	}
	r.log.Info("command ended", "command", cmd.ID, "type", cmd.Type, "ok", out.OK, "error", out.Error, "after", time.Since(began).Round(time.Millisecond))
	return out, nil
}

// guarded runs a command and turns a panic into its failure: the agent is the
// machine's first process and must stay up.
func (r *runner) guarded(ctx context.Context, cmd command, progress Progress) (data any, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("command panicked", "command", cmd.ID, "type", cmd.Type, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("the agent failed inside %s; its log has more", cmd.Type)
		}
	}()
	return r.run(ctx, cmd, progress)
}

// reporter keeps the latest progress of a command and sends it.
type reporter struct {
	client *client
	log    *slog.Logger
	path   string

	mu      sync.Mutex
	percent int
	detail  string
	changed bool
}

func (p *reporter) set(percent int, detail string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.percent, p.detail, p.changed = percent, detail, true
}

// take returns the latest progress as a request, and whether it is news.
func (p *reporter) take() (map[string]any, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := map[string]any{"detail": p.detail}
	if p.percent >= 0 {
		m["percent"] = min(p.percent, 100)
	}
	changed := p.changed
	p.changed = false
	return m, changed
}

// tell sends progress when there is news, and otherwise as a heartbeat, until
// stop. An answer that the command is not wanted any more cancels it.
func (p *reporter) tell(ctx context.Context, cfg Config, stop <-chan struct{}, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(cfg.ProgressEvery)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		m, news := p.take()
		if !news && time.Since(last) < cfg.Heartbeat {
			continue
		}
		last = time.Now()
		_, err := p.client.post(ctx, p.path, m, nil)
		var status *statusError
		switch {
		case err == nil:
		case !errors.As(err, &status) || !status.final():
			p.log.Warn("progress could not be told", "error", err)
		case status.Status == http.StatusUnauthorized:
			cancel(ErrBootEnded)
			return
		case status.Status == http.StatusConflict:
			// The session is elsewhere or gone; the command goes on, and its end is
			// told in the next one.
		default:
			cancel(errStopped)
			return
		}
	}
}

// decode reads a command's arguments.
func decode[T any](cmd command) (T, error) {
	var args T
	if err := json.Unmarshal(cmd.Args, &args); err != nil {
		return args, fmt.Errorf("the arguments of %s cannot be read", cmd.Type) // the cause could quote a secret
	}
	return args, nil
}
