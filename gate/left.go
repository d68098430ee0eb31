package gate

import (
	"context"
	"errors"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/store"
)

// parting lends a session to a client that ends it: it is not kept, and no other
// is made.
type parting struct{ uri, token string }

func (p parting) Load(context.Context) (uri, token string, err error) { return p.uri, p.token, nil }
func (parting) Save(context.Context, string, string) error            { return nil }
func (parting) Keep() bool                                            { return false }

var _ bmc.SessionStore = parting{}

// leftAgain is when the end of a left session is tried again on a BMC that asked
// to wait.
const leftAgain = 5 * time.Minute

// EndLeft ends sessions that are left on BMCs which no node has any more, such as
// that of an operation whose node was deleted beside it, and says how many. It
// needs no lease: a session is nobody else's, and ending it changes nothing else.
func (g *Gate) EndLeft(ctx context.Context) (int, error) {
	list, err := g.Store.ClaimLeftSessions(ctx, leftAgain, idleAtOnce)
	if err != nil {
		return 0, err
	}
	for _, l := range list {
		if err := g.endLeft(ctx, l); bmc.KindOf(err) == bmc.KindBusy {
			continue
		} else if err != nil {
			// It ends by itself on the BMC.
			g.Log.InfoContext(ctx, "session left on a BMC", "node", l.NodeID, "error", err)
		}
		if err := g.Store.ForgetLeftSession(ctx, l.ID); err != nil {
			return 0, err
		}
	}
	return len(list), nil
}

func (g *Gate) endLeft(ctx context.Context, l store.LeftSession) error {
	client, err := g.OpenBMC(ctx, bmc.Target{Address: l.Address, Driver: "redfish",
		TLS: bmc.TLS{Mode: l.TLSMode, CA: l.CA, Fingerprint: l.Fingerprint, Legacy: l.LegacyTLS}},
		bmc.Options{
			AllowAddress: func(ip string) error { return allowed(ip, l.Networks) },
			BeforeChange: func(context.Context) error { return errors.New("a session is ended, nothing is changed") },
			NotBefore:    func() time.Time { return g.notBefore(l.NodeID) },
			Waits:        g.Waits,
			Session:      parting{uri: l.URI, token: l.Token},
		})
	if err != nil {
		return err
	}
	return client.Close(ctx)
}
