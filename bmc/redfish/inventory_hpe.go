package redfish

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/stmcginnis/gofish/common"

	"github.com/bettercompute/compute/fleet"
)

// hpeLinks are the links of HPE's own that iLO 5 puts beside the standard ones
// (schema HpeComputerSystemExt, HpeServerChassis).
type hpeLinks struct {
	Hpe struct {
		Links struct{ SmartStorage, Devices common.Link }
	}
}

func hpeLinksOf(oem json.RawMessage) hpeLinks {
	var l hpeLinks
	_ = json.Unmarshal(oem, &l) // another maker's members
	return l
}

// smartStorage reads the drives of HPE Smart Array controllers, which iLO 5
// does not show as Storage.
func (r *inventoryRun) smartStorage(ctx context.Context) error {
	for _, s := range r.systems {
		link := hpeLinksOf(s.more.Oem).Hpe.Links.SmartStorage
		if link == "" {
			continue
		}
		res, err := r.c.get(ctx, string(link), "read the smart storage of "+r.c.name())
		if skip, fatal := r.optional(err, "smart storage"); fatal != nil {
			return fatal
		} else if skip {
			continue
		}
		r.smartEmpty = ", neither under Storage nor in HPE's SmartStorage"
		var st struct {
			Links struct{ ArrayControllers, HostBusAdapters common.Link }
		}
		_ = json.Unmarshal(res.raw, &st) // without links there is nothing to read
		for _, l := range []common.Link{st.Links.ArrayControllers, st.Links.HostBusAdapters} {
			if err := r.smartControllers(ctx, l); err != nil {
				return err
			}
		}
	}
	return nil
}

// smartDrive is HpeSmartStorageDiskDrive.
type smartDrive struct {
	SerialNumber, Model, MediaType, InterfaceType, Location string
	CapacityMiB                                             int64
	Status                                                  common.Status
}

func (r *inventoryRun) smartControllers(ctx context.Context, link common.Link) error {
	var drives []common.Link
	type controller struct {
		Links struct{ PhysicalDrives, UnconfiguredDrives common.Link }
	}
	err := each(ctx, r, link, "smart storage controllers", func(_ resource, c *controller) {
		drives = append(drives, c.Links.PhysicalDrives, c.Links.UnconfiguredDrives)
	})
	if err != nil {
		return err
	}
	for _, l := range drives {
		err := each(ctx, r, l, "smart storage drives", func(res resource, d *smartDrive) {
			kind := strings.ToLower(d.MediaType)
			if strings.HasPrefix(strings.ToUpper(d.InterfaceType), "NVME") || strings.HasPrefix(strings.ToUpper(d.InterfaceType), "PCIE") {
				kind = "nvme"
			}
			r.addDisk(fleet.Disk{Serial: cleanSerial(d.SerialNumber), Model: clean(d.Model), SizeBytes: d.CapacityMiB << 20, Type: kind,
				Slot: clean(d.Location), Path: res.path, Health: string(d.Status.Health)})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// hpeDevice is HpeServerDevice.
type hpeDevice struct {
	DeviceType, Name, Manufacturer, SerialNumber, Location string
	Status                                                 common.Status
}

// hpeDevices reads the slots of the chassis, where iLO 5 shows GPUs that it
// shows nowhere else.
func (r *inventoryRun) hpeDevices(ctx context.Context) error {
	for _, ch := range r.chassis {
		err := each(ctx, r, hpeLinksOf(ch.more.Oem).Hpe.Links.Devices, "devices", func(_ resource, d *hpeDevice) {
			if d.Status.State == common.AbsentState || strings.HasPrefix(d.Name, "Empty slot") {
				return
			}
			dev := fleet.Device{Vendor: clean(d.Manufacturer), Model: clean(d.Name), Serial: cleanSerial(d.SerialNumber),
				Slot: clean(d.Location), Health: string(d.Status.Health)}
			switch d.DeviceType {
			case "GPU":
				dev.Kind = "gpu"
			case "LOM/NIC", "Converged Network Adapter":
				dev.Kind = "nic"
			case "Unknown", "":
			default:
				dev.Kind = strings.ToLower(d.DeviceType)
			}
			r.addDevice(dev)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
