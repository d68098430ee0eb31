package ipmi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/bettercompute/compute/bmc"
)

// Boot flags, parameter 5 of the system boot options (IPMI 2.0, table 28-14).
const (
	flagValid      = 0x80
	flagPersistent = 0x40
	flagEFI        = 0x20

	deviceMask = 0x3c
	devicePXE  = 0x04
	deviceDisk = 0x08
	deviceCD   = 0x14
)

var devices = map[bmc.BootTarget]byte{bmc.BootPXE: devicePXE, bmc.BootDisk: deviceDisk, bmc.BootCD: deviceCD}

// quirkNoValid is learned of a BMC that stores the device but shows the valid
// bit never, so that the device alone tells.
const quirkNoValid = "ipmi-boot-valid-bit-not-shown"

// bootFlags are the first two bytes of the boot flags.
type bootFlags struct{ flags, device byte }

// Boot reads the boot override.
func (c *Client) Boot(ctx context.Context) (bmc.BootOverride, error) {
	f, err := c.readBoot(ctx, "read the boot override of "+c.tool.name())
	if err != nil {
		return bmc.BootOverride{}, err
	}
	o := bmc.BootOverride{Target: bmc.BootNone, UEFI: f.flags&flagEFI != 0, Persistent: f.flags&flagPersistent != 0}
	if f.flags&flagValid != 0 || c.hidesValid() {
		o.Target = targetOf(f.device)
	}
	if o.Target == bmc.BootNone {
		o.Persistent = false
	}
	return o, nil
}

func (c *Client) hidesValid() bool { return slices.Contains(c.quirks, quirkNoValid) }

func targetOf(device byte) bmc.BootTarget {
	for t, d := range devices {
		if device&deviceMask == d {
			return t
		}
	}
	if device&deviceMask == 0 {
		return bmc.BootNone
	}
	return bmc.BootTarget(fmt.Sprintf("device-0x%02x", device&deviceMask))
}

func (c *Client) readBoot(ctx context.Context, doing string) (bootFlags, error) {
	data, err := c.tool.raw(ctx, false, doing, 0x00, 0x09, 0x05, 0x00, 0x00)
	if err != nil {
		return bootFlags{}, explain(doing, err)
	}
	// Version, parameter, then the five bytes of the parameter.
	if len(data) < 4 || data[1]&0x7f != 5 {
		return bootFlags{}, &bmc.Error{Kind: bmc.KindProtocol, Doing: doing, Cause: fmt.Sprintf("the answer % x is no boot flags", data), Remedy: "try again"}
	}
	return bootFlags{data[2], data[3]}, nil
}

// SetBoot sets the override with its valid bit, or clears it, and reads it
// back. A machine whose flags are as wanted is left alone.
func (c *Client) SetBoot(ctx context.Context, want bmc.BootOverride) error {
	doing := fmt.Sprintf("set the boot override of %s to %s", c.tool.name(), want.Target)
	var f bootFlags
	if want.Target != bmc.BootNone {
		device, ok := devices[want.Target]
		if !ok {
			return unsupported(doing, fmt.Sprintf("IPMI has no boot device for %s", want.Target), "use Redfish, or boot by PXE")
		}
		f = bootFlags{flagValid, device}
		if want.Persistent {
			f.flags |= flagPersistent
		}
		if !want.Legacy {
			f.flags |= flagEFI
		}
	}
	if err := c.compare(ctx); err != nil {
		return err
	}
	is, err := c.readBoot(ctx, doing)
	if err != nil {
		return err
	}
	if c.asWanted(is, f) {
		return nil
	}
	if f.flags != 0 && is.flags&flagValid == 0 && is.device&deviceMask == f.device {
		// The device is left over from before. It is cleared first, so that what
		// is read back afterwards proves the write.
		if err := c.writeBoot(ctx, doing, bootFlags{}); err != nil {
			return err
		}
	}
	return c.writeBoot(ctx, doing, f)
}

func (c *Client) asWanted(is, want bootFlags) bool {
	if want.flags&flagValid == 0 {
		return is.flags&flagValid == 0 && (is.device&deviceMask == 0 || !c.hidesValid())
	}
	if c.hidesValid() {
		return is.device&deviceMask == want.device
	}
	return is.flags&(flagValid|flagPersistent|flagEFI) == want.flags && is.device&deviceMask == want.device
}

// writeBoot writes the flags and reads them back.
func (c *Client) writeBoot(ctx context.Context, doing string, f bootFlags) error {
	// The flags are kept beyond the 60 s after which a BMC forgets them. Those
	// that do not know the parameter say so.
	var stop *stopped
	if f.flags != 0 {
		err := c.write(ctx, doing, 0x03, 0x08)
		if errors.As(err, &stop) {
			return stop.err
		}
		if err != nil && codeOf(err) == 0 {
			return err
		}
	}
	for sent := 1; ; sent++ {
		err := c.write(ctx, doing, 0x05, f.flags, f.device, 0, 0, 0)
		if errors.As(err, &stop) {
			return stop.err
		}
		failed := explain(doing, err)
		if err != nil && !bmc.Retryable(failed) {
			return failed
		}
		is, readErr := c.readBoot(ctx, doing)
		if readErr != nil {
			return readErr
		}
		if err == nil && f.flags != 0 && is.flags&flagValid == 0 && is.device&deviceMask == f.device {
			c.learn(quirkNoValid)
		}
		if c.asWanted(is, f) {
			return nil
		}
		if failed == nil {
			failed = &bmc.Error{Kind: bmc.KindTimeout, Doing: doing, Cause: fmt.Sprintf("it was accepted but flags 0x%02x, device 0x%02x are read", is.flags, is.device),
				Remedy: "look at the boot settings in the BMC"}
		}
		if sent >= maxSends {
			return failed
		}
		if err := c.wait(ctx, c.waits.Busy, doing); err != nil {
			return err
		}
	}
}

// write sends one Set System Boot Options.
func (c *Client) write(ctx context.Context, doing string, parameter byte, data ...byte) error {
	if before := c.opts.BeforeChange; before != nil {
		if err := before(ctx); err != nil {
			return &stopped{err}
		}
	}
	_, err := c.tool.raw(ctx, true, doing, append([]byte{0x00, 0x08, parameter}, data...)...)
	return err
}
