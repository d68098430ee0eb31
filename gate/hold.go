package gate

import (
	"context"
	"fmt"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/store"
)

// hold is a lease while it is held: its context ends when the lease cannot be
// kept, and with it every request.
type hold struct {
	gate   *Gate
	lease  store.Lease
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// take takes a lease, or fails busy with the time the holder may still need.
func (g *Gate) take(ctx context.Context, a store.BMCAccess, change bool) (*hold, error) {
	lease, wait, err := g.Store.TakeLease(ctx, a.NodeID, g.Holder, change, max(1, g.Reads), leaseLife)
	if err != nil {
		return nil, err
	}
	if lease == nil {
		return nil, &bmc.Error{Kind: bmc.KindBusy, Doing: "open the BMC of node " + a.NodeID,
			Cause: "another worker or operation is talking to it", Remedy: "nothing: it is tried again by itself", RetryAfter: min(wait, 2*time.Second)}
	}
	h := &hold{gate: g, lease: *lease, done: make(chan struct{})}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	go h.renew()
	if lease.TakenOver && change {
		// The last holder's last request may still be under way.
		select {
		case <-ctx.Done():
			h.release(context.WithoutCancel(ctx))
			return nil, fmt.Errorf("wait for the former holder of the BMC of node %s: %w", a.NodeID, ctx.Err())
		case <-time.After(g.Waits.Request):
		}
	}
	return h, nil
}

// renew extends the lease until it is released; a lease that could not be
// extended in time ends the hold's context.
func (h *hold) renew() {
	defer close(h.done)
	tick := time.NewTicker(leaseLife / 3)
	defer tick.Stop()
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(h.ctx, leaseLife/6)
		ok, err := h.gate.Store.RenewLease(ctx, &h.lease, leaseLife)
		cancel()
		switch {
		case err == nil && !ok:
			h.cancel(fmt.Errorf("the lease of the BMC of node %s was lost", h.lease.NodeID))
			return
		case err != nil && time.Until(h.lease.Expires) < h.gate.Waits.Request:
			h.cancel(fmt.Errorf("the lease of the BMC of node %s could not be renewed: %w", h.lease.NodeID, err))
			return
		}
	}
}

// check is asked before each changing request: the lease must last longer than
// the request may.
func (h *hold) check(ctx context.Context) error {
	ok, err := h.gate.Store.CheckLease(ctx, h.lease, h.gate.Waits.Request)
	if err != nil {
		return err
	}
	if !ok {
		return &bmc.Error{Kind: bmc.KindBusy, Doing: "change node " + h.lease.NodeID, Cause: "the lease of its BMC was lost before the request was sent",
			Remedy: "nothing: it is tried again by itself"}
	}
	return nil
}

// release gives the lease back.
func (h *hold) release(ctx context.Context) {
	h.cancel(nil)
	<-h.done
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	// A lease that could not be given back expires.
	if err := h.gate.Store.ReleaseLease(ctx, h.lease); err != nil {
		h.gate.Log.WarnContext(ctx, "give back a BMC lease", "node", h.lease.NodeID, "error", err)
	}
}
