package activities

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// closedGate opens no BMC.
type closedGate struct {
	Gate
	err error
}

func (g closedGate) Open(context.Context, string, string, bool) (bmc.Client, func(context.Context), error) {
	return nil, nil, g.err
}

func (g closedGate) Exchanges(string) []bmc.Exchange { return nil }

// noteOps keeps a step's detail.
type noteOps struct {
	Operations
	detail string
}

func (o *noteOps) NoteStep(_ context.Context, _, _, detail string) error {
	o.detail = detail
	return nil
}

// condNodes keeps the condition that was set last.
type condNodes struct {
	Nodes
	set fleet.Condition
}

func (n *condNodes) SetCondition(_ context.Context, _ string, c fleet.Condition) error {
	n.set = c
	return nil
}

// A BMC's absence is counted from when it was first found away, over attempts
// that follow each other: neither the time in which nobody asked nor a lease
// that another holds is the BMC's. While it is tried again the step says so;
// what ends an operation says what to do.
func TestAwayIsTheBMCs(t *testing.T) {
	t.Parallel()
	gone := &bmc.Error{Kind: bmc.KindUnreachable, Doing: "open", Cause: "no answer"}
	busy := &bmc.Error{Kind: bmc.KindBusy, Doing: "open", Cause: "it starts", Remedy: "nothing: it is tried again by itself"}
	nonsense := &bmc.Error{Kind: bmc.KindProtocol, Doing: "open", Cause: "it answers no JSON"}
	leased := &bmc.Error{Kind: bmc.KindBusy, Doing: "open", Cause: "another worker", Err: ErrLeased}
	long := &away{Since: time.Now().Add(-time.Hour), Attempts: awayAttempts}
	for name, c := range map[string]struct {
		before *away
		err    error
		once   bool
		again  bool
	}{
		"first attempt":                 {nil, gone, false, true},
		"away for long":                 {long, gone, false, false},
		"busy for long":                 {long, busy, false, false},
		"away for long, but asked once": {&away{Since: long.Since, Attempts: 1}, gone, false, true},
		"away for a while":              {&away{Since: time.Now(), Attempts: 20}, gone, false, true},
		"leased":                        {long, leased, false, true},
		"nonsense once more":            {&away{Nonsense: protocolAttempts - 1}, nonsense, false, false},
		"nonsense after an absence":     {long, nonsense, false, true},
		"forced":                        {nil, gone, true, false},
		"forced, leased":                {nil, leased, true, true},
		"Postgres away":                 {long, errors.New("connection refused"), false, true},
		"Postgres answers nothing":      {nil, context.DeadlineExceeded, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var suite testsuite.WorkflowTestSuite
			env := suite.NewTestActivityEnvironment()
			ops := &noteOps{}
			nodes := &condNodes{}
			a := &BMC{Gate: closedGate{err: c.err}, Ops: ops, Nodes: nodes}
			env.RegisterActivity(a)
			if c.before != nil {
				env.SetHeartbeatDetails(*c.before)
			}
			_, err := env.ExecuteActivity(a.BootState, Act{OperationID: "op", NodeID: "node", Away: time.Minute * 30, Once: c.once})
			var app *temporal.ApplicationError
			if !errors.As(err, &app) || app.NonRetryable() == c.again {
				t.Fatalf("%v; retried %v, want %v", err, app != nil && !app.NonRetryable(), c.again)
			}
			if told := strings.Contains(ops.detail, "tried again"); told != (c.again && (bmc.KindOf(c.err) != "" || errors.Is(c.err, context.DeadlineExceeded))) {
				t.Errorf("the step says %q", ops.detail)
			}
			if r := ReasonOf(err); !c.again && (r.Remedy == "" || r.Remedy == busy.Remedy) {
				t.Errorf("what ended it is to be mended by: %q", r.Remedy)
			}
			// The condition says so once the act has given up, not while the BMC may
			// only restart; being busy is an answer.
			if down, want := nodes.set.Type == "BmcReachable" && nodes.set.Status == fleet.ConditionFalse && nodes.set.Message != "", name == "away for long"; down != want {
				t.Errorf("condition %+v, want BmcReachable False: %v", nodes.set, want)
			}
		})
	}
}
