// Package linux is a machine that runs Linux as the agent's host. It reads the
// hardware from the kernel's own files and says what it could not read. What it
// cannot do yet it refuses; it never reports a success that it did not see.
package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	ipmi "github.com/bougou/go-ipmi/pkg/client"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/agent/sshd"
	"github.com/bettercompute/compute/fleet"
)

// Host is the machine that the program runs on.
type Host struct {
	// Root is where the kernel's files lie; "/" but in tests.
	Root string
	// Reference asks for the time of a clock that is trusted; nil when there is
	// none, and then the clock test cannot run.
	Reference func(ctx context.Context) (time.Time, error)
	// SSHD is the host's sshd; the zero value is where distributions put it.
	SSHD sshd.Config
	// IPMI opens the way to the machine's own BMC; nil is the kernel's driver.
	IPMI func() (*ipmi.Client, error)
}

// reader reads the kernel's files and keeps what was missing.
type reader struct {
	root    string
	missing []string
}

// text reads a file of one line; "" when it cannot be read.
func (r *reader) text(path ...string) string {
	b, err := os.ReadFile(filepath.Join(append([]string{r.root}, path...)...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", ""))
}

func (r *reader) miss(format string, args ...any) {
	r.missing = append(r.missing, fmt.Sprintf(format, args...))
}

// dmiPath is where the kernel shows what the firmware says of the machine; a
// container or a small VM has none.
const dmiPath = "sys/class/dmi/id"

// dmi is a fact of the firmware's, "" and said to be missing where there is none.
func (r *reader) dmi(what, file string) string {
	v := r.text(dmiPath, file)
	if v == "" {
		r.miss("%s: %s/%s cannot be read", what, dmiPath, file)
	}
	return v
}

// Hardware is who the machine is.
func (h *Host) Hardware(context.Context) (fleet.Hardware, error) {
	r := &reader{root: h.Root}
	hw := fleet.Hardware{UUID: r.text(dmiPath, "product_uuid"), Serial: r.serial(), Vendor: r.text(dmiPath, "sys_vendor")}
	for _, n := range r.nics() {
		hw.MACs = append(hw.MACs, n.MAC)
	}
	if hw.UUID == "" {
		return hw, errors.New("the system UUID cannot be read (" + dmiPath + "/product_uuid)")
	}
	return hw, nil
}

// Inventory reads the hardware.
func (h *Host) Inventory(ctx context.Context) (fleet.Inventory, error) {
	r := &reader{root: h.Root}
	inv := fleet.Inventory{Vendor: r.dmi("vendor", "sys_vendor"), Model: r.dmi("model", "product_name"), Serial: r.serial(),
		UUID: r.dmi("system UUID", "product_uuid"), BIOSVersion: r.dmi("BIOS version", "bios_version")}
	if inv.Serial == "" {
		r.miss("serial: the firmware names none (" + dmiPath + "/product_serial)")
	}
	inv.CPUs = r.cpus()
	inv.DIMMs = r.dimms()
	inv.MemoryMiB = r.memory(inv.DIMMs)
	inv.Disks = r.disks()
	inv.NICs = r.nics()
	inv.GPUs, inv.PCIDevices = r.pci()
	inv.TPM = r.tpm()
	inv.Firmware = r.firmware(inv.BIOSVersion)
	inv.BMC = h.bmc(ctx, r)
	r.miss("health: the kernel tells none for the machine as a whole")
	inv.Missing = r.missing
	return inv, nil
}

// serial is the system's serial, unless it is one of the words that makers leave
// there.
func (r *reader) serial() string {
	s := r.text(dmiPath, "product_serial")
	switch strings.ToLower(s) {
	case "none", "not specified", "to be filled by o.e.m.", "default string", "system serial number", "0123456789", "n/a", "unknown":
		return ""
	}
	return s
}

// tpm is nil where the kernel cannot tell whether there is one.
func (r *reader) tpm() *fleet.TPM {
	if _, err := os.Stat(filepath.Join(r.root, "sys/class/tpm")); err != nil {
		r.miss("TPM: sys/class/tpm cannot be read")
		return nil
	}
	if _, err := os.Stat(filepath.Join(r.root, "sys/class/tpm/tpm0")); err != nil {
		return &fleet.TPM{}
	}
	t := &fleet.TPM{Present: true}
	if v := r.text("sys/class/tpm/tpm0/tpm_version_major"); v != "" {
		t.Version = v + ".0"
	} else {
		r.miss("TPM: its version cannot be read")
	}
	return t
}

func (r *reader) firmware(bios string) []fleet.Component {
	var out []fleet.Component
	if bios != "" {
		out = append(out, fleet.Component{Name: "BIOS", Version: bios})
	}
	if bmc := r.text("sys/class/ipmi/ipmi0/device/bmc/firmware_revision"); bmc != "" {
		out = append(out, fleet.Component{Name: "BMC", Version: bmc})
	}
	nvme, _ := filepath.Glob(filepath.Join(r.root, "sys/class/nvme/nvme*")) // the pattern is well-formed
	for _, dir := range nvme {
		name := filepath.Base(dir)
		if v := r.text("sys/class/nvme", name, "firmware_rev"); v != "" {
			out = append(out, fleet.Component{Name: name, Version: v})
		} else {
			r.miss("firmware of %s: its version cannot be read", name)
		}
	}
	return out
}

// Finish brings what was written to the disks.
func (h *Host) Finish(context.Context) error {
	syscall.Sync()
	return nil
}

// WriteImage is not built into this agent.
func (h *Host) WriteImage(context.Context, fleet.Disk, agent.WriteImage, agent.Progress) (agent.Written, error) {
	return agent.Written{}, notBuilt("writing images")
}

// ConfigDrive is not built into this agent.
func (h *Host) ConfigDrive(context.Context, fleet.Disk, agent.ConfigDrive) error {
	return notBuilt("writing config drives")
}

// Erase is not built into this agent.
func (h *Host) Erase(context.Context, string, string, agent.Progress) error {
	return notBuilt("erasing disks")
}

// Rescue is not built into this agent.
func (h *Host) Rescue(context.Context, []string) error { return notBuilt("the rescue system") }

func notBuilt(what string) error { return fmt.Errorf("%s: %w", what, agent.ErrUnsupported) }
