package activities

import (
	"context"
	"fmt"
	"reflect"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// IdentifyIn asks who a machine is.
type IdentifyIn struct {
	Act
	// InUse is the caller's word on whether the machine runs something.
	InUse *bool
	// Presume says that a machine found on is presumed to be in use.
	Presume bool
}

// IdentifyOut is who it is.
type IdentifyOut struct {
	Power      bmc.PowerState
	MaybeInUse bool
	Detail     string
}

// Identify reads who the machine is and what its BMC offers, and records both.
// Nothing is changed on the BMC.
func (a *BMC) Identify(ctx context.Context, in IdentifyIn) (IdentifyOut, error) {
	var out IdentifyOut
	err := a.read(ctx, in.Act, func(ctx context.Context, c bmc.Client) error {
		f, err := c.Identify(ctx)
		if err != nil {
			return err
		}
		if err := a.Nodes.RecordFound(ctx, in.OperationID, f, f.Capabilities.Driver); err != nil {
			return err
		}
		out = IdentifyOut{Power: f.Power, Detail: describeFound(f)}
		if in.Presume {
			out.MaybeInUse = presumed(in.InUse, f.Power)
			if err := a.Nodes.RecordMaybeInUse(ctx, in.OperationID, out.MaybeInUse); err != nil {
				return err
			}
		}
		return a.showWorking(ctx, in.NodeID)
	})
	return out, err
}

// presumed says whether a machine counts as in use: by the caller's word, else
// unless it was read to be off.
func presumed(word *bool, power bmc.PowerState) bool {
	if word != nil {
		return *word
	}
	return power != bmc.PowerOff
}

func describeFound(f bmc.Found) string {
	s := fmt.Sprintf("%s %s, serial %s, power %s, driver %s", orUnknown(f.Identity.Manufacturer), orUnknown(f.Identity.Model),
		orUnknown(f.Identity.Serial), f.Power, f.Capabilities.Driver)
	return s
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// showWorking records that the BMC was reached, trusted and logged in to.
func (a *BMC) showWorking(ctx context.Context, nodeID string) error {
	for _, kind := range []string{"BmcReachable", "BmcTrusted", "BmcAuthenticated"} {
		if err := a.Nodes.SetCondition(ctx, nodeID, fleet.Condition{Type: kind, Status: fleet.ConditionTrue}); err != nil {
			return err
		}
	}
	return nil
}

// InventoryOut is a step's detail.
type InventoryOut struct{ Detail string }

// ReadInventory reads the hardware by the BMC and records it.
func (a *BMC) ReadInventory(ctx context.Context, in Act) (InventoryOut, error) {
	var out InventoryOut
	err := a.read(ctx, in, func(ctx context.Context, c bmc.Client) error {
		again, err := a.learnAnew(ctx, in, c)
		if err != nil {
			return err
		}
		inv, err := c.Inventory(ctx)
		if err != nil {
			return err
		}
		out.Detail = describeInventory(inv) + again
		return a.Nodes.RecordInventory(ctx, in.OperationID, inv)
	})
	return out, err
}

// learnAnew reads again what the BMC can do, and records it where it changed: a
// new firmware offers more or less, and what the old one needed is forgotten.
func (a *BMC) learnAnew(ctx context.Context, in Act, c bmc.Client) (note string, err error) {
	w, err := a.Ops.LoadWork(ctx, in.OperationID)
	if err != nil {
		return "", err
	}
	f, err := c.Identify(ctx)
	if err != nil || reflect.DeepEqual(f.Capabilities, w.Capabilities) {
		return "", err
	}
	if is, was := f.Capabilities.FirmwareVersion, w.Capabilities.FirmwareVersion; is != was {
		note = fmt.Sprintf("; the BMC's firmware is %s now, was %s: what it offers was read anew", orUnknown(is), orUnknown(was))
	}
	return note, a.Nodes.RecordFound(ctx, in.OperationID, f, f.Capabilities.Driver)
}

// HardwareIn asks for commission's judgement.
type HardwareIn struct {
	Act
	// Baseline is report or ignore.
	Baseline string
}

// CheckHardware reads the hardware and judges health, pool and firmware. What
// the BMC does not show is taken from the recorded inventory.
func (a *BMC) CheckHardware(ctx context.Context, in HardwareIn) (InventoryOut, error) {
	var out InventoryOut
	err := a.read(ctx, in.Act, func(ctx context.Context, c bmc.Client) error {
		inv, err := c.Inventory(ctx)
		if err != nil {
			return err
		}
		w, err := a.Ops.LoadWork(ctx, in.OperationID)
		if err != nil {
			return err
		}
		if w.Inventory != nil && len(inv.GPUs) == 0 {
			inv.GPUs = w.Inventory.GPUs
		}
		v := judgeHardware(inv, w.Pool, w.Site, in.Baseline)
		for _, cond := range v.Conditions {
			if err := a.Nodes.SetCondition(ctx, in.NodeID, cond); err != nil {
				return err
			}
		}
		if v.Fails != nil {
			return *v.Fails
		}
		out.Detail = describeVerdict(inv, v)
		return nil
	})
	return out, err
}

func describeVerdict(inv fleet.Inventory, v Verdict) string {
	s := describeInventory(inv)
	for _, n := range v.Notes {
		s += "; " + n
	}
	return s
}
