package redfish

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish/common"
	"github.com/stmcginnis/gofish/redfish"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// system is a ComputerSystem as it was read: gofish's type, and the links and
// members that it keeps to itself or cannot tell from absent ones.
type system struct {
	resource
	*redfish.ComputerSystem
	more systemMore
}

type systemMore struct {
	Actions struct {
		Reset *resetAction `json:"#ComputerSystem.Reset"`
	}
	Boot     json.RawMessage
	Settings struct {
		Object common.Link `json:"SettingsObject"`
	} `json:"@Redfish.Settings"`
	Bios, EthernetInterfaces, GraphicsControllers, LogServices, Memory, Processors, SimpleStorage, Storage, VirtualMedia, NetworkInterfaces common.Link
	PCIeDevices                                                                                                                             common.Links
	Links                                                                                                                                   struct {
		Chassis, ManagedBy common.Links
	}
	Oem            json.RawMessage
	LastResetTime  string
	MemorySummary  *struct{ TotalSystemMemoryGiB *float64 }
	TrustedModules []trustedModule
	BootProgress   struct{ LastState string }
}

type trustedModule struct {
	InterfaceType string
	Status        common.Status
}

type resetAction struct {
	Target     string
	Types      []string `json:"ResetType@Redfish.AllowableValues"`
	ActionInfo string   `json:"@Redfish.ActionInfo"`
}

func newSystem(r resource) (system, error) {
	s := system{resource: r}
	var err error
	if s.ComputerSystem, _, err = decode[redfish.ComputerSystem](r.raw); err != nil {
		return s, err
	}
	more, _, err := decode[systemMore](r.raw)
	if err != nil {
		return s, err
	}
	s.more = *more
	return s, nil
}

// candidate says whether the system can be a machine: one without a Reset
// action is a part of another, such as a GPU baseboard.
func (s system) candidate() bool {
	return s.more.Actions.Reset != nil && s.more.Actions.Reset.Target != ""
}

// id is the system's own id, else the end of its path.
func (s system) id() string {
	if s.ComputerSystem.ID != "" {
		return s.ComputerSystem.ID
	}
	return path.Base(s.path)
}

func (s system) identity() fleet.BMCIdentity {
	return fleet.BMCIdentity{Manufacturer: clean(s.Manufacturer), Model: clean(s.Model),
		Serial: cleanSerial(s.SerialNumber), UUID: strings.ToLower(clean(s.UUID))}
}

func (s system) power() bmc.PowerState {
	switch s.PowerState {
	case redfish.OnPowerState:
		return bmc.PowerOn
	case redfish.OffPowerState:
		return bmc.PowerOff
	case redfish.PoweringOnPowerState:
		return bmc.PoweringOn
	case redfish.PoweringOffPowerState:
		return bmc.PoweringOff
	default:
		return bmc.PowerUnknown
	}
}

// clean takes padding and the words for "nothing" out of a text.
func clean(s string) string {
	s = strings.Join(strings.Fields(strings.ReplaceAll(s, "\x00", " ")), " ")
	switch strings.ToLower(s) {
	case "null", "none", "n/a", "na", "not available", "not specified", "unknown", "undefined", "default string", "to be filled by o.e.m.", "to be filled by oem", "empty", "no asset tag":
		return ""
	}
	return s
}

// cleanSerial takes out serial numbers that makers leave in place of one.
func cleanSerial(s string) string {
	s = clean(s)
	if strings.Trim(s, "0") == "" || strings.HasPrefix("01234567890123456789", s) && len(s) > 6 ||
		strings.HasPrefix("1234567890123456789", s) && len(s) > 6 || strings.HasPrefix(s, "01234567890123456789") {
		return ""
	}
	switch strings.ToLower(s) {
	case "system serial number", "chassis serial number", "base board serial number", "serial number", "xxxxxxxxxx":
		return ""
	}
	return s
}

