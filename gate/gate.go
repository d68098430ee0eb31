// Package gate is the only way to a BMC: it takes the lease in Postgres,
// checks the address in the dial, takes over the BMC's session, opens the
// sealed credentials and lends all that to a driver.
//
// What it cannot exclude: a process that is frozen between the check of its
// lease and the sending of a request, for longer than the lease, sends that
// one request late. An expired lease is therefore left alone for one request's
// timeout, and who takes it over reads before it acts.
package gate

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// OpenFunc opens a BMC with a driver; open.Open in production.
type OpenFunc func(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Client, error)

// Gate implements activities.Gate.
type Gate struct {
	// Store holds leases, sessions and credentials; Holder names this process.
	Store   *store.Store
	Holder  string
	OpenBMC OpenFunc
	Waits   bmc.Waits
	Log     *slog.Logger
	// Reads is how many may read a BMC at once beside the one that changes it;
	// 0 is one.
	Reads int
	// IdleAfter is how long a session may stay unused on a BMC.
	IdleAfter time.Duration

	mu        sync.Mutex
	exchanges map[string][]bmc.Exchange
	left      map[string]bool
	// quiet is until when BMCs asked to be left alone.
	quiet map[string]time.Time
}

// recorded are the credentials that are recorded for the node.
const recorded activities.Credentials = ""

// Open opens the node's BMC for reading, or for a change of the operation that
// holds the node.
func (g *Gate) Open(ctx context.Context, operationID, nodeID string, change bool) (bmc.Client, func(context.Context), error) {
	return g.open(ctx, operationID, nodeID, change, recorded)
}

// OpenWith opens it for a change with other credentials than the recorded
// ones, by a login of its own.
func (g *Gate) OpenWith(ctx context.Context, operationID, nodeID string, which activities.Credentials) (bmc.Client, func(context.Context), error) {
	return g.open(ctx, operationID, nodeID, true, which)
}

func (g *Gate) open(ctx context.Context, operationID, nodeID string, change bool, which activities.Credentials) (bmc.Client, func(context.Context), error) {
	access, err := g.Store.LoadBMCAccess(ctx, nodeID)
	if err != nil {
		return nil, nil, err
	}
	if change && access.Fence != operationID {
		return nil, nil, superseded(operationID, nodeID)
	}
	held, err := g.take(ctx, nodeID, operationID, change)
	if err != nil {
		return nil, nil, err
	}
	opts := g.options(access, held, change)
	opts.Observe = func(e bmc.Exchange) { g.observe(nodeID, e) }
	var s *session
	if which == recorded {
		s = &session{gate: g, nodeID: nodeID, lease: held.lease}
	}
	return g.converse(ctx, operationID, access, held, opts, which, s)
}

// OpenLeased opens a BMC at rest for reading, under a lease that the caller
// took with many others and that lasts until the given time. It logs out at the
// end, unless it took over a session that was there.
func (g *Gate) OpenLeased(ctx context.Context, access store.BMCAccess, lease store.Lease, until time.Time) (bmc.Client, func(context.Context), error) {
	held := g.hold(ctx, lease, "", until)
	s := &session{gate: g, nodeID: access.NodeID, lease: lease, brief: true}
	return g.converse(ctx, "", access, held, g.options(access, held, false), recorded, s)
}

// converse opens the BMC, over the node's session where there is one.
func (g *Gate) converse(ctx context.Context, operationID string, a store.BMCAccess, held *hold, opts bmc.Options, which activities.Credentials, s *session) (bmc.Client, func(context.Context), error) {
	end := held.release
	if s != nil {
		opts.Session = s
		end = func(ctx context.Context) {
			s.done(ctx)
			held.release(ctx)
		}
	}
	client, err := g.login(ctx, operationID, a, held, opts, which)
	if err != nil {
		end(ctx)
		return nil, nil, err
	}
	return client, g.closer(client, end), nil
}

// Life is how long a lease lasts that a caller takes for OpenLeased, and Grace
// how long an expired one is left alone.
func (g *Gate) Life() (life, grace time.Duration) { return g.life(), g.Waits.Request }

func (g *Gate) closer(client bmc.Client, end func(context.Context)) func(context.Context) {
	return func(ctx context.Context) {
		// A session that could not be ended is ended by the idle sweep.
		if err := client.Close(ctx); err != nil {
			g.Log.InfoContext(ctx, "close the BMC conversation", "error", err)
		}
		end(ctx)
	}
}

// login opens the BMC. Where the recorded password is refused and an earlier
// operation staged another one, that operation may have set it before it was
// cut off: it is tried once and recorded when it works.
func (g *Gate) login(ctx context.Context, operationID string, a store.BMCAccess, held *hold, opts bmc.Options, which activities.Credentials) (bmc.Client, error) {
	target, err := g.target(ctx, operationID, a, which)
	if err != nil {
		return nil, err
	}
	client, err := g.OpenBMC(held.ctx, target, opts)
	if bmc.KindOf(err) == bmc.KindAuth && which == recorded && a.Staged != nil && a.StagedBy != operationID {
		if target.Password, err = g.Store.OpenBMCPassword(a.NodeID, a.Staged); err != nil {
			return nil, err
		}
		if client, err = g.OpenBMC(held.ctx, target, opts); err == nil {
			err = g.Store.PromoteStaged(ctx, a)
		}
	}
	if err != nil {
		return nil, held.explain(err)
	}
	if which == recorded {
		g.proved(ctx, a)
	}
	return &leased{client: client, hold: held}, nil
}

