package redfish

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish/common"
	"github.com/stmcginnis/gofish/redfish"

	"github.com/bettercompute/compute/fleet"
)

// pcieMore is what gofish's PCIeDevice keeps to itself.
type pcieMore struct {
	UUID          string
	Slot          struct{ Location location }
	PCIeFunctions common.Link
	Links         struct{ PCIeFunctions common.Links }
}

// devices reads the PCIe devices of systems and chassis, and a vendor's own
// collection of devices. A GPU that is no processor is found among them.
func (r *inventoryRun) devices(ctx context.Context) error {
	links, err := r.deviceLinks(ctx)
	if err != nil {
		return err
	}
	type found struct {
		dev  fleet.Device
		more pcieMore
	}
	var list []found
	err = eachLink(ctx, r, links, "PCIe devices", func(res resource, d *redfish.PCIeDevice) {
		if d.Status.State == common.AbsentState {
			return
		}
		f := found{dev: fleet.Device{Vendor: clean(d.Manufacturer), Model: clean(d.Model), Serial: cleanSerial(d.SerialNumber), Health: string(d.Status.Health)}}
		if more, _, err := decode[pcieMore](res.raw); err == nil {
			f.more = *more
		}
		if f.dev.Model == "" {
			f.dev.Model = clean(d.Name)
		}
		f.dev.Slot = slotName(f.more.Slot.Location, d.ID)
		if u, ok := fleet.ProvingUUID(f.more.UUID); ok {
			f.dev.UUID = u
		}
		list = append(list, f)
	})
	if err != nil {
		return err
	}
	for _, f := range list {
		if err := r.functions(ctx, &f.dev, f.more); err != nil {
			return err
		}
		r.addDevice(f.dev)
	}
	if err := r.hpeDevices(ctx); err != nil {
		return err
	}
	if err := r.graphics(ctx); err != nil {
		return err
	}
	r.sortDevices()
	return nil
}