// findSystem reads the machine's ComputerSystem: the recorded or named one, or
// the only candidate. None or several are an error that names them; nothing
// was changed.
func (c *Client) findSystem(ctx context.Context) (system, error) {
	doing := "read the system of " + c.name()
	if c.system != "" {
		return c.readSystem(ctx, c.system, doing)
	}
	all, err := c.listSystems(ctx, doing)
	if err != nil {
		return system{}, err
	}
	var fit []system
	for _, s := range all {
		named := c.target.System == "" || trimSlash(s.path) == trimSlash(c.target.System)
		if s.candidate() && named {
			fit = append(fit, s)
		}
	}
	if len(fit) != 1 {
		return system{}, c.notOne(doing, all, len(fit))
	}
	c.system = fit[0].path
	return fit[0], nil
}

// readSystem reads a system that was found before. One that is gone means that
// what answers is not what was enrolled.
func (c *Client) readSystem(ctx context.Context, link, doing string) (system, error) {
	r, err := c.get(ctx, link, doing)
	if missing(err) {
		all, listErr := c.listSystems(ctx, doing)
		if listErr != nil {
			return system{}, listErr
		}
		return system{}, c.notOne(doing, all, 0)
	}
	if err != nil {
		return system{}, err
	}
	s, err := newSystem(r)
	if err != nil {
		return system{}, c.nonsense(doing, err)
	}
	return s, nil
}

func (c *Client) listSystems(ctx context.Context, doing string) ([]system, error) {
	if c.root.Systems == "" {
		return nil, &bmc.Error{Kind: bmc.KindUnsupported, Doing: doing, Cause: "the service has no systems", Remedy: "check that the address is a server's BMC"}
	}
	links, err := c.members(ctx, string(c.root.Systems), doing)
	if err != nil {
		return nil, err
	}
	var out []system
	for _, l := range links {
		r, err := c.get(ctx, l, doing)
		if missing(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		s, err := newSystem(r)
		if err != nil {
			return nil, c.nonsense(doing, err)
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b system) int { return strings.Compare(a.path, b.path) })
	return out, nil
}

// notOne is the error for no or several candidates.
func (c *Client) notOne(doing string, all []system, fit int) error {
	e := &bmc.Error{Kind: bmc.KindWrongMachine, Doing: doing}
	for _, s := range all {
		note := ""
		if !s.candidate() {
			note = " (part of a machine: it has no Reset action)"
		}
		e.Candidates = append(e.Candidates, fmt.Sprintf("%s %q serial %q%s", s.path, s.ComputerSystem.Name, clean(s.SerialNumber), note))
	}
	list := strings.Join(e.Candidates, ", ")
	if list == "" {
		list = "none"
	}
	switch {
	case fit > 1:
		e.Cause = fmt.Sprintf("the service has %d systems and the address names none of them: %s", fit, list)
	case c.target.System != "":
		e.Cause = fmt.Sprintf("no system is %s; the service has: %s", c.target.System, list)
	default:
		e.Cause = "no system of the service can be switched; it has: " + list
	}
	e.Remedy = "give the address with the path of the system, such as " + c.name() + "/redfish/v1/Systems/1"
	return e
}

// parts are the systems that are parts of the machine: those without a Reset
// action, when there is only one machine behind the BMC.
func (c *Client) parts(ctx context.Context) ([]system, error) {
	all, err := c.listSystems(ctx, "read the systems of "+c.name())
	if err != nil {
		return nil, err
	}
	var out []system
	candidates := 0
	for _, s := range all {
		if s.candidate() {
			candidates++
		} else {
			out = append(out, s)
		}
	}
	if candidates > 1 {
		return nil, nil
	}
	return out, nil
}

// mine reads the system and compares it with the recorded identity. It comes
// before every change.
func (c *Client) mine(ctx context.Context) (system, error) {
	s, err := c.findSystem(ctx)
	if err != nil {
		return s, err
	}
	return s, bmc.CompareIdentity("compare the machine at "+c.name()+s.path, c.target.Identity, s.identity())
}
