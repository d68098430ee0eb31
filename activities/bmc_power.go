package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/bettercompute/compute/bmc"
)

// PowerIn is one change of power.
type PowerIn struct {
	Act
	Aim bmc.PowerAim
}

// PowerOut is what a change of power came to.
type PowerOut struct {
	State  bmc.PowerState
	Detail string
}

// SetPower makes one change of power and waits until it is read.
func (a *BMC) SetPower(ctx context.Context, in PowerIn) (PowerOut, error) {
	var out PowerOut
	err := a.change(ctx, in.Act, func(ctx context.Context, c bmc.Client) error {
		r, err := a.setPower(ctx, c, in.Act, in.Aim)
		if err != nil {
			return err
		}
		out = PowerOut{State: r.State, Detail: describePower(in.Aim, r)}
		return nil
	})
	return out, err
}

// setPower changes the power, with the intent kept first, and records what was
// read.
func (a *BMC) setPower(ctx context.Context, c bmc.Client, in Act, aim bmc.PowerAim) (bmc.PowerResult, error) {
	j, err := a.openJournal(ctx, in, string(aim))
	if err != nil {
		return bmc.PowerResult{}, err
	}
	r, err := c.SetPower(ctx, bmc.PowerChange{Aim: aim, Spent: j.spent, Acting: j.acting, Progress: j.progress(ctx)})
	if err != nil {
		return r, errors.Join(err, j.settle(ctx, r.Sent))
	}
	return r, a.Nodes.RecordPower(ctx, in.NodeID, in.Actor, r.State, time.Now())
}

func describePower(aim bmc.PowerAim, r bmc.PowerResult) string {
	switch {
	case r.Unproved:
		return fmt.Sprintf("%s is read; an attempt that was cut off may have sent the %s, so it was not sent again", r.State, aim)
	case r.AlreadySo:
		return fmt.Sprintf("it was already %s", r.State)
	}
	return fmt.Sprintf("%s; %s is read", aim, r.State)
}

// SwitchOffIn switches a machine off.
type SwitchOffIn struct {
	Act
	// Graceful is how long the system is asked before it is forced; 0 forces.
	Graceful time.Duration
}

// SwitchOff asks the system to shut down, then forces, until off is read.
func (a *BMC) SwitchOff(ctx context.Context, in SwitchOffIn) (PowerOut, error) {
	var out PowerOut
	err := a.change(ctx, in.Act, func(ctx context.Context, c bmc.Client) (err error) {
		out, err = a.switchOff(ctx, c, in)
		return err
	})
	return out, err
}

func (a *BMC) switchOff(ctx context.Context, c bmc.Client, in SwitchOffIn) (PowerOut, error) {
	state, err := c.Power(ctx)
	if err != nil {
		return PowerOut{}, err
	}
	if state == bmc.PowerOff {
		return PowerOut{State: state, Detail: "it was already off"}, a.Nodes.RecordPower(ctx, in.NodeID, in.Actor, state, time.Now())
	}
	if in.Graceful > 0 {
		if asked, err := a.askOff(ctx, c, in); err != nil || asked {
			return PowerOut{State: bmc.PowerOff, Detail: "the system shut down"}, err
		}
	}
	r, err := a.setPower(ctx, c, in.Act, bmc.AimOff)
	return PowerOut{State: r.State, Detail: "forced off"}, err
}

// askOff asks the system to shut down. false without an error says that it
// must be forced. Once a repeat finds that forcing was begun, it is not asked any
// more.
func (a *BMC) askOff(ctx context.Context, c bmc.Client, in SwitchOffIn) (bool, error) {
	j, err := a.openJournal(ctx, in.Act, string(bmc.AimOff))
	if err != nil || j.spent {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, in.Graceful)
	defer cancel()
	_, err = a.setPower(ctx, c, in.Act, bmc.AimSoftOff)
	switch kind := bmc.KindOf(err); {
	case err == nil:
		return true, nil
	case kind == bmc.KindTimeout, kind == bmc.KindUnsupported, kind == bmc.KindRefused, errors.Is(ctx.Err(), context.DeadlineExceeded):
		activity.GetLogger(ctx).Info("no graceful shutdown, forcing", "node", in.NodeID, "cause", err)
		return false, nil
	default:
		return false, err
	}
}
