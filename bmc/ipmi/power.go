package ipmi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bettercompute/compute/bmc"
)

// The requests of Chassis Control (IPMI 2.0, section 28.3).
const (
	controlDown  = 0
	controlUp    = 1
	controlReset = 3
	controlSoft  = 5
)

var controlNames = map[byte]string{controlDown: "down", controlUp: "up", controlReset: "reset", controlSoft: "soft"}

// settlePolls is how many reads an old value is believed to be old, maxSends
// how often one request is sent when the state shows that it did nothing.
const (
	settlePolls = 20
	steadyPolls = 5
	maxSends    = 3
)

// Power reads the power state now, through bmclib. Its error says little, so
// that an error is asked for again through ipmitool, which says why. Its
// sessions are always the administrator's; an operator's are ours.
func (c *Client) Power(ctx context.Context) (bmc.PowerState, error) {
	doing := "read the power of " + c.tool.name()
	if c.tool.role != roleAdministrator {
		return c.chassisPower(ctx, doing)
	}
	state, err := c.lib.GetPowerState(ctx)
	if err == nil {
		// bmclib hands on ipmitool's words.
		switch words := strings.Fields(strings.ToLower(state)); {
		case slices.Contains(words, "on"):
			return bmc.PowerOn, nil
		case slices.Contains(words, "off"):
			return bmc.PowerOff, nil
		}
		return bmc.PowerUnknown, nil
	}
	if ctx.Err() != nil {
		return bmc.PowerUnknown, ended(ctx, doing)
	}
	return c.chassisPower(ctx, doing)
}

// chassisPower reads it by Get Chassis Status (IPMI 2.0, section 28.2).
func (c *Client) chassisPower(ctx context.Context, doing string) (bmc.PowerState, error) {
	data, err := c.tool.raw(ctx, false, doing, 0x00, 0x01)
	if err != nil {
		return bmc.PowerUnknown, explain(doing, err)
	}
	if len(data) == 0 {
		return bmc.PowerUnknown, nil
	}
	if data[0]&1 == 1 {
		return bmc.PowerOn, nil
	}
	return bmc.PowerOff, nil
}

// powerRun is one SetPower under way.
type powerRun struct {
	c      *Client
	change bmc.PowerChange
	result bmc.PowerResult
	until  time.Time
}

// SetPower makes one change and waits until the state it aims at is read.
func (c *Client) SetPower(ctx context.Context, change bmc.PowerChange) (bmc.PowerResult, error) {
	r := &powerRun{c: c, change: change, until: time.Now().Add(c.waits.Change)}
	err := c.compare(ctx)
	if err == nil {
		err = r.run(ctx)
	}
	r.result.AlreadySo = err == nil && len(r.result.Sent) == 0
	return r.result, err
}

func (r *powerRun) run(ctx context.Context) error {
	state, err := r.settled(ctx)
	if err != nil {
		return err
	}
	switch r.change.Aim {
	case bmc.AimOn:
		return r.reach(ctx, state, bmc.PowerOn, controlUp)
	case bmc.AimOff:
		return r.reach(ctx, state, bmc.PowerOff, controlDown)
	case bmc.AimSoftOff:
		return r.reach(ctx, state, bmc.PowerOff, controlSoft)
	case bmc.AimCycle, bmc.AimReset:
		return r.restart(ctx, state)
	default:
		return fmt.Errorf("no power change called %q", r.change.Aim)
	}
}

func (r *powerRun) doing() string {
	return fmt.Sprintf("power %s of %s", r.change.Aim, r.c.tool.name())
}

// reach brings the power to a state, unless it is there.
func (r *powerRun) reach(ctx context.Context, state, target bmc.PowerState, control byte) error {
	if state == target {
		return nil
	}
	if r.change.Spent {
		if reached, err := r.watch(ctx, target); err != nil || reached {
			return err
		}
	}
	return r.send(ctx, control, target)
}

// restart is cycle and reset; both are switch-on for a machine that is off. A
// restart that may have been sent is not sent again.
func (r *powerRun) restart(ctx context.Context, state bmc.PowerState) error {
	if r.change.Spent {
		off, err := r.watch(ctx, bmc.PowerOff)
		if err != nil || !off {
			r.result.Unproved = err == nil
			return err
		}
		state = bmc.PowerOff
	}
	if state == bmc.PowerOff {
		return r.reach(ctx, state, bmc.PowerOn, controlUp)
	}
	if r.change.Aim == bmc.AimCycle {
		if err := r.send(ctx, controlDown, bmc.PowerOff); err != nil {
			return err
		}
		return r.send(ctx, controlUp, bmc.PowerOn)
	}
	return r.sendReset(ctx)
}

