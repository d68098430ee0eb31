package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// A revocation by an operation unbinds the key that lay on the disk, so that the
// next system joins with its own; and what an earlier deploy left, a token or a
// command, is good for nothing any more.
func TestRevocationUnbinds(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	r := &joinRig{Store: m.Store, t: t}
	token, err := m.DeployToken(t.Context(), m.Op)
	if err != nil {
		t.Fatal(err)
	}
	err = m.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if err := store.LockNode(ctx, tx, m.Node); err != nil {
			return err
		}
		_, _, err := store.RevokeNodeIdentity(ctx, tx, m.Node, "stolen")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r.refused("the token of before a revocation", store.ReasonBadJoinToken, r.in(token, "a", uuidA))

	nextDeploy := func() { r.exec(`UPDATE deploy_tokens SET used_at = NULL, expires_at = now() + interval '1 hour'`) }
	nextDeploy()
	// What it says of its hardware is not recorded: that is its BMC's to say.
	in := r.in(token, "a", uuidA)
	in.Inventory = &fleet.Inventory{Vendor: "forged"}
	if g := r.join(in); g.Outcome != fleet.JoinBind {
		t.Errorf("joined: %+v", g)
	}
	in.Serial = "ff"
	first := r.join(in) // the answer was lost
	if n := r.count(`SELECT count(*) FROM inventories`); n != 0 {
		t.Error("an enrolled machine's inventory was taken from a join")
	}
	if _, err := m.OpenSession(t.Context(), "gw-1", store.ShownCert{NodeID: m.Node, Generation: first.Generation, Serial: in.Serial, KeyHash: in.KeyHash}); err != nil {
		t.Fatal(err)
	}
	r.exec(`UPDATE deploy_tokens SET expires_at = now()`)
	r.refused("its token, which has ended", store.ReasonBadJoinToken, r.in(token, "a", uuidA))
	command, err := m.SendNodeCommand(t.Context(), m.Op, fleet.CommandIn{Key: "0", Type: "accept", Args: struct{}{}, Expires: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.RevokeIdentity(t.Context(), m.Op, "release"); err != nil {
		t.Fatal(err)
	}
	if n := r.count(`SELECT count(*) FROM node_keys`) + r.count(`SELECT count(*) FROM certificates WHERE revoked_at IS NULL`); n != 0 {
		t.Errorf("%d keys and certificates hold", n)
	}
	if c, err := m.Command(t.Context(), command); err != nil || c.State != store.CommandCancelled {
		t.Errorf("its command: %+v, %v", c, err)
	}
	if in, err := m.InSession(t.Context(), m.Op); err != nil || in {
		t.Errorf("in session after the revocation: %v, %v", in, err)
	}
	nextDeploy()
	next := r.join(r.in(token, "b", uuidA))
	if next.NodeID != m.Node || next.Outcome != fleet.JoinBind || next.Generation <= first.Generation {
		t.Errorf("the next system: %+v, after %+v", next, first)
	}
}
