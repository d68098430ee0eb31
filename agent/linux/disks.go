package linux

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/bettercompute/compute/fleet"
)

// sysSector is the unit of a size under /sys/block, whatever the disk's own.
const sysSector = 512

// notDisks are the names of block devices that are no drives.
var notDisks = []string{"loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd", "rbd"}

// disks are the drives that the kernel sees.
func (r *reader) disks() []fleet.Disk {
	entries, err := os.ReadDir(filepath.Join(r.root, "sys/block"))
	if err != nil {
		r.miss("disks: sys/block cannot be read")
		return nil
	}
	var out []fleet.Disk
	for _, e := range entries {
		name := e.Name()
		if !isDisk(name) {
			continue
		}
		d := r.disk(name)
		if d.Serial == "" && !d.Removable {
			r.miss("disk %s: no serial can be read", d.Path)
		}
		if d.SizeBytes == 0 && !d.Removable {
			r.miss("disk %s: no size can be read", d.Path)
		}
		if d.Type == "" && !d.Removable {
			r.miss("disk %s: whether it is a hard disk cannot be read", d.Path)
		}
		out = append(out, d)
	}
	if len(out) == 0 {
		r.miss("disks: the kernel shows none")
	}
	return out
}

// isDisk says whether a block device is a drive. A multipath NVMe shows each
// path, as nvme0c0n1, besides the disk itself.
func isDisk(name string) bool {
	if rest, nvme := strings.CutPrefix(name, "nvme"); nvme {
		return !strings.Contains(rest, "c")
	}
	return !slices.ContainsFunc(notDisks, func(p string) bool { return strings.HasPrefix(name, p) })
}

func (r *reader) disk(name string) fleet.Disk {
	dir := filepath.Join("sys/block", name)
	d := fleet.Disk{Path: "/dev/" + name, Model: r.text(dir, "device/model"), Removable: r.text(dir, "removable") == "1"}
	if sectors, err := strconv.ParseInt(r.text(dir, "size"), 10, 64); err == nil {
		d.SizeBytes = sectors * sysSector
	}
	switch {
	case strings.HasPrefix(name, "nvme"):
		d.Type = "nvme"
	case r.text(dir, "queue/rotational") == "1":
		d.Type = "hdd"
	case r.text(dir, "queue/rotational") == "0":
		d.Type = "ssd"
	}
	d.Serial = r.diskSerial(dir)
	return d
}

// diskSerial asks the places where the drivers leave it: NVMe, virtio, SCSI.
func (r *reader) diskSerial(dir string) string {
	for _, place := range []string{"device/serial", "serial"} {
		if s := r.text(dir, place); s != "" {
			return s
		}
	}
	// Page 0x80 of SCSI's vital product data: four bytes, then the serial.
	b, err := os.ReadFile(filepath.Join(r.root, dir, "device/vpd_pg80"))
	if err == nil && len(b) > 4 {
		return strings.TrimSpace(strings.Trim(string(b[4:]), "\x00"))
	}
	return ""
}
