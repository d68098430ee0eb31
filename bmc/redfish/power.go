package redfish

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/redfish"

	"github.com/bettercompute/compute/bmc"
)

// Power reads the power state now.
func (c *Client) Power(ctx context.Context) (bmc.PowerState, error) {
	s, err := c.findSystem(ctx)
	if err != nil {
		return bmc.PowerUnknown, err
	}
	return s.power(), nil
}

// settlePolls is how many reads an old value is believed to be old: services
// have been seen to show it for a minute after a change.
const settlePolls = 20

// maxSends bounds how often one request of a change is sent when the state
// shows that it was not acted upon.
const maxSends = 3

// powerRun is one SetPower under way.
type powerRun struct {
	c      *Client
	change bmc.PowerChange
	result bmc.PowerResult
	until  time.Time
	types  []string
	// ifMatch is true once a Reset was refused for want of an ETag.
	ifMatch bool
}

// SetPower makes one change and waits until the state it aims at is read.
func (c *Client) SetPower(ctx context.Context, change bmc.PowerChange) (bmc.PowerResult, error) {
	r := &powerRun{c: c, change: change, until: time.Now().Add(c.waits.Change)}
	s, err := r.settled(ctx)
	if err != nil {
		return r.result, err
	}
	if r.types, _, err = c.resetTypes(ctx, s); err != nil {
		return r.result, err
	}
	err = r.run(ctx, s)
	r.result.AlreadySo = err == nil && len(r.result.Sent) == 0
	return r.result, err
}

func (r *powerRun) run(ctx context.Context, s system) error {
	switch r.change.Aim {
	case bmc.AimOn:
		return r.reach(ctx, s, bmc.PowerOn, onTypes)
	case bmc.AimOff:
		return r.reach(ctx, s, bmc.PowerOff, offTypes)
	case bmc.AimSoftOff:
		return r.reach(ctx, s, bmc.PowerOff, softOffTypes)
	case bmc.AimCycle, bmc.AimReset:
		return r.restart(ctx, s)
	default:
		return fmt.Errorf("no power change called %q", r.change.Aim)
	}
}

// The types that serve an aim, best first. A push of the button is what the
// acpi button does: it asks a system that is on to shut down, and switches one
// on that is off.
var (
	onTypes      = []redfish.ResetType{redfish.OnResetType, redfish.ForceOnResetType, redfish.PushPowerButtonResetType}
	offTypes     = []redfish.ResetType{redfish.ForceOffResetType, redfish.GracefulShutdownResetType, redfish.PushPowerButtonResetType}
	softOffTypes = []redfish.ResetType{redfish.GracefulShutdownResetType, redfish.PushPowerButtonResetType}
	resetOrder   = []redfish.ResetType{redfish.ForceRestartResetType, redfish.PowerCycleResetType}
	cycleOrder   = []redfish.ResetType{redfish.PowerCycleResetType, redfish.ForceRestartResetType}
)

// choose picks the first type that is offered. A service that offers no list is
// asked for the first.
func (r *powerRun) choose(order []redfish.ResetType) (redfish.ResetType, bool) {
	if len(r.types) == 0 {
		return order[0], true
	}
	for _, t := range order {
		if slices.Contains(r.types, string(t)) {
			return t, true
		}
	}
	return "", false
}

func (r *powerRun) unsupported() error {
	return &bmc.Error{Kind: bmc.KindUnsupported, Doing: r.doing(), Cause: "the BMC offers no type for it, only " + strings.Join(r.types, ", "),
		Remedy: "use one of the other power actions"}
}

func (r *powerRun) doing() string {
	return fmt.Sprintf("power %s of %s", r.change.Aim, r.c.name())
}

// reach brings the power to a state, unless it is there.
func (r *powerRun) reach(ctx context.Context, s system, target bmc.PowerState, order []redfish.ResetType) error {
	if s.power() == target {
		return nil
	}
	t, ok := r.choose(order)
	if !ok {
		return r.unsupported()
	}
	if r.change.Spent {
		// It may have been sent: an old value is given its time first.
		reached, err := r.watch(ctx, target)
		if err != nil || reached {
			return err
		}
	}
	return r.send(ctx, s, t, target)
}

// restart is cycle and reset. Both are switch-on for a machine that is off.
func (r *powerRun) restart(ctx context.Context, s system) error {
	if r.change.Spent {
		// Sent or not, it is not sent again; only an off that was meant to be
		// followed by an on is.
		off, err := r.watch(ctx, bmc.PowerOff)
		if err != nil {
			return err
		}
		if !off {
			r.result.Unproved = true
			return nil
		}
		if s, err = r.settled(ctx); err != nil {
			return err
		}
	}
	if s.power() == bmc.PowerOff {
		return r.reach(ctx, s, bmc.PowerOn, onTypes)
	}
	order := resetOrder
	if r.change.Aim == bmc.AimCycle {
		if r.offers(redfish.ForceOffResetType) {
			return r.offThenOn(ctx, s)
		}
		order = cycleOrder
	}
	if len(r.types) > 0 || r.change.Aim == bmc.AimReset {
		if t, ok := r.choose(order); ok {
			return r.sendRestart(ctx, s, t)
		}
	}
	if r.offers(redfish.ForceOffResetType) {
		return r.offThenOn(ctx, s)
	}
	return r.unsupported()
}

