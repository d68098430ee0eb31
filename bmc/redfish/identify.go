package redfish

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish/common"
	"github.com/stmcginnis/gofish/redfish"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// Identify reads who the machine is and what its BMC can do.
func (c *Client) Identify(ctx context.Context) (bmc.Found, error) {
	s, err := c.findSystem(ctx)
	if err != nil {
		return bmc.Found{}, err
	}
	f := bmc.Found{Identity: s.identity(), System: s.path, Power: s.power()}
	managers, err := c.managers(ctx, s)
	if err != nil {
		return bmc.Found{}, err
	}
	firmware := ""
	for _, m := range managers {
		firmware = firstOf(firmware, clean(m.FirmwareVersion))
	}
	f.Capabilities, err = c.capabilities(ctx, s)
	if err != nil {
		return bmc.Found{}, err
	}
	f.Capabilities.FirmwareVersion = firmware
	f.MachineKey, err = c.machineKey(ctx, s, managers)
	if err != nil {
		return bmc.Found{}, err
	}
	f.Quirks = slices.Clone(c.quirks)
	return f, nil
}

func (c *Client) capabilities(ctx context.Context, s system) (fleet.Capabilities, error) {
	caps := fleet.Capabilities{Driver: "redfish", RedfishVersion: c.root.RedfishVersion}
	types, _, err := c.resetTypes(ctx, s)
	if err != nil {
		return caps, err
	}
	caps.ResetTypes = types
	home, err := c.bootHome(ctx, s)
	switch {
	case missing(err):
	case err != nil:
		return caps, err
	default:
		caps.BootOverride = true
		caps.BootTargets = home.boot.Targets
		caps.BootMode = home.boot.mode()
		caps.HTTPBoot = home.boot.HTTPURI != nil && slices.Contains(home.boot.Targets, targetNames[bmc.BootHTTP][0])
	}
	slots, err := c.slots(ctx, s)
	if err != nil && !missing(err) {
		return caps, err
	}
	caps.VirtualMedia = len(slots) > 0
	drives, err := c.drives(ctx, s)
	if err != nil {
		return caps, err
	}
	caps.SecureErase = slices.ContainsFunc(drives, func(d drive) bool { return d.eraseTarget() != "" })
	caps.SetPassword = c.root.AccountService != ""
	return caps, nil
}

// manager is a manager of the machine.
type manager struct {
	resource
	*redfish.Manager
	more managerMore
}

type managerMore struct {
	VirtualMedia, LogServices common.Link
	Links                     struct{ ManagerForServers common.Links }
}

// managers reads the machine's managers: those that the system names; where it
// names none, those that name it; else the only one, or the only BMC.
func (c *Client) managers(ctx context.Context, s system) ([]manager, error) {
	doing := "read the managers of " + c.name()
	links := s.more.Links.ManagedBy.ToStrings()
	named := len(links) > 0
	if !named && c.root.Managers != "" {
		all, err := c.members(ctx, string(c.root.Managers), doing)
		if err != nil && !missing(err) {
			return nil, err
		}
		links = all
	}
	slices.Sort(links)
	var out []manager
	for _, l := range slices.Compact(links) {
		r, err := c.get(ctx, l, doing)
		if missing(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		m := manager{resource: r}
		if m.Manager, _, err = decode[redfish.Manager](r.raw); err != nil {
			return nil, c.nonsense(doing, err)
		}
		// Links of another shape are no links.
		_ = json.Unmarshal(r.raw, &m.more)
		out = append(out, m)
	}
	if named {
		return out, nil
	}
	return chooseManagers(out, s), nil
}

func chooseManagers(all []manager, s system) []manager {
	keep := func(fits func(manager) bool) []manager {
		return slices.DeleteFunc(slices.Clone(all), func(m manager) bool { return !fits(m) })
	}
	ours := keep(func(m manager) bool {
		return slices.ContainsFunc(m.more.Links.ManagerForServers, func(l common.Link) bool { return trimSlash(string(l)) == trimSlash(s.path) })
	})
	switch {
	case len(ours) > 0:
		return ours
	case len(all) == 1:
		return all
	}
	if main := keep(func(m manager) bool { return m.ManagerType != redfish.AuxiliaryControllerManagerType }); len(main) == 1 {
		return main
	}
	return nil
}

// machineKey identifies the hardware. A MAC is preferred to the certificate:
// makers have shipped one certificate with many BMCs.
func (c *Client) machineKey(ctx context.Context, s system, managers []manager) (string, error) {
	if u, ok := fleet.ProvingUUID(s.ComputerSystem.UUID); ok {
		return "uuid:" + min(u, fleet.SwapUUID(u)), nil
	}
	for _, m := range managers {
		if u, ok := fleet.ProvingUUID(m.UUID); ok {
			return "manager:" + u + "/" + s.id(), nil
		}
	}
	if u, ok := fleet.ProvingUUID(c.root.UUID); ok {
		return "manager:" + u + "/" + s.id(), nil
	}
	nics, err := c.nics(ctx, s)
	if err != nil {
		return "", err
	}
	var macs []string
	for _, n := range nics {
		if n.MAC != "" {
			macs = append(macs, strings.ToLower(n.MAC))
		}
	}
	if len(macs) > 0 {
		return "mac:" + slices.Min(macs) + "/" + s.id(), nil
	}
	if c.dialer.leaf != "" {
		return "cert:" + strings.TrimPrefix(c.dialer.leaf, "sha256:") + "/" + s.id(), nil
	}
	return "", nil
}
