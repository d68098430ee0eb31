package workflows_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// An adopted host is accepted once its agent is there and every check passes;
// nothing is asked of a BMC.
func TestAdoptAccepts(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbAdopt, struct{}{})
	b.noAgent = true
	b.work.Pool = &fleet.PoolWant{GPUModel: "H100 SXM5", GPUsPerNode: 2}
	b.env.RegisterDelayedCallback(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.state != fleet.OpWaiting || b.waiting == nil || b.waiting.Actor != "agent" || b.waiting.Deadline == nil {
			t.Errorf("%s, waits for %+v", b.state, b.waiting)
		}
		b.noAgent = false
	}, 20*time.Hour)
	b.after(20*time.Hour+time.Second, fleet.SignalWake, nil)
	b.succeeds(t)
	if diff := cmp.Diff([]string{"await-session", "accept-host"}, b.done()); diff != "" {
		t.Error(diff)
	}
	for _, kind := range []string{"HardwareAccepted", "GpusAccepted", "DriverPresent", "DiskSpace", "ClockInSync", "KernelAccepted", "GatewayReachable"} {
		if b.conditions[kind] != fleet.ConditionTrue {
			t.Errorf("%s is %q", kind, b.conditions[kind])
		}
	}
	for _, call := range b.log {
		if call == "Open" || call == "EndSessions" {
			t.Errorf("a BMC was asked: %v", b.log)
		}
	}
}

// Without an agent the operation ends failed after a day, and nothing is parked.
func TestAdoptWithoutAgent(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbAdopt, struct{}{})
	b.noAgent = true
	began := b.env.Now()
	_, err := b.run(t)
	if err == nil || b.failure == nil || b.failure.Code != activities.CodeNoSession || b.failure.Park || b.failure.Remedy == "" {
		t.Errorf("%v, failure %+v", err, b.failure)
	}
	if took := b.env.Now().Sub(began); took < 24*time.Hour || took > 25*time.Hour {
		t.Errorf("ended after %s, want a day", took)
	}
	if len(b.commands) > 0 {
		t.Errorf("commands without an agent: %v", b.commands)
	}
}

// A host that does not pass fails with what is wrong, and every check has its
// condition, the good ones too.
func TestAdoptRefuses(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbAdopt, struct{}{})
	b.answers[activities.CommandAccept] = func(w *world, c *command) {
		f := w.acceptable()
		f.DiskFreeBytes, f.Kernel = 1<<30, "3.10.0-1160.el7"
		c.State = "succeeded"
		c.Data, _ = json.Marshal(f) // it has no member that cannot be written
	}
	_, err := b.run(t)
	if err == nil || b.failure == nil || b.failure.Code != activities.CodeNotAccepted || b.failure.Park ||
		!strings.Contains(b.failure.Cause, "DiskSpace: 1.0 GiB") || !strings.Contains(b.failure.Cause, "KernelAccepted: kernel 3.10") {
		t.Errorf("%v, failure %+v", err, b.failure)
	}
	if b.conditions["DiskSpace"] != fleet.ConditionFalse || b.conditions["KernelAccepted"] != fleet.ConditionFalse || b.conditions["ClockInSync"] != fleet.ConditionTrue {
		t.Errorf("conditions %v", b.conditions)
	}
}

// An agent that was stopped while it ran the checks runs them again, a bounded
// number of times.
func TestAdoptTriesAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stops int
		good  bool
	}{"stopped once": {1, true}, "stopped each time": {9, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, fleet.VerbAdopt, struct{}{})
			b.answers[activities.CommandAccept] = func(w *world, cmd *command) {
				if len(w.commands) <= c.stops {
					cmd.State, cmd.Error = "failed", "the agent was stopped"
					return
				}
				succeed(w, cmd)
			}
			_, err := b.run(t)
			if (err == nil) != c.good {
				t.Errorf("%v, want good = %v; failure %+v", err, c.good, b.failure)
			}
			if !c.good && (len(b.commands) != 3 || b.failure.Code != activities.CodeMachine) {
				t.Errorf("%d tries, failure %+v", len(b.commands), b.failure)
			}
		})
	}
}
