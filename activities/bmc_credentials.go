package activities

import (
	"context"

	"github.com/bettercompute/compute/bmc"
)

// ProveCredentials logs in with the credentials that the operation carries and
// reads who the machine is. Nothing is changed.
func (a *BMC) ProveCredentials(ctx context.Context, in Act) error {
	in.quiet = true
	return a.run(ctx, in, a.with(in, OperationCredentials), func(ctx context.Context, c bmc.Client) error {
		_, err := c.Identify(ctx)
		return err
	})
}

func (a *BMC) with(in Act, which Credentials) opener {
	return func(ctx context.Context) (bmc.Client, func(context.Context), error) {
		return a.Gate.OpenWith(ctx, in.OperationID, in.NodeID, which)
	}
}

// Rotate gives the BMC a new password and records it: staged first, set,
// proved, then stored, so that at no moment the only password that works is
// known to nobody. A repeat looks first whether the staged one works already.
func (a *BMC) Rotate(ctx context.Context, in Act) error {
	j, err := a.openJournal(ctx, in, "set-password")
	if err != nil {
		return toTemporal(err)
	}
	if j.spent {
		set, err := a.stagedWorks(ctx, in)
		if err != nil {
			return err
		}
		if set {
			return toTemporal(a.Nodes.StoreCredentials(ctx, in.OperationID))
		}
	}
	if err := a.Nodes.StageCredentials(ctx, in.OperationID); err != nil {
		return toTemporal(err)
	}
	err = a.change(ctx, in, func(ctx context.Context, c bmc.Client) error {
		password, err := a.Nodes.StagedPassword(ctx, in.OperationID)
		if err != nil {
			return err
		}
		if err := j.acting(ctx, "SetPassword"); err != nil {
			return err
		}
		return c.SetPassword(ctx, password)
	})
	if err != nil {
		return err
	}
	return toTemporal(a.Nodes.StoreCredentials(ctx, in.OperationID))
}

// stagedWorks says whether the staged password was set by an earlier attempt.
func (a *BMC) stagedWorks(ctx context.Context, in Act) (bool, error) {
	in.quiet = true
	works := false
	err := a.run(ctx, in, a.with(in, StagedCredentials), func(ctx context.Context, c bmc.Client) error {
		_, err := c.Identify(ctx)
		if bmc.KindOf(err) == bmc.KindAuth {
			return nil
		}
		works = err == nil
		return err
	})
	if err != nil && ReasonOf(err).Code == string(bmc.KindAuth) {
		return false, nil // refused at the login itself: it was not set
	}
	return works, err
}