// proved makes the conditions about a BMC True that its opening has proved. A
// write that fails is made up for by the next opening.
func (g *Gate) proved(ctx context.Context, a store.BMCAccess) {
	for _, t := range a.Unproved {
		if err := g.Store.SetCondition(ctx, a.NodeID, fleet.Condition{Type: t, Status: fleet.ConditionTrue}); err != nil {
			g.Log.WarnContext(ctx, "record a condition of a BMC", "node", a.NodeID, "condition", t, "error", err)
		}
	}
}

// learned keeps what was learned of a BMC for its next client. What could not be
// written is learned again.
func (g *Gate) learned(ctx context.Context, a store.BMCAccess, quirks []string) {
	if err := g.Store.RecordQuirks(ctx, a.NodeID, a.Address.String(), quirks); err != nil {
		g.Log.WarnContext(ctx, "record what was learned of a BMC", "node", a.NodeID, "error", err)
	}
}

// target says how to reach and trust the BMC and with which credentials.
func (g *Gate) target(ctx context.Context, operationID string, a store.BMCAccess, which activities.Credentials) (bmc.Target, error) {
	t := bmc.Target{Address: a.Address, System: a.System, Driver: a.Driver, Username: a.Username,
		TLS:          bmc.TLS{Mode: a.TLSMode, Legacy: a.LegacyTLS},
		CipherSuites: a.CipherSuites, Quirks: a.Quirks}
	if t.Driver == "auto" && a.Found != "" {
		t.Driver = a.Found
	}
	if a.CA != nil {
		t.TLS.CA = *a.CA
	}
	if a.Fingerprint != nil {
		t.TLS.Fingerprint = *a.Fingerprint
	}
	if a.Identity != (fleet.BMCIdentity{}) {
		t.Identity = &a.Identity
	}
	var err error
	switch which {
	case activities.OperationCredentials:
		if t.Password, err = g.Store.OperationSecret(ctx, operationID, fleet.SecretPassword); err == nil {
			t.Username, err = g.Store.OperationUsername(ctx, operationID, a.Username)
		}
	case activities.StagedCredentials:
		t.Password, err = g.Store.StagedPassword(ctx, operationID)
	default:
		t.Password, err = g.Store.OpenBMCPassword(a.NodeID, a.Password)
	}
	return t, err
}

func (g *Gate) options(a store.BMCAccess, held *hold, change bool) bmc.Options {
	o := bmc.Options{
		AllowAddress: func(ip string) error { return allowed(ip, a.Networks) },
		Pinned:       func(fp string) error { return g.Store.PinCertificate(held.ctx, a.NodeID, fp) },
		Learned:      func(quirks []string) { g.learned(held.ctx, a, quirks) },
		BeforeChange: func(context.Context) error {
			return fmt.Errorf("the BMC of node %s was opened for reading", a.NodeID)
		},
		Waits:     g.Waits,
		NotBefore: func() time.Time { return g.notBefore(a.NodeID) },
		Hinted:    func(until time.Time) { g.hinted(held.ctx, a.NodeID, until) },
	}
	if a.Quiet > 0 {
		g.keepQuiet(a.NodeID, time.Now().Add(a.Quiet))
	}
	if change {
		o.BeforeChange = held.check
	}
	return o
}

// allowed says whether an address lies in the site's networks.
func allowed(ip string, networks []string) error {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return fmt.Errorf("resolved address %q: %w", ip, err)
	}
	for _, n := range networks {
		if p, err := netip.ParsePrefix(n); err == nil && p.Contains(addr.Unmap().WithZone("")) {
			return nil
		}
	}
	return fmt.Errorf("%s is outside the site's allowedNetworks", addr)
}

const (
	// keptExchanges is how many exchanges are kept for evidence, of keptNodes
	// nodes at most.
	keptExchanges = 20
	keptNodes     = 2000
)

// observe keeps the last exchanges with a node's BMC.
func (g *Gate) observe(nodeID string, e bmc.Exchange) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.exchanges == nil {
		g.exchanges = map[string][]bmc.Exchange{}
	}
	if _, known := g.exchanges[nodeID]; !known && len(g.exchanges) >= keptNodes {
		for other := range g.exchanges { // any: evidence is read right after a failure
			delete(g.exchanges, other)
			break
		}
	}
	list := append(g.exchanges[nodeID], e)
	g.exchanges[nodeID] = list[max(0, len(list)-keptExchanges):]
}

// Exchanges are the last exchanges of this process with the node's BMC.
func (g *Gate) Exchanges(nodeID string) []bmc.Exchange {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]bmc.Exchange(nil), g.exchanges[nodeID]...)
}
