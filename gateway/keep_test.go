package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/fleet"
)

// keep runs a host's agent as nodeagent run does.
func (r *rig) keep(state agent.State, h *memberHost) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	cfg := agent.ServeConfig{State: state, Host: h, Log: r.slog(), Heartbeat: 20 * time.Millisecond, ProgressEvery: 5 * time.Millisecond, RetryPause: 10 * time.Millisecond}
	go func() { ended <- agent.Keep(ctx, cfg) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}
	r.t.Cleanup(func() { _ = stop() })
	return stop
}

// joinFile tells a running agent to join by itself.
func (r *rig) joinFile(state agent.State, token string) {
	r.t.Helper()
	raw, err := json.Marshal(fleet.JoinFile{GatewayURL: r.GatewayURL, CAFingerprint: r.ca.Fingerprint(), Token: token})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state.Dir, "join.json"), raw, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// A running agent waits for a join, joins by a file, takes up the identity that
// the machine joins with after a revocation, and opens no session once the
// machine has left.
func TestKeep(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &memberHost{uuid: "4c4c4544-0051-3910-8053-b4c04f4e3934"}
	state := agent.State{Dir: t.TempDir()}
	stop := r.keep(state, h)
	r.joinFile(state, r.joinToken(1))
	var id agent.Identity
	await(t, "the join by file", func() (ok bool) { var err error; id, err = state.Identity(); return err == nil })
	r.awaitEpoch(id.NodeID, 1)
	if _, err := os.Stat(filepath.Join(state.Dir, "join.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the join file with its token is still there: %v", err)
	}
	await(t, "the status", func() bool {
		s, end, err := state.Status()
		return err == nil && s.InSession && s.Epoch == 1 && end.After(time.Now())
	})

	r.revoke(id.NodeID)
	await(t, "the end of the session", func() bool { s, _, err := state.Status(); return err == nil && !s.InSession && s.Error != "" })
	next, err := agent.Join(t.Context(), agent.JoinConfig{GatewayURL: r.GatewayURL, CAFingerprint: r.ca.Fingerprint(), Token: r.joinToken(1), State: state, Log: r.slog()}, h)
	if err != nil || next.NodeID != id.NodeID || next.Generation <= id.Generation {
		t.Fatalf("joined again as %+v, %v; before %+v", next, err, id)
	}
	r.awaitEpoch(id.NodeID, 2)

	if err := agent.Leave(t.Context(), state, h, r.slog()); err != nil {
		t.Fatal(err)
	}
	epoch := r.node(id.NodeID).Session.Epoch
	if condition(r.node(id.NodeID), "Connected") != fleet.ConditionFalse {
		t.Errorf("after leaving: %+v", r.node(id.NodeID).Conditions)
	}
	// A file with a bad token is the next thing that the agent does: it is beyond
	// what its session could still have done.
	r.joinFile(state, "none")
	await(t, "the refused join", func() bool {
		return r.count(`SELECT count(*) FROM sessions WHERE epoch > $1`, epoch) == 0 && r.logged("not joined")
	})
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("the agent ended with %v", err)
	}
	if s := r.node(id.NodeID).Session; s.Epoch != epoch || s.DisconnectedAt == nil {
		t.Errorf("a machine that left has a session again: %+v", s)
	}
}

// One agent serves a machine.
func TestOneAgent(t *testing.T) {
	t.Parallel()
	state := agent.State{Dir: t.TempDir()}
	release, err := state.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := state.Lock(); !errors.Is(err, agent.ErrRunning) {
		t.Errorf("a second agent: %v, want %v", err, agent.ErrRunning)
	}
	release()
	again, err := state.Lock()
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func (r *rig) count(sql string, args ...any) int {
	r.t.Helper()
	var n int
	if err := r.Pool().QueryRow(r.t.Context(), sql, args...).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) logged(what string) bool { return strings.Contains(r.log.String(), `"msg":"`+what+`"`) }
