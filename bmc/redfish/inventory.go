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

// inventoryRun is one reading of a machine's hardware.
type inventoryRun struct {
	c   *Client
	inv fleet.Inventory
	// systems are the machine's own system and those that are parts of it.
	systems []system
	chassis []chassis
	// absent are the slots of drives that are said to be absent.
	absent []string
	// smartEmpty says that a vendor's own storage was looked into.
	smartEmpty string
}

// Inventory reads the hardware. What one resource does not give is named in
// Missing; an inventory fails only when the BMC itself does.
func (c *Client) Inventory(ctx context.Context) (fleet.Inventory, error) {
	r := &inventoryRun{c: c}
	s, err := c.mine(ctx)
	if err != nil {
		return r.inv, err
	}
	parts, err := c.parts(ctx)
	if err != nil {
		return r.inv, err
	}
	r.systems = append([]system{s}, parts...)
	if r.chassis, err = c.chassisOf(ctx, r.systems); err != nil {
		return r.inv, err
	}
	r.identity(s)
	for _, step := range []func(context.Context) error{r.processors, r.memory, r.storage, r.network, r.devices, r.firmware, r.bios} {
		if err := step(ctx); err != nil {
			return r.inv, err
		}
	}
	slices.Sort(r.inv.Missing)
	r.inv.Missing = slices.Compact(r.inv.Missing)
	return r.inv, nil
}

func (r *inventoryRun) missing(format string, args ...any) {
	r.inv.Missing = append(r.inv.Missing, fmt.Sprintf(format, args...))
}

func (r *inventoryRun) identity(s system) {
	id := s.identity()
	r.inv.Vendor, r.inv.Model, r.inv.Serial, r.inv.UUID = id.Manufacturer, id.Model, id.Serial, id.UUID
	for _, m := range []struct{ name, value string }{{"vendor", id.Manufacturer}, {"model", id.Model}, {"serial", id.Serial}, {"UUID", id.UUID}} {
		if m.value == "" {
			r.missing("%s of the system", m.name)
		}
	}
	for _, s := range r.systems {
		r.inv.Health = worse(r.inv.Health, string(s.Status.Health), string(s.Status.HealthRollup))
		for _, t := range s.more.TrustedModules {
			r.tpm(t)
		}
	}
	if r.inv.Health == "" {
		r.missing("health of the system")
	}
	if r.inv.TPM == nil {
		r.missing("whether there is a TPM")
	}
}

func (r *inventoryRun) tpm(t trustedModule) {
	present := t.Status.State != common.AbsentState
	if r.inv.TPM != nil && (r.inv.TPM.Present || !present) {
		return
	}
	v := strings.ReplaceAll(strings.TrimPrefix(t.InterfaceType, "TPM"), "_", ".")
	if !present {
		v = ""
	}
	r.inv.TPM = &fleet.TPM{Present: present, Version: v}
}

// worse is the worst of some health words, best first.
func worse(words ...string) string {
	order := []string{"", "OK", "Warning", "Critical"}
	worst := ""
	for _, w := range words {
		if slices.Index(order, w) > slices.Index(order, worst) {
			worst = w
		}
	}
	return worst
}

// optional judges an error at a part of the inventory: what the service does
// not give is named and left out, everything else ends the reading.
func (r *inventoryRun) optional(err error, what string) (skip bool, fatal error) {
	switch bmc.KindOf(err) {
	case bmc.KindUnsupported:
		r.missing("%s: the service names it but does not have it", what)
	case bmc.KindRefused, bmc.KindProtocol, bmc.KindWrongMachine:
		r.missing("%s: it could not be read", what)
	default:
		return err != nil, err
	}
	return true, nil
}

// each reads the members of a collection into gofish's type. Members that
// cannot be read are named and left out.
func each[T any](ctx context.Context, r *inventoryRun, link common.Link, what string, do func(resource, *T)) error {
	if link == "" {
		return nil
	}
	doing := "read the " + what + " of " + r.c.name()
	links, err := r.c.members(ctx, string(link), doing)
	if skip, fatal := r.optional(err, what); skip {
		return fatal
	}
	slices.Sort(links) // services give members in any order
	return eachLink(ctx, r, links, what, do)
}

