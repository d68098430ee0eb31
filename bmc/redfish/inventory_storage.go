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

// drive is a drive as it was read.
type drive struct {
	resource
	*redfish.Drive
	more driveMore
}

type driveMore struct {
	Actions struct {
		Erase *struct {
			Target     string
			ActionInfo string `json:"@Redfish.ActionInfo"`
		} `json:"#Drive.SecureErase"`
	}
	PhysicalLocation location
	// Location is the older form, a list.
	Location   []struct{ Info string }
	Operations []struct {
		OperationName      string
		PercentageComplete *float64
	}
	Links struct{ Volumes common.Links }
}

func (d drive) eraseTarget() string {
	if d.more.Actions.Erase == nil {
		return ""
	}
	return d.more.Actions.Erase.Target
}

func (d drive) kind() string {
	switch {
	case strings.HasPrefix(string(d.Protocol), "NVMe"):
		return "nvme"
	case d.MediaType == redfish.SSDMediaType:
		return "ssd"
	case d.MediaType == redfish.HDDMediaType, d.MediaType == "SMR":
		return "hdd"
	default:
		return ""
	}
}

func (d drive) slot() string {
	other := []string{}
	for _, l := range d.more.Location {
		other = append(other, l.Info)
	}
	name := d.Drive.Name
	if clean(name) == clean(d.Model) {
		name = d.Drive.ID
	}
	return slotName(d.more.PhysicalLocation, append(other, name)...)
}

func readDrive(r resource) (drive, error) {
	d := drive{resource: r}
	var err error
	if d.Drive, _, err = decode[redfish.Drive](r.raw); err != nil {
		return d, err
	}
	more, _, err := decode[driveMore](r.raw)
	if err == nil {
		d.more = *more
	}
	return d, err
}

// drives reads the drives of the system's storage that are there.
func (c *Client) drives(ctx context.Context, s system) ([]drive, error) {
	links, err := c.driveLinks(ctx, s)
	if err != nil {
		return nil, err
	}
	var out []drive
	for _, l := range links {
		r, err := c.get(ctx, l, "read the drives of "+c.name())
		if missing(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		d, err := readDrive(r)
		if err != nil || d.Status.State == common.AbsentState {
			continue // named as unread by the inventory
		}
		out = append(out, d)
	}
	return out, nil
}

func (c *Client) driveLinks(ctx context.Context, s system) ([]string, error) {
	if s.more.Storage == "" {
		return nil, nil
	}
	doing := "read the storage of " + c.name()
	units, err := c.members(ctx, string(s.more.Storage), doing)
	if missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, u := range units {
		r, err := c.get(ctx, u, doing)
		if missing(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var st struct{ Drives common.Links }
		_ = json.Unmarshal(r.raw, &st) // a unit of another shape has no drives
		for _, l := range st.Drives {
			if p := trimSlash(string(l)); p != "" && !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out, nil
}

// storage reads the disks: those of Storage, of the chassis, of a vendor's own
// collection, and where there is none of them the devices of SimpleStorage.
func (r *inventoryRun) storage(ctx context.Context) error {
	for _, s := range r.systems {
		links, err := r.c.driveLinks(ctx, s)
		if skip, fatal := r.optional(err, "storage"); fatal != nil {
			return fatal
		} else if skip {
			continue
		}
		if err := r.disks(ctx, links); err != nil {
			return err
		}
	}
	for _, ch := range r.chassis {
		if err := r.chassisDisks(ctx, ch); err != nil {
			return err
		}
	}
	if err := r.smartStorage(ctx); err != nil {
		return err
	}
	if len(r.inv.Disks) == 0 {
		if err := r.simpleStorage(ctx); err != nil {
			return err
		}
	}
	slices.SortStableFunc(r.inv.Disks, func(a, b fleet.Disk) int { return strings.Compare(a.Slot, b.Slot) })
	r.missingOfDisks()
	return nil
}

func (r *inventoryRun) missingOfDisks() {
	if len(r.inv.Disks) == 0 {
		r.missing("disks: the service shows none%s", r.smartEmpty)
	}
	for _, slot := range r.absent {
		if !slices.ContainsFunc(r.inv.Disks, func(d fleet.Disk) bool { return d.Slot == slot }) {
			r.missing("disk in %s: the service says that it is absent", slot)
		}
	}
	for _, d := range r.inv.Disks {
		for _, m := range []struct {
			name string
			none bool
		}{{"serial", d.Serial == ""}, {"model", d.Model == ""}, {"size", d.SizeBytes == 0}, {"type", d.Type == ""}} {
			if m.none {
				r.missing("%s of disk %s", m.name, d.Slot)
			}
		}
	}
}

func (r *inventoryRun) disks(ctx context.Context, links []string) error {
	return eachLink(ctx, r, links, "disks", func(res resource, _ *redfish.Drive) {
		d, err := readDrive(res)
		if err != nil {
			return
		}
		if d.Status.State == common.AbsentState {
			r.absent = append(r.absent, d.slot())
			return
		}
		r.addDisk(fleet.Disk{Serial: cleanSerial(d.SerialNumber), Model: clean(d.Model), SizeBytes: d.CapacityBytes,
			Type: d.kind(), Slot: d.slot(), Path: res.path, Health: string(d.Status.Health)})
	})
}

// addDisk adds a disk unless the same one was found on another path.
func (r *inventoryRun) addDisk(d fleet.Disk) {
	same := func(o fleet.Disk) bool {
		return d.Serial != "" && o.Serial == d.Serial || d.Serial == "" && o.Path == d.Path && o.Slot == d.Slot
	}
	if !slices.ContainsFunc(r.inv.Disks, same) {
		r.inv.Disks = append(r.inv.Disks, d)
	}
}

// chassisDisks adds drives that only a chassis names.
func (r *inventoryRun) chassisDisks(ctx context.Context, ch chassis) error {
	links := ch.more.Links.Drives.ToStrings()
	if ch.more.Drives != "" {
		more, err := r.c.members(ctx, string(ch.more.Drives), "read the drives of "+r.c.name())
		if skip, fatal := r.optional(err, "drives of chassis "+ch.path); fatal != nil {
			return fatal
		} else if !skip {
			links = append(links, more...)
		}
	}
	links = slices.DeleteFunc(links, func(l string) bool {
		return l == "" || slices.ContainsFunc(r.inv.Disks, func(d fleet.Disk) bool { return d.Path == trimSlash(l) })
	})
	return r.disks(ctx, links)
}

// simpleStorage reads disks that a service describes without serials.
func (r *inventoryRun) simpleStorage(ctx context.Context) error {
	for _, s := range r.systems {
		err := each(ctx, r, s.more.SimpleStorage, "simple storage", func(res resource, st *redfish.SimpleStorage) {
			for i, d := range st.Devices {
				if d.Status.State == common.AbsentState {
					continue
				}
				r.addDisk(fleet.Disk{Model: clean(d.Model), SizeBytes: d.CapacityBytes, Slot: clean(d.Name),
					Path: fmt.Sprintf("%s#/Devices/%d", res.path, i), Health: string(d.Status.Health)})
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}
