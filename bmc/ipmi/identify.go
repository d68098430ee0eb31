package ipmi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// Identify reads who the machine is and what its BMC can do.
func (c *Client) Identify(ctx context.Context) (bmc.Found, error) {
	id, err := c.identity(ctx)
	if err != nil {
		return bmc.Found{}, err
	}
	f := bmc.Found{Identity: id, Capabilities: fleet.Capabilities{Driver: "ipmi",
		ResetTypes: []string{"On", "ForceOff", "GracefulShutdown", "ForceRestart"}}}
	if f.Capabilities.FirmwareVersion, err = c.firmware(ctx); err != nil {
		return bmc.Found{}, err
	}
	boot, err := c.Boot(ctx)
	switch {
	case bmc.KindOf(err) == bmc.KindUnsupported, bmc.KindOf(err) == bmc.KindRefused:
	case err != nil:
		return bmc.Found{}, err
	default:
		f.Capabilities.BootOverride = true
		f.Capabilities.BootTargets = []string{"None", "Pxe", "Hdd", "Cd"}
		if boot.Target != bmc.BootNone {
			f.Capabilities.BootMode = map[bool]string{true: "UEFI", false: "Legacy"}[boot.UEFI]
		}
	}
	if f.MachineKey, err = c.machineKey(ctx, id); err != nil {
		return bmc.Found{}, err
	}
	if f.Power, err = c.Power(ctx); err != nil {
		return bmc.Found{}, err
	}
	f.Quirks = slices.Clone(c.quirks)
	return f, nil
}

// machineKey identifies the hardware: the system GUID where it proves
// something, else the BMC's MAC.
func (c *Client) machineKey(ctx context.Context, id fleet.BMCIdentity) (string, error) {
	if u, ok := fleet.ProvingUUID(id.UUID); ok {
		return "uuid:" + min(u, fleet.SwapUUID(u)), nil
	}
	// LAN parameter 5 of the channel in use is its MAC.
	data, err := c.tool.raw(ctx, false, "read the MAC of "+c.tool.name(), 0x0c, 0x02, 0x0e, 0x05, 0x00, 0x00)
	if codeOf(err) != 0 {
		//lint:ignore nilerr a BMC without the parameter has nothing that identifies it
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if len(data) < 7 || strings.Trim(fmt.Sprintf("%x", data[1:7]), "0") == "" || strings.Trim(fmt.Sprintf("%x", data[1:7]), "f") == "" {
		return "", nil
	}
	m := data[1:7]
	return fmt.Sprintf("mac:%02x:%02x:%02x:%02x:%02x:%02x/", m[0], m[1], m[2], m[3], m[4], m[5]), nil
}

// identity reads the system GUID and the board's FRU. What a BMC does not have
// stays empty.
func (c *Client) identity(ctx context.Context) (fleet.BMCIdentity, error) {
	var id fleet.BMCIdentity
	out, err := c.ask(ctx, "read the GUID of "+c.tool.name(), "mc", "guid")
	if err != nil {
		return id, err
	}
	if u, ok := fleet.ProvingUUID(dashed(fields(out)["System GUID"])); ok {
		id.UUID = u
	}
	fru, err := c.fru(ctx)
	if err != nil {
		return id, err
	}
	id.Manufacturer = first(fru, "Product Manufacturer", "Board Mfg")
	id.Model = first(fru, "Product Name", "Board Product")
	id.Serial = first(fru, "Product Serial", "Chassis Serial", "Board Serial")
	return id, nil
}

// dashed is a GUID as text. ipmitool gives plain digits when it cannot tell the
// byte order; either order is then compared (fleet.SameUUID).
func dashed(guid string) string {
	if len(guid) != 32 {
		return guid
	}
	return guid[:8] + "-" + guid[8:12] + "-" + guid[12:16] + "-" + guid[16:20] + "-" + guid[20:]
}

// fru reads the built-in FRU, number 0.
func (c *Client) fru(ctx context.Context) (map[string]string, error) {
	out, err := c.ask(ctx, "read the FRU of "+c.tool.name(), "fru", "print", "0")
	return fields(out), err
}

func (c *Client) firmware(ctx context.Context) (string, error) {
	out, err := c.ask(ctx, "read the firmware of "+c.tool.name(), "mc", "info")
	return fields(out)["Firmware Revision"], err
}

// ask runs a reading command of ipmitool. A command that fails although the
// session was opened says that the BMC does not have what was asked for.
func (c *Client) ask(ctx context.Context, doing string, args ...string) (string, error) {
	out, err := c.tool.run(ctx, false, doing, args...)
	if err == nil {
		return out, nil
	}
	if ctx.Err() != nil {
		return "", ended(ctx, doing)
	}
	if k := bmc.KindOf(err); k == bmc.KindUnreachable && !unsent(err) {
		if _, probe := c.tool.raw(ctx, false, doing, 0x06, 0x01); probe == nil {
			return out, nil
		}
	}
	return "", explain(doing, err)
}

// unsent says that no session was opened.
func unsent(err error) bool {
	var e *bmc.Error
	return errors.As(err, &e) && e.Unsent
}

// fields reads lines of "name : value"; of a repeated name the first counts.
func fields(out string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, ok := strings.Cut(line, ":")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if _, known := m[name]; ok && !known && value != "" {
			m[name] = value
		}
	}
	return m
}

// first is the first of some fields that says something.
func first(m map[string]string, names ...string) string {
	for _, n := range names {
		v := strings.Join(strings.Fields(m[n]), " ")
		switch strings.ToLower(v) {
		case "", "unknown", "n/a", "none", "not specified", "default string", "to be filled by o.e.m.", "to be filled by oem":
			continue
		}
		if strings.Trim(v, "0") != "" {
			return v
		}
	}
	return ""
}

// compare checks before a change that this is the recorded machine.
func (c *Client) compare(ctx context.Context) error {
	if c.target.Identity == nil {
		return nil
	}
	is, err := c.identity(ctx)
	if err != nil {
		return err
	}
	return bmc.CompareIdentity("compare the machine at "+c.tool.name(), c.target.Identity, is)
}

// Inventory reads what IPMI shows of the hardware, which is the board's names
// and the BMC's firmware; the rest is named as missing.
func (c *Client) Inventory(ctx context.Context) (fleet.Inventory, error) {
	id, err := c.identity(ctx)
	if err != nil {
		return fleet.Inventory{}, err
	}
	inv := fleet.Inventory{Vendor: id.Manufacturer, Model: id.Model, Serial: id.Serial, UUID: id.UUID}
	version, err := c.firmware(ctx)
	if err != nil {
		return inv, err
	}
	if version != "" {
		inv.Firmware = []fleet.Component{{Name: "BMC", Version: version}}
	}
	for _, m := range []struct{ name, value string }{{"vendor of the system", id.Manufacturer}, {"model of the system", id.Model}, {"serial of the system", id.Serial}, {"UUID of the system", id.UUID}} {
		if m.value == "" {
			inv.Missing = append(inv.Missing, m.name)
		}
	}
	for _, what := range []string{"processors", "memory", "disks", "network interfaces", "GPUs", "PCIe devices", "BIOS version", "BIOS attributes", "whether there is a TPM", "health of the system"} {
		inv.Missing = append(inv.Missing, what+": IPMI does not show it")
	}
	slices.Sort(inv.Missing)
	return inv, nil
}