func eachLink[T any](ctx context.Context, r *inventoryRun, links []string, what string, do func(resource, *T)) error {
	for _, l := range links {
		res, err := r.c.get(ctx, l, "read the "+what+" of "+r.c.name())
		if skip, fatal := r.optional(err, what+" "+l); fatal != nil {
			return fatal
		} else if skip {
			continue
		}
		v, dropped, err := decode[T](res.raw)
		if err != nil {
			r.missing("%s %s: it could not be read", what, l)
			continue
		}
		for _, d := range dropped {
			r.missing("%s %s: its %s could not be read", what, l, d)
		}
		do(res, v)
	}
	return nil
}

// chassis is a chassis of the machine.
type chassis struct {
	resource
	more chassisMore
}

type chassisMore struct {
	Drives, NetworkAdapters, PCIeDevices common.Link
	Links                                struct {
		ComputerSystems, Drives, PCIeDevices common.Links
	}
	Oem json.RawMessage
}

// chassisOf reads the chassis of the machine: those its systems name, and of
// the others those that name its systems, or none where there is one machine.
func (c *Client) chassisOf(ctx context.Context, systems []system) ([]chassis, error) {
	own := map[string]bool{}
	named := map[string]bool{}
	for _, s := range systems {
		own[trimSlash(s.path)] = true
		for _, l := range s.more.Links.Chassis {
			named[trimSlash(string(l))] = true
		}
	}
	doing := "read the chassis of " + c.name()
	var links []string
	if c.root.Chassis != "" {
		all, err := c.members(ctx, string(c.root.Chassis), doing)
		if err != nil && !missing(err) {
			return nil, err
		}
		links = all
	}
	alone, err := c.alone(ctx)
	if err != nil {
		return nil, err
	}
	var out []chassis
	for _, l := range links {
		r, err := c.get(ctx, l, doing)
		if missing(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		more, _, err := decode[chassisMore](r.raw)
		if err != nil {
			return nil, c.nonsense(doing, err)
		}
		ours := named[trimSlash(r.path)] || alone && len(more.Links.ComputerSystems) == 0
		for _, s := range more.Links.ComputerSystems {
			ours = ours || own[trimSlash(string(s))]
		}
		if ours {
			out = append(out, chassis{r, *more})
		}
	}
	return out, nil
}

// alone says whether the machine is the only one behind its BMC.
func (c *Client) alone(ctx context.Context) (bool, error) {
	all, err := c.listSystems(ctx, "read the systems of "+c.name())
	n := 0
	for _, s := range all {
		if s.candidate() {
			n++
		}
	}
	return n <= 1, err
}

// slotName is where a part sits, as printed on the board where that is known.
func slotName(l location, other ...string) string {
	return firstOf(append([]string{l.PartLocation.ServiceLabel}, other...)...)
}

// within is a slot with the module that holds it, where modules repeat labels.
func (l location) within(slot string) string {
	return strings.TrimSpace(path.Base("/"+l.PartLocationContext) + " " + slot)
}

func firstOf(texts ...string) string {
	for _, s := range texts {
		if s = clean(s); s != "" {
			return s
		}
	}
	return ""
}

// location is the place of a part, read leniently.
type location struct {
	PartLocation        struct{ ServiceLabel string }
	PartLocationContext string
}

func (r *inventoryRun) processors(ctx context.Context) error {
	for _, s := range r.systems {
		err := each(ctx, r, s.more.Processors, "processors", func(res resource, p *redfish.Processor) {
			if p.Status.State == common.AbsentState {
				return
			}
			var more struct{ Location location }
			_ = json.Unmarshal(res.raw, &more) // a location of another shape names no slot
			slot := slotName(more.Location, p.Socket, p.ID)
			if more.Location.PartLocationContext != "" {
				slot = more.Location.within(slot)
			}
			r.processor(p, slot, s.processorArch())
		})
		if err != nil {
			return err
		}
	}
	slices.SortStableFunc(r.inv.CPUs, func(a, b fleet.CPU) int { return strings.Compare(a.Slot, b.Slot) })
	if len(r.inv.CPUs) == 0 {
		r.missing("processors: the service shows none")
	}
	return nil
}

func (r *inventoryRun) processor(p *redfish.Processor, slot, systemArch string) {
	dev := fleet.Device{Vendor: clean(p.Manufacturer), Model: clean(p.Model), Serial: cleanSerial(p.SerialNumber),
		Slot: slot, Health: string(p.Status.Health)}
	if u, ok := fleet.ProvingUUID(p.UUID); ok {
		dev.UUID = u
	}
	switch p.ProcessorType {
	case redfish.GPUProcessorType:
		dev.Kind = "gpu"
		r.inv.GPUs = append(r.inv.GPUs, dev)
	case redfish.CPUProcessorType, "":
		cpu := fleet.CPU{Model: dev.Model, Slot: slot, Cores: p.TotalCores, Threads: p.TotalThreads, Arch: firstOf(arch(p), systemArch)}
		r.inv.CPUs = append(r.inv.CPUs, cpu)
		if cpu.Model == "" {
			r.missing("model of processor %s", slot)
		}
	default:
		dev.Kind = strings.ToLower(string(p.ProcessorType))
		r.inv.PCIDevices = append(r.inv.PCIDevices, dev)
	}
}

func arch(p *redfish.Processor) string {
	switch set := string(p.InstructionSet); {
	case set == "x86-64":
		return "x86_64"
	case strings.HasPrefix(set, "ARM-A64"):
		return "arm64"
	case p.ProcessorArchitecture == redfish.ARMProcessorArchitecture:
		return "arm64"
	default:
		return ""
	}
}

// processorArch is what the summary of the processors says of their kind.
func (s system) processorArch() string {
	if strings.HasPrefix(s.ProcessorSummary.Model, "ARMv") {
		return "arm64"
	}
	return ""
}

func (r *inventoryRun) memory(ctx context.Context) error {
	var summary, sum int64
	for _, s := range r.systems {
		if m := s.more.MemorySummary; m != nil && m.TotalSystemMemoryGiB != nil {
			summary += int64(*m.TotalSystemMemoryGiB * 1024)
		}
		err := each(ctx, r, s.more.Memory, "memory", func(res resource, m *redfish.Memory) {
			var more struct{ Location location }
			_ = json.Unmarshal(res.raw, &more) // as in processors
			if m.Status.State == common.AbsentState || m.CapacityMiB <= 0 || strings.HasPrefix(string(m.MemoryDeviceType), "HBM") {
				return // an empty slot, or a GPU's own memory
			}
			sum += int64(m.CapacityMiB)
			slot := slotName(more.Location, m.DeviceLocator, m.ID)
			if more.Location.PartLocationContext != "" {
				slot = more.Location.within(slot)
			}
			r.inv.DIMMs = append(r.inv.DIMMs, fleet.DIMM{Slot: slot, SizeMiB: int64(m.CapacityMiB),
				Type: string(m.MemoryDeviceType), Serial: cleanSerial(m.SerialNumber), Part: clean(m.PartNumber)})
		})
		if err != nil {
			return err
		}
	}
	slices.SortStableFunc(r.inv.DIMMs, func(a, b fleet.DIMM) int { return strings.Compare(a.Slot, b.Slot) })
	// The modules are exact, the summary is rounded; where modules are not all
	// shown the summary is more.
	const rounding = 1024
	r.inv.MemoryMiB = sum
	if summary > sum+rounding {
		r.inv.MemoryMiB = summary
	}
	if r.inv.MemoryMiB == 0 {
		r.missing("size of memory")
	}
	if len(r.inv.DIMMs) == 0 {
		r.missing("memory modules: the service shows none")
	}
	return nil
}
