package activities

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// BMC are the acts on machines' BMCs. Each opens the gate for itself, and each
// can be repeated: it reads before it acts, and saves that it acts before it
// does.
type BMC struct {
	Gate     Gate
	Ops      Operations
	Nodes    Nodes
	Machines Machines
}

// Act says for what an act on a BMC is.
type Act struct {
	OperationID, NodeID, Step string
	// Actor is who asked for the operation.
	Actor string
	// Key tells this act from those of the same step before a retry by a person.
	Key string
	// Bound ends one attempt; 0 leaves it to the activity's own timeout.
	Bound time.Duration
	// Away is how long the BMC may be away or busy before the act fails.
	Away time.Duration
	// Once says that a BMC's first error is the last.
	Once bool
	// quiet keeps a refused login from being recorded, where it is a question.
	quiet bool
}

// The least attempts before an act fails: a worker that was away must not turn
// one lost connection into a failure.
const (
	awayAttempts     = 5
	protocolAttempts = 5
)

// heartbeatEvery is well under the heartbeat timeout of the workflows' option
// profile.
const heartbeatEvery = 5 * time.Second

// releaseWithin bounds giving back the lease after the act's own time is over.
const releaseWithin = 15 * time.Second

// errWorkerStops makes Temporal run the act again on another worker.
var errWorkerStops = temporal.NewApplicationError("the worker stops", "worker-stops")

// opener opens a node's BMC.
type opener func(ctx context.Context) (bmc.Client, func(context.Context), error)

// read runs do with a client for reading.
func (a *BMC) read(ctx context.Context, in Act, do func(ctx context.Context, c bmc.Client) error) error {
	return a.run(ctx, in, func(ctx context.Context) (bmc.Client, func(context.Context), error) {
		return a.Gate.Open(ctx, in.OperationID, in.NodeID, false)
	}, do)
}

// change runs do with a client for a change.
func (a *BMC) change(ctx context.Context, in Act, do func(ctx context.Context, c bmc.Client) error) error {
	return a.run(ctx, in, func(ctx context.Context) (bmc.Client, func(context.Context), error) {
		return a.Gate.Open(ctx, in.OperationID, in.NodeID, true)
	}, do)
}

// run opens, does, releases, and turns the error into what Temporal judges.
func (a *BMC) run(parent context.Context, in Act, open opener, do func(ctx context.Context, c bmc.Client) error) error {
	before := awayBefore(parent)
	stop := sync.OnceFunc(beat(parent, before))
	defer stop()
	ctx := parent
	if in.Bound > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(parent, in.Bound)
		defer cancel()
	}
	err := func() error {
		client, release, err := open(ctx)
		if err != nil {
			return err
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(parent), releaseWithin)
			defer cancel()
			release(ctx)
		}()
		return do(ctx, client)
	}()
	if err == nil {
		return nil
	}
	if parent.Err() != nil {
		return cancelled(parent)
	}
	stop() // the last heartbeat is the judgement's
	return a.judge(parent, in, before, err)
}

// cancelled tells a cancelled act from a worker that stops.
func cancelled(ctx context.Context) error {
	select {
	case <-activity.GetWorkerStopChannel(ctx):
		return errWorkerStops
	default:
		return ctx.Err()
	}
}

// away is how long a BMC has been busy or away, or how often it answered
// nonsense, over attempts of an act that follow each other. It travels in the
// act's heartbeats. Attempts that failed for another reason, such as Postgres
// being away, are not in it.
type away struct {
	Since              time.Time
	Attempts, Nonsense int
}

// awayBefore is what the attempt before left; none is the zero value.
func awayBefore(ctx context.Context) away {
	var a away
	if activity.HasHeartbeatDetails(ctx) && activity.GetHeartbeatDetails(ctx, &a) != nil {
		return away{} // a detail of another kind
	}
	return a
}

