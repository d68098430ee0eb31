// Package gate is the only way to a BMC: it takes the lease in Postgres,
// checks the address in the dial, takes over the BMC's session, opens the
// sealed credentials and lends all that to a driver.
//
// What it cannot exclude: a process that is frozen between the check of its
// lease and the sending of a request, for longer than the lease, sends that
// one request late. Who takes over an expired lease therefore waits out one
// request timeout and reads before it acts.
package gate

import (
	"context"
	"errors"
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
	// Reads is how many may read a BMC at once beside the one that changes it.
	Reads int

	mu        sync.Mutex
	exchanges map[string][]bmc.Exchange
}

// keptExchanges is how many exchanges are kept for evidence.
const keptExchanges = 20

// leaseLife is how long a lease lasts without renewal. It is renewed at a
// third, and every request's deadline ends before it.
const leaseLife = 90 * time.Second

// Open opens the node's BMC for reading, or for a change of the operation that
// holds the node.
func (g *Gate) Open(ctx context.Context, operationID, nodeID string, change bool) (bmc.Client, func(context.Context), error) {
	return g.open(ctx, operationID, nodeID, change, "")
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
	if change && operationID != "" && access.Fence != operationID {
		return nil, nil, fleet.Errorf(fleet.CodeConflict, store.ReasonSuperseded, "operation %s no longer holds node %s", operationID, nodeID)
	}
	held, err := g.take(ctx, access, change)
	if err != nil {
		return nil, nil, err
	}
	target, err := g.target(ctx, operationID, access, which)
	if err != nil {
		held.release(ctx)
		return nil, nil, err
	}
	opts := g.options(access, held, change, which)
	client, err := g.OpenBMC(held.ctx, target, opts)
	if err != nil {
		held.release(ctx)
		return nil, nil, err
	}
	return client, func(ctx context.Context) {
		// A session that could not be ended is ended by the idle sweep.
		if err := client.Close(ctx); err != nil {
			g.Log.WarnContext(ctx, "close the BMC conversation", "node", nodeID, "error", err)
		}
		held.release(ctx)
	}, nil
}

// target says how to reach and trust the BMC and with which credentials.
func (g *Gate) target(ctx context.Context, operationID string, a store.BMCAccess, which activities.Credentials) (bmc.Target, error) {
	t := bmc.Target{Address: a.Address, System: a.System, Driver: a.Driver, Username: a.Username,
		TLS:          bmc.TLS{Mode: a.TLSMode, Legacy: a.LegacyTLS},
		CipherSuites: a.CipherSuites, CipherSuite: a.CipherSuite, Quirks: a.Quirks}
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
		t.Password, err = g.Store.OpenBMCPassword(a.NodeID, a.Staged)
	default:
		t.Password, err = g.Store.OpenBMCPassword(a.NodeID, a.Password)
	}
	return t, err
}

func (g *Gate) options(a store.BMCAccess, held *hold, change bool, which activities.Credentials) bmc.Options {
	o := bmc.Options{
		AllowAddress: func(ip string) error { return allowed(ip, a.Networks) },
		Pinned:       func(fp string) error { return g.Store.PinCertificate(held.ctx, a.NodeID, fp) },
		Observe:      func(e bmc.Exchange) { g.observe(a.NodeID, e) },
		Waits:        g.Waits,
	}
	if change {
		o.BeforeChange = held.check
	}
	if which == "" {
		o.Session = &session{store: g.Store, nodeID: a.NodeID}
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
		if p, err := netip.ParsePrefix(n); err == nil && p.Contains(addr.Unmap()) {
			return nil
		}
	}
	return fmt.Errorf("%s is outside the site's allowedNetworks", addr)
}

// session keeps one BMC session a node between holders.
type session struct {
	store  *store.Store
	nodeID string
}

func (s *session) Load(ctx context.Context) (string, string, error) {
	return s.store.LoadBMCSession(ctx, s.nodeID)
}
func (s *session) Save(ctx context.Context, uri, token string) error {
	return s.store.SaveBMCSession(ctx, s.nodeID, uri, token)
}
func (s *session) Keep() bool { return true }

// EndSessions deletes the BMC session kept for the node, on the BMC too where
// it answers.
func (g *Gate) EndSessions(ctx context.Context, nodeID string) error {
	uri, _, err := g.Store.LoadBMCSession(ctx, nodeID)
	if err != nil || uri == "" {
		return err
	}
	access, err := g.Store.LoadBMCAccess(ctx, nodeID)
	if err != nil {
		return err
	}
	held, err := g.take(ctx, access, false)
	if err != nil {
		return err
	}
	defer held.release(context.WithoutCancel(ctx))
	target, err := g.target(ctx, "", access, "")
	if err != nil {
		return err
	}
	opts := g.options(access, held, false, "")
	opts.Session = &ending{session{store: g.Store, nodeID: nodeID}}
	client, err := g.OpenBMC(held.ctx, target, opts)
	if err != nil {
		return errors.Join(err, g.Store.SaveBMCSession(ctx, nodeID, "", ""))
	}
	if err := client.Close(held.ctx); err != nil {
		return fmt.Errorf("end the BMC session of node %s: %w", nodeID, err)
	}
	return g.Store.SaveBMCSession(ctx, nodeID, "", "")
}

// ending is a session that is not kept.
type ending struct{ session }

func (*ending) Keep() bool { return false }

// observe keeps the last exchanges with a node's BMC.
func (g *Gate) observe(nodeID string, e bmc.Exchange) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.exchanges == nil {
		g.exchanges = map[string][]bmc.Exchange{}
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