func (r *powerRun) offers(t redfish.ResetType) bool {
	return len(r.types) == 0 || slices.Contains(r.types, string(t))
}

func (r *powerRun) offThenOn(ctx context.Context, s system) error {
	if err := r.send(ctx, s, redfish.ForceOffResetType, bmc.PowerOff); err != nil {
		return err
	}
	s, err := r.settled(ctx)
	if err != nil {
		return err
	}
	spent := r.change.Spent
	r.change.Spent = false // the off above is this run's own
	defer func() { r.change.Spent = spent }()
	return r.reach(ctx, s, bmc.PowerOn, onTypes)
}

// look reads the state, with the identity compared, and tells the caller.
func (r *powerRun) look(ctx context.Context) (system, error) {
	s, err := r.c.mine(ctx)
	if err != nil {
		return s, err
	}
	r.result.State = s.power()
	if r.change.Progress != nil {
		r.change.Progress("power is " + string(s.power()))
	}
	return s, nil
}

// settled reads until the state is on or off. In between nothing is sent; a
// state that is never known is neither.
func (r *powerRun) settled(ctx context.Context) (system, error) {
	for {
		s, err := r.look(ctx)
		if err != nil {
			return s, err
		}
		if p := s.power(); p == bmc.PowerOn || p == bmc.PowerOff {
			return s, nil
		}
		if err := r.wait(ctx, "on or off"); err != nil {
			return s, err
		}
	}
}

// wait is the pause between two reads; it ends with the bound of the change.
func (r *powerRun) wait(ctx context.Context, wanted string) error {
	if time.Now().After(r.until) {
		return r.late(wanted)
	}
	err := r.c.sleep(ctx, r.c.waits.Poll, r.doing())
	if bmc.KindOf(err) == bmc.KindTimeout {
		return r.late(wanted)
	}
	return err
}

func (r *powerRun) late(wanted string) error {
	e := &bmc.Error{Kind: bmc.KindTimeout, Doing: r.doing(), Cause: fmt.Sprintf("%s was not read in time; last read was %s", wanted, r.result.State),
		Remedy: "look at the machine's console and at the BMC's log"}
	if r.change.Aim == bmc.AimSoftOff {
		e.Remedy = "the system did not shut down; power off forces it"
	}
	return e
}

// watch reads for as long as an old value may be shown. It ends early when the
// target is read; a transition is waited out to its end.
func (r *powerRun) watch(ctx context.Context, target bmc.PowerState) (bool, error) {
	for range settlePolls {
		s, err := r.look(ctx)
		if err != nil {
			return false, err
		}
		if p := s.power(); p == bmc.PoweringOn || p == bmc.PoweringOff || p == bmc.PowerUnknown {
			if s, err = r.settled(ctx); err != nil {
				return false, err
			}
		}
		if s.power() == target {
			return true, nil
		}
		if err := r.wait(ctx, string(target)); err != nil {
			return false, err
		}
	}
	return false, nil
}

// await reads until the target is there.
func (r *powerRun) await(ctx context.Context, target bmc.PowerState) error {
	for {
		s, err := r.look(ctx)
		if err != nil {
			return err
		}
		if s.power() == target {
			return nil
		}
		if err := r.wait(ctx, string(target)); err != nil {
			return err
		}
	}
}

// resetTypes are the offered types and whether the service says so at all.
func (c *Client) resetTypes(ctx context.Context, s system) ([]string, bool, error) {
	a := s.more.Actions.Reset
	if a == nil {
		return nil, false, &bmc.Error{Kind: bmc.KindWrongMachine, Doing: "read " + c.name() + s.path, Cause: "the system has no Reset action", Remedy: "give the path of the machine's own system in the address"}
	}
	if len(a.Types) > 0 {
		return a.Types, true, nil
	}
	if a.ActionInfo == "" {
		return nil, false, nil
	}
	values, err := c.actionInfo(ctx, a.ActionInfo, "ResetType")
	return values, len(values) > 0, err
}

// actionInfo reads the allowed values of a parameter; none when it says none.
func (c *Client) actionInfo(ctx context.Context, link, parameter string) ([]string, error) {
	r, err := c.get(ctx, link, "read what an action of "+c.name()+" takes")
	if missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var info struct {
		Parameters []struct {
			Name            string
			AllowableValues []string
		}
	}
	if err := json.Unmarshal(r.raw, &info); err != nil {
		//lint:ignore nilerr an ActionInfo that is none offers nothing
		return nil, nil
	}
	for _, p := range info.Parameters {
		if p.Name == parameter {
			return p.AllowableValues, nil
		}
	}
	return nil, nil
}

// post sends one Reset.
func (r *powerRun) post(ctx context.Context, s system, t redfish.ResetType) (*answer, verdict, error) {
	path, err := r.c.local(s.more.Actions.Reset.Target)
	if err != nil {
		return nil, verdict{}, err
	}
	name := "Reset " + string(t)
	if r.change.Acting != nil {
		if err := r.change.Acting(ctx, name); err != nil {
			return nil, verdict{}, err
		}
	}
	if err := r.c.mayChange(ctx, r.doing()); err != nil {
		return nil, verdict{}, err
	}
	r.result.Sent = append(r.result.Sent, name)
	rq := request{method: http.MethodPost, path: path, body: map[string]any{"ResetType": t}, doing: r.doing()}
	if r.ifMatch {
		rq.ifMatch = s.tag
	}
	return r.c.authed(ctx, rq)
}
