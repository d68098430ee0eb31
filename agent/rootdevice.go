package agent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/bettercompute/compute/fleet"
)

// minRootBytes is the least that a disk without a hint must have: below it is a
// boot stick or a controller's service disk.
const minRootBytes = 8 << 30

const gib = 1 << 30

// ChooseRootDevice is the disk that an image of need bytes is installed to.
// Without a hint it is the smallest fixed disk that holds the image and has 8
// GiB or more, then the one with the lowest serial. A hint must fit exactly one
// disk that holds the image; else the error names the disks.
func ChooseRootDevice(disks []fleet.Disk, need int64, hint *RootDevice) (fleet.Disk, error) {
	var fixed []fleet.Disk
	for _, d := range disks {
		if !d.Removable && d.SizeBytes > 0 {
			fixed = append(fixed, d)
		}
	}
	if len(fixed) == 0 {
		return fleet.Disk{}, errors.New("the machine has no fixed disk that answers")
	}
	if hint != nil && *hint != (RootDevice{}) {
		return hinted(fixed, need, *hint)
	}
	fits := slices.DeleteFunc(slices.Clone(fixed), func(d fleet.Disk) bool { return d.SizeBytes < max(need, minRootBytes) })
	if len(fits) == 0 {
		return fleet.Disk{}, fmt.Errorf("no fixed disk holds the image of %d bytes and has 8 GiB or more; there are: %s", need, nameDisks(fixed))
	}
	return slices.MinFunc(fits, func(a, b fleet.Disk) int {
		return cmp.Or(cmp.Compare(a.SizeBytes, b.SizeBytes), cmp.Compare(a.Serial, b.Serial), cmp.Compare(a.Path, b.Path))
	}), nil
}

func hinted(fixed []fleet.Disk, need int64, hint RootDevice) (fleet.Disk, error) {
	fits := slices.DeleteFunc(slices.Clone(fixed), func(d fleet.Disk) bool { return !hint.fits(d) })
	switch {
	case len(fits) == 0:
		return fleet.Disk{}, fmt.Errorf("no disk fits rootDevice (%s); there are: %s", hint, nameDisks(fixed))
	case len(fits) > 1:
		return fleet.Disk{}, fmt.Errorf("%d disks fit rootDevice (%s), name one by its serial: %s", len(fits), hint, nameDisks(fits))
	case fits[0].SizeBytes < need:
		return fleet.Disk{}, fmt.Errorf("the disk that fits rootDevice (%s) is too small for the image of %d bytes: %s", hint, need, nameDisks(fits))
	}
	return fits[0], nil
}

func (h RootDevice) fits(d fleet.Disk) bool {
	return (h.Serial == "" || d.Serial == h.Serial) && d.SizeBytes >= h.MinSizeGiB*gib && (h.Type == "" || d.Type == h.Type)
}

// String is the hint as people write it.
func (h RootDevice) String() string {
	var parts []string
	if h.Serial != "" {
		parts = append(parts, "serial "+h.Serial)
	}
	if h.MinSizeGiB > 0 {
		parts = append(parts, fmt.Sprintf("at least %d GiB", h.MinSizeGiB))
	}
	if h.Type != "" {
		parts = append(parts, "type "+h.Type)
	}
	return strings.Join(parts, ", ")
}

func nameDisks(disks []fleet.Disk) string {
	names := make([]string, len(disks))
	for i, d := range disks {
		serial := d.Serial
		if serial == "" {
			serial = "without serial, " + d.Path
		}
		kind := d.Type
		if kind == "" {
			kind = "unknown type"
		}
		names[i] = fmt.Sprintf("%s (%s, %.1f GiB)", serial, kind, float64(d.SizeBytes)/gib)
	}
	slices.Sort(names)
	return strings.Join(names, "; ")
}