// again is away after one more attempt that ended so.
func (a away) again(kind bmc.Kind) away {
	switch kind {
	case bmc.KindProtocol:
		return away{Nonsense: a.Nonsense + 1}
	case bmc.KindBusy, bmc.KindUnreachable:
		if a.Attempts == 0 {
			a.Since = time.Now()
		}
		return away{Since: a.Since, Attempts: a.Attempts + 1}
	default:
		return away{}
	}
}

// until says in words since when and until when it is tried again.
func (a away) until(bound time.Duration) string {
	if a.Attempts == 0 || bound <= 0 {
		return "; it is tried again"
	}
	return "; so since " + a.Since.UTC().Format(time.TimeOnly) + " UTC, tried again until " + a.Since.Add(bound).UTC().Format(time.TimeOnly) + " UTC"
}

// spent says whether the attempts are over.
func (a away) spent(bound time.Duration) bool {
	return a.Nonsense >= protocolAttempts || a.Attempts >= awayAttempts && bound > 0 && time.Since(a.Since) > bound
}

// judge keeps evidence, records what the error says of the BMC, and ends the
// attempts once they are spent.
func (a *BMC) judge(ctx context.Context, in Act, before away, err error) error {
	kind := bmc.KindOf(err)
	if kind == "" && errors.Is(err, context.DeadlineExceeded) {
		// The BMC's own lateness has a kind: this is Postgres, or who had the turn.
		err = &bmc.Error{Kind: bmc.KindBusy, Doing: "act on the BMC", Cause: "it did not come to its end within " + in.Bound.String(), Err: err}
		kind = bmc.KindBusy
	}
	if kind == "" || errors.Is(err, ErrLeased) {
		activity.RecordHeartbeat(ctx, away{})
		if kind != "" {
			a.note(ctx, in, reasonFrom(err).Cause+"; it is tried again")
		}
		return toTemporal(err)
	}
	if x := a.Gate.Exchanges(in.NodeID); len(x) > 0 {
		if saveErr := a.Ops.SaveEvidence(ctx, in.OperationID, x); saveErr != nil {
			activity.GetLogger(ctx).Warn("evidence not kept", "operation", in.OperationID, "error", saveErr)
		}
	}
	a.showTrouble(ctx, in, kind, err)
	now := before.again(kind)
	activity.RecordHeartbeat(ctx, now)
	tooLong := in.Away > 0 && retryDelay(err) > in.Away // it asks for more time than there is
	if in.Once || tooLong || now.spent(in.Away) {
		if kind == bmc.KindUnreachable && now.spent(in.Away) {
			a.showUnreachable(ctx, in, err)
		}
		return final(err)
	}
	if retryable(err) {
		a.note(ctx, in, reasonFrom(err).Cause+now.until(in.Away))
	}
	return toTemporal(err)
}

// note shows as the step's detail why it does not go on.
func (a *BMC) note(ctx context.Context, in Act, detail string) {
	if err := a.Ops.NoteStep(ctx, in.OperationID, in.Step, detail); err != nil {
		activity.GetLogger(ctx).Warn("detail not stored", "operation", in.OperationID, "error", err)
	}
}

// troubles are the conditions that errors of BMCs show.
var troubles = map[bmc.Kind]struct{ condition, reason string }{
	bmc.KindTrust: {"BmcTrusted", "certificate-not-trusted"},
	bmc.KindAuth:  {"BmcAuthenticated", "login-refused"},
}

func (a *BMC) showTrouble(ctx context.Context, in Act, kind bmc.Kind, err error) {
	if in.quiet {
		return
	}
	cause := reasonFrom(err).Cause
	var shown *bmc.Error
	errors.As(err, &shown)
	var setErr error
	switch t, ok := troubles[kind]; {
	case shown != nil && shown.Shown != "":
		setErr = a.Nodes.CertificateChanged(ctx, in.NodeID, shown.Shown, cause)
	case shown != nil && shown.ShownIdentity != nil:
		setErr = a.Nodes.MachineChanged(ctx, in.NodeID, *shown.ShownIdentity, cause)
	case ok:
		setErr = a.Nodes.SetCondition(ctx, in.NodeID, fleet.Condition{Type: t.condition, Status: fleet.ConditionFalse, Reason: t.reason, Message: cause})
	}
	if setErr != nil {
		activity.GetLogger(ctx).Warn("trouble not stored", "node", in.NodeID, "error", setErr)
	}
}

