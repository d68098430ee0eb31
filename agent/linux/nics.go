package linux

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/bettercompute/compute/fleet"
)

// nics are the network ports of real devices.
func (r *reader) nics() []fleet.NIC {
	entries, err := os.ReadDir(filepath.Join(r.root, "sys/class/net"))
	if err != nil {
		r.miss("network ports: sys/class/net cannot be read")
		return nil
	}
	var out []fleet.NIC
	for _, e := range entries {
		dir := filepath.Join("sys/class/net", e.Name())
		if _, err := os.Stat(filepath.Join(r.root, dir, "device")); err != nil {
			continue // a bridge, a bond, loopback
		}
		n := fleet.NIC{Name: e.Name(), MAC: strings.ToLower(r.text(dir, "address"))}
		if mac := r.text(dir, "bonding_slave/perm_hwaddr"); mac != "" {
			n.MAC = strings.ToLower(mac)
		}
		if n.MAC == "" {
			r.miss("network port %s: no address can be read", n.Name)
		}
		// Both files refuse to be read while the port is down.
		if speed, err := strconv.Atoi(r.text(dir, "speed")); err == nil && speed > 0 {
			n.SpeedMbps = speed
		}
		if carrier := r.text(dir, "carrier"); carrier != "" {
			up := carrier == "1"
			n.LinkUp = &up
		} else if r.text(dir, "operstate") == "down" {
			up := false
			n.LinkUp = &up
		}
		out = append(out, n)
	}
	if len(out) == 0 {
		r.miss("network ports: the kernel shows none of a device")
	}
	return out
}