// sendReset sends a hard reset once, unless it certainly did not arrive.
func (r *powerRun) sendReset(ctx context.Context) error {
	for sent := 0; ; {
		err := r.post(ctx, controlReset)
		var stop *stopped
		switch {
		case err == nil:
			return r.steady(ctx)
		case errors.As(err, &stop):
			return stop.err
		case notSent(err):
			r.unsend()
			if waitErr := r.wait(ctx, bmc.PowerOn); waitErr != nil {
				return err
			}
			continue
		case codeOf(err) != codeWrongState || sent+1 >= maxSends:
			return explain(r.doing(), err)
		}
		// Wrong state: it may be off by now.
		sent++
		state, settleErr := r.settled(ctx)
		if settleErr != nil {
			return settleErr
		}
		if state == bmc.PowerOff {
			return r.send(ctx, controlUp, bmc.PowerOn)
		}
		if err := r.c.wait(ctx, r.c.waits.Busy, r.doing()); err != nil {
			return err
		}
	}
}

// send sends one control and waits for its state. Whatever is answered, the
// state is read before anything is sent again.
func (r *powerRun) send(ctx context.Context, control byte, target bmc.PowerState) error {
	for sent := 0; ; {
		err := r.post(ctx, control)
		var stop *stopped
		switch {
		case err == nil:
			return r.await(ctx, target)
		case errors.As(err, &stop):
			return stop.err
		case notSent(err):
			r.unsend()
			if waitErr := r.wait(ctx, target); waitErr != nil {
				return err
			}
			continue
		}
		failed := explain(r.doing(), err)
		if !bmc.Retryable(failed) || bmc.KindOf(failed) == bmc.KindTimeout {
			return failed
		}
		sent++
		reached, watchErr := r.watch(ctx, target)
		if watchErr != nil || reached {
			return watchErr
		}
		if sent >= maxSends {
			return failed
		}
	}
}

// stopped is a change that the caller did not let out: nothing is tried again,
// however busy its error says that something is.
type stopped struct{ err error }

func (s *stopped) Error() string { return s.err.Error() }
func (s *stopped) Unwrap() error { return s.err }

// post sends one Chassis Control.
func (r *powerRun) post(ctx context.Context, control byte) error {
	name := "Chassis Control " + controlNames[control]
	if r.change.Acting != nil {
		if err := r.change.Acting(ctx, name); err != nil {
			return &stopped{err}
		}
	}
	if before := r.c.opts.BeforeChange; before != nil {
		if err := before(ctx); err != nil {
			return &stopped{err}
		}
	}
	r.result.Sent = append(r.result.Sent, name)
	_, err := r.c.tool.raw(ctx, true, r.doing(), 0x00, 0x02, control)
	return err
}

func (r *powerRun) unsend() { r.result.Sent = r.result.Sent[:len(r.result.Sent)-1] }

// notSent says that a change certainly did not reach the BMC although it may
// later.
func notSent(err error) bool {
	return unsent(err) && bmc.Retryable(err)
}

// look reads the state and tells the caller.
func (r *powerRun) look(ctx context.Context) (bmc.PowerState, error) {
	state, err := r.c.Power(ctx)
	if err != nil {
		return state, err
	}
	r.result.State = state
	if r.change.Progress != nil {
		r.change.Progress("power is " + string(state))
	}
	return state, nil
}

// settled reads until the state is known; before that nothing is sent.
func (r *powerRun) settled(ctx context.Context) (bmc.PowerState, error) {
	for {
		state, err := r.look(ctx)
		if err != nil || state == bmc.PowerOn || state == bmc.PowerOff {
			return state, err
		}
		if err := r.wait(ctx, "on or off"); err != nil {
			return state, err
		}
	}
}

// watch reads for as long as an old value may be shown.
func (r *powerRun) watch(ctx context.Context, target bmc.PowerState) (bool, error) {
	for range settlePolls {
		state, err := r.look(ctx)
		if err != nil {
			return false, err
		}
		if state == target {
			return true, nil
		}
		if err := r.wait(ctx, target); err != nil {
			return false, err
		}
	}
	return false, nil
}

// await reads until the target is there.
func (r *powerRun) await(ctx context.Context, target bmc.PowerState) error {
	for {
		state, err := r.look(ctx)
		if err != nil || state == target {
			return err
		}
		if err := r.wait(ctx, target); err != nil {
			return err
		}
	}
}

// steady reads "on" several times: IPMI shows nothing else of a reset.
func (r *powerRun) steady(ctx context.Context) error {
	for n := 0; n < steadyPolls; n++ {
		if err := r.await(ctx, bmc.PowerOn); err != nil {
			return err
		}
		if err := r.wait(ctx, bmc.PowerOn); err != nil {
			return err
		}
	}
	return nil
}

func (r *powerRun) wait(ctx context.Context, wanted bmc.PowerState) error {
	late := &bmc.Error{Kind: bmc.KindTimeout, Doing: r.doing(), Cause: fmt.Sprintf("%s was not read in time; last read was %s", wanted, r.result.State),
		Remedy: "look at the machine's console and at the BMC's log"}
	if r.change.Aim == bmc.AimSoftOff {
		late.Remedy = "the system did not shut down; power off forces it"
	}
	if time.Now().After(r.until) {
		return late
	}
	err := r.c.wait(ctx, r.c.waits.Poll, r.doing())
	if bmc.KindOf(err) == bmc.KindTimeout {
		return late
	}
	return err
}