// showUnreachable records that the BMC does not answer once an act gives up: one
// that only restarts is back before that.
func (a *BMC) showUnreachable(ctx context.Context, in Act, err error) {
	if in.quiet {
		return
	}
	c := fleet.Condition{Type: "BmcReachable", Status: fleet.ConditionFalse, Reason: "no-answer", Message: reasonFrom(err).Cause}
	if err := a.Nodes.SetCondition(ctx, in.NodeID, c); err != nil {
		activity.GetLogger(ctx).Warn("trouble not stored", "node", in.NodeID, "error", err)
	}
}

// beat sends heartbeats with a detail until it is stopped.
func beat(ctx context.Context, detail any) (stop func()) {
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(heartbeatEvery)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-ctx.Done():
				return
			case <-t.C:
				activity.RecordHeartbeat(ctx, detail)
			}
		}
	}()
	return func() { close(done); <-ended }
}

// intent is what is kept in a step's journal of the changes that an act may
// have sent.
type intent struct {
	Key  string   `json:"key"`
	Act  string   `json:"act"`
	Sent []string `json:"sent"`
}

// journal remembers, before it is sent, each change of an act.
type journal struct {
	ops  Operations
	in   Act
	have intent
	// spent says that an earlier attempt may have sent the change.
	spent bool
	notes atomic.Int32
}

// openJournal reads what earlier attempts at the act were about to send.
func (a *BMC) openJournal(ctx context.Context, in Act, act string) (*journal, error) {
	j := &journal{ops: a.Ops, in: in, have: intent{Key: in.Key, Act: act}}
	raw, err := a.Ops.Journal(ctx, in.OperationID, in.Step)
	if err != nil || len(raw) == 0 {
		return j, err
	}
	var before intent
	if json.Unmarshal(raw, &before) == nil && before.Key == in.Key && before.Act == act {
		j.have, j.spent = before, len(before.Sent) > 0
	}
	return j, nil
}

// acting records one request that is about to be sent.
func (j *journal) acting(ctx context.Context, request string) error {
	j.have.Sent = append(j.have.Sent, request)
	return j.ops.SaveJournal(ctx, j.in.OperationID, j.in.Step, j.have)
}

// settle takes back, after an act that failed, what was recorded as about to
// be sent and certainly never left: the next attempt must send it, not believe
// that it was. What the driver says may have been sent stays recorded, and so
// does what an earlier attempt may have sent. The error of the act does not
// decide: one of a later read says nothing of the change before it.
func (j *journal) settle(ctx context.Context, sent []string) error {
	if j.spent || len(sent) > 0 || len(j.have.Sent) == 0 {
		return nil
	}
	j.have.Sent = nil
	// The act may have failed because its context ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()
	return j.ops.SaveJournal(ctx, j.in.OperationID, j.in.Step, j.have)
}

// settleWithin bounds the write that settles a journal.
const settleWithin = 5 * time.Second

// progress shows what was seen last as the step's detail, the first few times.
func (j *journal) progress(ctx context.Context) func(string) {
	last := ""
	return func(detail string) {
		if detail == last || j.notes.Add(1) > maxNotes {
			return
		}
		last = detail
		if err := j.ops.NoteStep(ctx, j.in.OperationID, j.in.Step, detail); err != nil {
			activity.GetLogger(ctx).Warn("detail not stored", "operation", j.in.OperationID, "error", err)
		}
	}
}

// maxNotes bounds the details that one act writes.
const maxNotes = 20
