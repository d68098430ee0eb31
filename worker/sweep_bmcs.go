package worker

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/gate"
	"github.com/bettercompute/compute/store"
)

// BMCSweep looks at the BMCs of machines at rest: whether they answer, and the
// machine's power. What it finds is an observation; no verb depends on it.
type BMCSweep struct {
	Store *store.Store
	Gate  *gate.Gate
	Log   *slog.Logger
	// Every is the spacing of looks at one BMC. A BMC that does not answer is
	// asked less and less often, up to slowest times that.
	Every time.Duration
}

const (
	// lookBatch is how many looks one statement records, lookAtOnce how many are
	// under way in this process.
	lookBatch  = 200
	lookAtOnce = 64
	slowest    = 6
	// lookWithin bounds one look.
	lookWithin = 45 * time.Second
	// unreachableAfter is how many looks in a row must fail before the condition
	// says so: one may be a BMC that restarts.
	unreachableAfter = 2
)

// Round looks at the BMCs that are due, so many at once. One that does not
// answer holds up its own place only.
func (s *BMCSweep) Round(ctx context.Context) error {
	looks := make(chan store.BMCLook)
	recorded := make(chan error, 1)
	go func() { recorded <- s.record(ctx, looks) }()
	places := make(chan struct{}, lookAtOnce)
	var wg sync.WaitGroup
	err := s.claim(ctx, places, func(d store.DueBMC, until time.Time) {
		wg.Go(func() {
			l := s.look(ctx, d, until)
			<-places
			looks <- l
		})
	})
	wg.Wait()
	close(looks)
	return errors.Join(err, <-recorded)
}

// claim claims BMCs that are due for the places that are free, until none is.
func (s *BMCSweep) claim(ctx context.Context, places chan struct{}, begin func(d store.DueBMC, until time.Time)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case places <- struct{}{}:
		}
		free := 1
		for more := true; more; {
			select {
			case places <- struct{}{}:
				free++
			default:
				more = false
			}
		}
		life, grace := s.Gate.Life()
		until := time.Now().Add(life)
		due, err := s.Store.ClaimDueBMCs(ctx, s.Gate.Holder, free, life, grace, s.Every/2+time.Minute)
		for range free - len(due) {
			<-places
		}
		if err != nil || len(due) == 0 {
			return err
		}
		for _, d := range due {
			begin(d, until)
		}
	}
}

// recordEvery is how long a look waits at most to be written with others.
const recordEvery = 500 * time.Millisecond

// record writes what was found, many looks in one statement.
func (s *BMCSweep) record(ctx context.Context, looks <-chan store.BMCLook) (failed error) {
	tick := time.NewTicker(recordEvery)
	defer tick.Stop()
	var batch []store.BMCLook
	flush := func() {
		if len(batch) > 0 {
			failed = errors.Join(failed, s.Store.RecordLooks(ctx, batch))
			batch = nil
		}
	}
	for {
		select {
		case l, more := <-looks:
			if !more {
				flush()
				return failed
			}
			if batch = append(batch, l); len(batch) >= lookBatch {
				flush()
			}
		case <-tick.C:
			flush()
		}
	}
}

func (s *BMCSweep) look(ctx context.Context, d store.DueBMC, until time.Time) store.BMCLook {
	l := store.BMCLook{NodeID: d.NodeID, Next: s.next(0)}
	power, err := s.read(ctx, d, until)
	if err != nil {
		l.Error = err.Error()
		l.Next = s.next(d.Failures + 1)
		l.Reachable = bmc.KindOf(err) != bmc.KindUnreachable && bmc.KindOf(err) != bmc.KindTimeout
		s.trouble(ctx, d, err)
		return l
	}
	l.Reachable, l.Power = true, power
	if power != d.Power {
		if err := s.Store.ObservePower(ctx, d.NodeID, power, time.Now()); err != nil && fleet.CodeOf(err) != fleet.CodeNotFound {
			s.Log.WarnContext(ctx, "record the power of a machine", "node", d.NodeID, "error", err)
		}
	}
	return l
}

// read reads the power under the lease that the claim took.
func (s *BMCSweep) read(ctx context.Context, d store.DueBMC, until time.Time) (bmc.PowerState, error) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	client, release, err := openDue(ctx, s.Gate, d, until)
	if err != nil {
		return "", err
	}
	defer release(ctx)
	return client.Power(ctx)
}

// openDue opens a BMC under the lease that the claim took until a time. A batch
// can outlive its leases, so it is renewed where little of it is left.
func openDue(ctx context.Context, g *gate.Gate, d store.DueBMC, until time.Time) (bmc.Client, func(context.Context), error) {
	if life, _ := g.Life(); time.Until(until) < life/3 {
		renewed := time.Now().Add(life)
		held, err := g.Store.RenewLease(ctx, d.Lease, life)
		if err != nil {
			return nil, nil, err
		}
		if !held {
			return nil, nil, &bmc.Error{Kind: bmc.KindBusy, Doing: "look at the BMC of node " + d.NodeID, Cause: "its turn came too late"}
		}
		until = renewed
	}
	return g.OpenLeased(ctx, d.BMCAccess, d.Lease, until)
}

// next spaces the looks at one BMC, spread by a tenth.
func (s *BMCSweep) next(failures int) time.Duration {
	d := s.Every * time.Duration(min(1<<min(failures, 3), slowest))
	return d - d/20 + rand.N(d/10+1)
}

// trouble records what an error says of a BMC as conditions.
func (s *BMCSweep) trouble(ctx context.Context, d store.DueBMC, err error) {
	c := fleet.Condition{Status: fleet.ConditionFalse, Message: err.Error()}
	switch bmc.KindOf(err) {
	case bmc.KindUnreachable, bmc.KindTimeout:
		if d.Failures+1 < unreachableAfter {
			return
		}
		c.Type, c.Reason = "BmcReachable", "no-answer"
	case bmc.KindTrust:
		c.Type, c.Reason = "BmcTrusted", "certificate-not-trusted"
	case bmc.KindAuth:
		c.Type, c.Reason = "BmcAuthenticated", "login-refused"
	default:
		return
	}
	var shown *bmc.Error
	set := func() error { return s.Store.SetCondition(ctx, d.NodeID, c) }
	if errors.As(err, &shown) && shown.Shown != "" {
		set = func() error { return s.Store.CertificateChanged(ctx, d.NodeID, shown.Shown, shown.Cause) }
	}
	if err := set(); err != nil && fleet.CodeOf(err) != fleet.CodeNotFound {
		s.Log.WarnContext(ctx, "record a condition of a BMC", "node", d.NodeID, "error", err)
	}
}
