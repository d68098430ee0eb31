package gate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// hold is a lease while it is held: its context ends before the lease does, and
// with it every request.
type hold struct {
	gate  *Gate
	lease store.Lease
	// operationID is whose fence a change needs.
	operationID string
	ctx         context.Context
	cancel      context.CancelCauseFunc
	done        chan struct{}

	mu sync.Mutex
	// until is when the lease ends on this process's clock: counted from before
	// the statement that took or renewed it, so it is never later than the
	// database's.
	until time.Time
}

// take takes a lease, or fails busy with the time the holder may still need. An
// expired lease is free one request's timeout after it expired, so that the
// last request of its holder is over.
func (g *Gate) take(ctx context.Context, nodeID, operationID string, change bool) (*hold, error) {
	began := time.Now()
	lease, wait, err := g.Store.TakeLease(ctx, store.LeaseAsk{NodeID: nodeID, Holder: g.Holder, Change: change, Reads: g.Reads,
		Life: g.life(), Grace: g.Waits.Request})
	if err != nil {
		return nil, err
	}
	if lease == nil {
		return nil, &bmc.Error{Kind: bmc.KindBusy, Doing: "open the BMC of node " + nodeID, Unsent: true,
			Cause: "another worker or operation is talking to it", Remedy: "nothing: it is tried again by itself", RetryAfter: min(wait, g.Waits.Busy),
			Err: activities.ErrLeased}
	}
	return g.hold(ctx, *lease, operationID, began.Add(g.life())), nil
}

// hold keeps a lease until it is released.
func (g *Gate) hold(ctx context.Context, lease store.Lease, operationID string, until time.Time) *hold {
	h := &hold{gate: g, lease: lease, operationID: operationID, done: make(chan struct{}), until: until}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	go h.keep()
	return h
}

// life is how long a lease lasts without renewal: three requests.
func (g *Gate) life() time.Duration { return 3 * g.Waits.Request }

// keep renews the lease at a quarter of its life until it is released, and ends
// the hold's context when the lease is lost or about to end.
func (h *hold) keep() {
	defer close(h.done)
	life := h.gate.life()
	tick := time.NewTicker(life / 4)
	defer tick.Stop()
	for {
		left := time.Until(h.ends())
		end := time.NewTimer(left - life/20)
		select {
		case <-h.ctx.Done():
			end.Stop()
			return
		case <-end.C:
			h.cancel(h.lost("it could not be renewed in time"))
			return
		case <-tick.C:
			end.Stop()
		}
		if held, err := h.renew(); err == nil && !held {
			h.cancel(h.lost("another worker has it"))
			return
		}
	}
}

// renew extends the lease; a database that does not answer is asked again until
// the lease ends.
func (h *hold) renew() (held bool, err error) {
	life := h.gate.life()
	ctx, cancel := context.WithTimeout(h.ctx, life/4)
	defer cancel()
	began := time.Now()
	held, err = h.gate.Store.RenewLease(ctx, h.lease, life)
	if held && err == nil {
		h.mu.Lock()
		h.until = began.Add(life)
		h.mu.Unlock()
	}
	return held, err
}

func (h *hold) ends() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.until
}

func (h *hold) lost(why string) error {
	return &bmc.Error{Kind: bmc.KindBusy, Doing: "talk to the BMC of node " + h.lease.NodeID, Cause: "the lease was lost: " + why,
		Remedy: "nothing: it is tried again by itself", Err: activities.ErrLeased}
}

// check is asked before each changing request: the lease must last longer than
// the request may, and the node must still be the operation's.
func (h *hold) check(ctx context.Context) error {
	if time.Until(h.ends()) <= h.gate.Waits.Request {
		if held, err := h.renew(); err != nil || !held {
			return h.lost("it does not last for a request")
		}
	}
	held, fenced, err := h.gate.Store.CheckLease(ctx, h.lease, h.gate.Waits.Request, h.operationID)
	switch {
	case err != nil:
		return err
	case !fenced:
		return superseded(h.operationID, h.lease.NodeID)
	case !held:
		return h.lost("it does not last for a request")
	default:
		return nil
	}
}

func superseded(operationID, nodeID string) error {
	return fleet.Errorf(fleet.CodeConflict, store.ReasonSuperseded, "operation %s no longer holds node %s", operationID, nodeID)
}

// releaseWithin bounds giving a lease back; one that could not be given back
// expires.
const releaseWithin = 10 * time.Second

// release gives the lease back.
func (h *hold) release(ctx context.Context) {
	h.cancel(nil)
	<-h.done
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	if err := h.gate.Store.ReleaseLease(ctx, h.lease); err != nil {
		h.gate.Log.WarnContext(ctx, "give back a BMC lease", "node", h.lease.NodeID, "error", err)
	}
}

// under derives a context that ends with the lease too; the error of a method
// that ended so says why.
func (h *hold) under(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(h.ctx, func() { cancel(context.Cause(h.ctx)) })
	return ctx, func() { stop(); cancel(nil) }
}

// explain puts the loss of the lease in place of the cancellation it caused.
func (h *hold) explain(err error) error {
	if err == nil {
		return nil
	}
	if cause := new(bmc.Error); errors.As(context.Cause(h.ctx), &cause) {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}
