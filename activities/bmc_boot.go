package activities

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bettercompute/compute/bmc"
)

// The ways to boot a machine from something else than its disk.
const (
	ViaVirtualMedia = "virtualMedia"
	ViaHTTPBoot     = "httpBoot"
	ViaPXE          = "pxe"
)

// PrepareBootIn readies a machine that is off to boot our image, or an ISO.
type PrepareBootIn struct {
	Act
	// Number is the operation's number of this power-on with our image.
	Number int
	Via    string
	// ISO boots the operation's own image instead of ours.
	ISO bool
}

// PrepareBoot arms a boot, clears what was left in the machine, and points its
// next boot at the medium.
func (a *BMC) PrepareBoot(ctx context.Context, in PrepareBootIn) (string, error) {
	err := a.change(ctx, in.Act, func(ctx context.Context, c bmc.Client) error {
		iso, http, err := a.medium(ctx, in)
		if err != nil {
			return err
		}
		switch in.Via {
		case ViaVirtualMedia:
			if err := eject(ctx, c, func(url string) bool { return url == iso }); err != nil {
				return err
			}
			if err := c.InsertMedia(ctx, iso); err != nil {
				return err
			}
			return c.SetBoot(ctx, bmc.BootOverride{Target: bmc.BootCD})
		case ViaHTTPBoot:
			if err := eject(ctx, c, nil); err != nil {
				return err
			}
			return c.SetBoot(ctx, bmc.BootOverride{Target: bmc.BootHTTP, HTTPURL: http, UEFI: true})
		case ViaPXE:
			if err := eject(ctx, c, nil); err != nil {
				return err
			}
			return c.SetBoot(ctx, bmc.BootOverride{Target: bmc.BootPXE})
		default:
			return fmt.Errorf("no way to boot called %q", in.Via)
		}
	})
	return "boots next by " + in.Via, err
}

// medium is what the BMC and the firmware are told to boot.
func (a *BMC) medium(ctx context.Context, in PrepareBootIn) (iso, http string, err error) {
	if in.ISO {
		url, err := a.Machines.ImageURL(ctx, in.OperationID)
		return url, url, err
	}
	b, err := a.Machines.ArmBoot(ctx, in.OperationID, in.Number)
	return b.ISOURL, b.HTTPURL, err
}

// eject empties the virtual media; a BMC without any has nothing to empty.
func eject(ctx context.Context, c bmc.Client, keep func(string) bool) error {
	if err := c.EjectMedia(ctx, keep); err != nil && bmc.KindOf(err) != bmc.KindUnsupported {
		return err
	}
	return nil
}

// ClearBoot empties the virtual media and clears the boot override.
func (a *BMC) ClearBoot(ctx context.Context, in Act) (string, error) {
	err := a.change(ctx, in, clearBoot)
	return "virtual media empty, boot override cleared", err
}

func clearBoot(ctx context.Context, c bmc.Client) error {
	if err := eject(ctx, c, nil); err != nil {
		return err
	}
	if err := c.SetBoot(ctx, bmc.BootOverride{Target: bmc.BootNone}); err != nil && bmc.KindOf(err) != bmc.KindUnsupported {
		return err
	}
	return nil
}

// ProveOverride sets a one-time boot override on a machine that is off, reads
// it back and clears it.
func (a *BMC) ProveOverride(ctx context.Context, in Act) (string, error) {
	detail := ""
	err := a.change(ctx, in, func(ctx context.Context, c bmc.Client) error {
		w, err := a.Ops.LoadWork(ctx, in.OperationID)
		if err != nil {
			return err
		}
		target := proveTarget(w.Capabilities.BootTargets)
		if err := c.SetBoot(ctx, bmc.BootOverride{Target: target}); err != nil {
			return err
		}
		if err := c.SetBoot(ctx, bmc.BootOverride{Target: bmc.BootNone}); err != nil {
			return err
		}
		detail = fmt.Sprintf("one-time %s accepted, read back and cleared", target)
		return nil
	})
	return detail, err
}

// proveTarget is a target that the BMC offers; without a list the one that all
// have.
func proveTarget(offered []string) bmc.BootTarget {
	for _, t := range []struct {
		name   string
		target bmc.BootTarget
	}{{"Cd", bmc.BootCD}, {"Pxe", bmc.BootPXE}, {"Hdd", bmc.BootDisk}, {"UefiHttp", bmc.BootHTTP}} {
		if slices.Contains(offered, t.name) {
			return t.target
		}
	}
	return bmc.BootPXE
}

// BootDisk switches the machine off, empties its media, clears its override
// and switches it on.
func (a *BMC) BootDisk(ctx context.Context, in SwitchOffIn) (PowerOut, error) {
	var out PowerOut
	err := a.change(ctx, in.Act, func(ctx context.Context, c bmc.Client) error {
		j, err := a.openJournal(ctx, in.Act, string(bmc.AimOn))
		if err != nil {
			return err
		}
		if !j.spent { // switching on again was not begun: the machine is still to be switched off
			if _, err := a.switchOff(ctx, c, in); err != nil {
				return err
			}
			if err := clearBoot(ctx, c); err != nil {
				return err
			}
		}
		r, err := a.setPower(ctx, c, in.Act, bmc.AimOn)
		out = PowerOut{State: r.State, Detail: "boots from its disk"}
		return err
	})
	return out, err
}

// BootStateOut is what was read.
type BootStateOut struct {
	Power bmc.PowerState
	// Consumed says that no override is pending.
	Consumed bool
	// Booting and Running say, where the BMC shows the progress of a boot, that it
	// is on its way or that an operating system runs.
	Booting, Running bool `json:",omitempty"`
}

// BootState reads the power and whether the one-time override was used up.
func (a *BMC) BootState(ctx context.Context, in Act) (BootStateOut, error) {
	var out BootStateOut
	err := a.read(ctx, in, func(ctx context.Context, c bmc.Client) error {
		state, err := c.Power(ctx)
		if err != nil {
			return err
		}
		o, err := c.Boot(ctx)
		if bmc.KindOf(err) == bmc.KindUnsupported {
			o, err = bmc.BootOverride{Target: bmc.BootNone}, nil
		}
		if err != nil {
			return err
		}
		out = BootStateOut{Power: state, Consumed: o.Target == bmc.BootNone,
			Booting: o.Progress != "" && o.Progress != bmc.ProgressOSRunning, Running: o.Progress == bmc.ProgressOSRunning}
		return a.Nodes.RecordPower(ctx, in.NodeID, in.Actor, state, time.Now())
	})
	return out, err
}

// EndSessions deletes the BMC session kept for the node.
func (a *BMC) EndSessions(ctx context.Context, in Act) error {
	stop := beat(ctx, nil)
	defer stop()
	if err := a.Gate.EndSessions(ctx, in.NodeID); err != nil {
		if ctx.Err() != nil {
			return cancelled(ctx)
		}
		return final(err)
	}
	return nil
}