// graphics reads graphics controllers. One of a maker of GPUs that compute is
// such a GPU; others are named as what they are.
func (r *inventoryRun) graphics(ctx context.Context) error {
	for _, s := range r.systems {
		err := each(ctx, r, s.more.GraphicsControllers, "graphics controllers", func(res resource, g *redfish.GraphicsController) {
			if g.Status.State == common.AbsentState {
				return
			}
			var more struct{ Location location }
			_ = json.Unmarshal(res.raw, &more) // as in processors
			d := fleet.Device{Vendor: clean(g.Manufacturer), Model: clean(g.Model), Serial: cleanSerial(g.SerialNumber),
				Slot: slotName(more.Location, g.ID), Health: string(g.Status.Health)}
			if !looksLikeGPU(d) {
				d.Kind = "graphics"
			}
			r.addDevice(d)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *inventoryRun) sortDevices() {
	bySlot := func(a, b fleet.Device) int { return strings.Compare(a.Slot, b.Slot) }
	slices.SortStableFunc(r.inv.GPUs, bySlot)
	slices.SortStableFunc(r.inv.PCIDevices, bySlot)
}

func (r *inventoryRun) deviceLinks(ctx context.Context) ([]string, error) {
	var links []string
	for _, s := range r.systems {
		links = append(links, s.more.PCIeDevices.ToStrings()...)
	}
	for _, ch := range r.chassis {
		links = append(links, ch.more.Links.PCIeDevices.ToStrings()...)
		if ch.more.PCIeDevices == "" {
			continue
		}
		more, err := r.c.members(ctx, string(ch.more.PCIeDevices), "read the PCIe devices of "+r.c.name())
		if skip, fatal := r.optional(err, "PCIe devices of "+ch.path); fatal != nil {
			return nil, fatal
		} else if !skip {
			links = append(links, more...)
		}
	}
	var out []string
	for _, l := range links {
		if l = trimSlash(l); l != "" && !slices.Contains(out, l) {
			out = append(out, l)
		}
	}
	return out, nil
}

// functions adds from a device's functions what it is and where on the bus.
func (r *inventoryRun) functions(ctx context.Context, dev *fleet.Device, more pcieMore) error {
	take := func(res resource, f *redfish.PCIeFunction) {
		if dev.Kind == "" {
			dev.Kind = kindOfClassCode(f)
		}
		var at struct{ SegmentNumber, BusNumber, DeviceNumber, FunctionNumber *int }
		if json.Unmarshal(res.raw, &at) == nil && at.BusNumber != nil && at.DeviceNumber != nil && dev.PCIAddress == "" {
			seg, fn := 0, 0
			if at.SegmentNumber != nil {
				seg = *at.SegmentNumber
			}
			if at.FunctionNumber != nil {
				fn = *at.FunctionNumber
			}
			dev.PCIAddress = fmt.Sprintf("%04x:%02x:%02x.%x", seg, *at.BusNumber, *at.DeviceNumber, fn)
		}
	}
	if len(more.Links.PCIeFunctions) > 0 {
		return eachLink(ctx, r, more.Links.PCIeFunctions.ToStrings(), "PCIe functions", take)
	}
	return each(ctx, r, more.PCIeFunctions, "PCIe functions", take)
}

// The makers of GPUs that compute; display controllers of others are the BMC's
// own video.
var gpuVendors = []string{"0x10de", "0x1002"}

func kindOfClassCode(f *redfish.PCIeFunction) string {
	code := strings.ToLower(f.ClassCode)
	vendor := strings.ToLower(f.VendorID)
	switch {
	case (strings.HasPrefix(code, "0x03") || f.DeviceClass == redfish.DisplayControllerDeviceClass) && slices.Contains(gpuVendors, vendor):
		return "gpu"
	case f.DeviceClass == redfish.ProcessingAcceleratorsDeviceClass, strings.HasPrefix(code, "0x12"):
		if slices.Contains(gpuVendors, vendor) {
			return "gpu"
		}
		return "accelerator"
	case f.DeviceClass == redfish.NetworkControllerDeviceClass, strings.HasPrefix(code, "0x02"):
		return "nic"
	case f.DeviceClass == redfish.MassStorageControllerDeviceClass, strings.HasPrefix(code, "0x01"):
		return "storage"
	default:
		return ""
	}
}

// looksLikeGPU judges by maker and model where no function says what a device
// is.
func looksLikeGPU(d fleet.Device) bool {
	if d.Kind != "" {
		return d.Kind == "gpu"
	}
	name := strings.ToLower(d.Vendor + " " + d.Model)
	if !strings.Contains(name, "nvidia") && !strings.Contains(name, "instinct") {
		return false
	}
	for _, other := range []string{"connectx", "bluefield", "mellanox", "nvswitch", "nic", "retimer", "infiniband"} {
		if strings.Contains(name, other) {
			return false
		}
	}
	return true
}

// sameDevice tells a device from others by what identifies it best.
func sameDevice(d fleet.Device) func(fleet.Device) bool {
	return func(o fleet.Device) bool {
		switch {
		case d.UUID != "" && o.UUID != "":
			return d.UUID == o.UUID
		case d.Serial != "" || o.Serial != "":
			return d.Serial == o.Serial
		default:
			return d.PCIAddress == o.PCIAddress && d.Model == o.Model && (d.PCIAddress != "" || d.Kind == o.Kind && d.Kind != "gpu")
		}
	}
}

// addDevice adds a PCIe device, or the GPU that it is. What was counted before,
// as a processor or on another path, is one thing.
func (r *inventoryRun) addDevice(d fleet.Device) {
	if i := slices.IndexFunc(r.inv.GPUs, sameDevice(d)); i >= 0 {
		if r.inv.GPUs[i].PCIAddress == "" {
			r.inv.GPUs[i].PCIAddress = d.PCIAddress
		}
		return
	}
	if !looksLikeGPU(d) {
		if !slices.ContainsFunc(r.inv.PCIDevices, sameDevice(d)) {
			r.inv.PCIDevices = append(r.inv.PCIDevices, d)
		}
		return
	}
	if d.UUID == "" && d.Serial == "" && len(r.inv.GPUs) > 0 && r.inv.GPUs[0].PCIAddress == "" {
		return // nothing tells it from a GPU that was counted as a processor
	}
	d.Kind = "gpu"
	r.inv.GPUs = append(r.inv.GPUs, d)
}

// firmware reads the firmware inventory, and without one what the resources
// themselves say.
func (r *inventoryRun) firmware(ctx context.Context) error {
	c := r.c
	if c.root.UpdateService != "" {
		res, err := c.get(ctx, string(c.root.UpdateService), "read the firmware of "+c.name())
		if skip, fatal := r.optional(err, "firmware"); fatal != nil {
			return fatal
		} else if !skip {
			var svc struct{ FirmwareInventory common.Link }
			_ = json.Unmarshal(res.raw, &svc) // a service without the link has no inventory
			err := each(ctx, r, svc.FirmwareInventory, "firmware", func(_ resource, s *redfish.SoftwareInventory) {
				if s.Status.State == common.AbsentState {
					return
				}
				name := clean(s.Name)
				if generic := strings.ToLower(name); name == "" || generic == "software inventory" || generic == "firmware inventory" {
					name = s.ID
				}
				r.inv.Firmware = append(r.inv.Firmware, fleet.Component{Name: name, Version: clean(s.Version)})
			})
			if err != nil {
				return err
			}
		}
	}
	managers, err := c.managers(ctx, r.systems[0])
	if err != nil {
		return err
	}
	for _, m := range managers {
		v := clean(m.FirmwareVersion)
		if v != "" && !slices.ContainsFunc(r.inv.Firmware, func(f fleet.Component) bool { return f.Version == v }) {
			r.inv.Firmware = append(r.inv.Firmware, fleet.Component{Name: "BMC " + m.Manager.ID, Version: v})
		}
	}
	slices.SortStableFunc(r.inv.Firmware, func(a, b fleet.Component) int { return strings.Compare(a.Name, b.Name) })
	if len(r.inv.Firmware) == 0 {
		r.missing("firmware: the service shows none")
	}
	return nil
}

// bios reads the BIOS version and its attributes.
func (r *inventoryRun) bios(ctx context.Context) error {
	s := r.systems[0]
	r.inv.BIOSVersion = clean(s.BIOSVersion)
	if r.inv.BIOSVersion == "" {
		r.missing("BIOS version")
	}
	if s.more.Bios == "" {
		r.missing("BIOS attributes")
		return nil
	}
	res, err := r.c.get(ctx, string(s.more.Bios), "read the BIOS of "+r.c.name())
	if skip, fatal := r.optional(err, "BIOS attributes"); skip {
		return fatal
	}
	var b struct{ Attributes map[string]any }
	if json.Unmarshal(res.raw, &b) != nil || len(b.Attributes) == 0 {
		r.missing("BIOS attributes")
		//lint:ignore nilerr what cannot be read is missing
		return nil
	}
	r.inv.BIOSAttributes = map[string]string{}
	for k, v := range b.Attributes {
		if v != nil {
			r.inv.BIOSAttributes[k] = fmt.Sprint(v)
		}
	}
	return nil
}
