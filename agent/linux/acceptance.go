package linux

import (
	"context"
	"os"
	"path/filepath"
	"syscall"

	"github.com/bettercompute/compute/fleet"
)

// gpuDrivers are the kernel's modules that drive the GPUs of a vendor.
var gpuDrivers = map[string][]string{
	"NVIDIA": {"nvidia"},
	"AMD":    {"amdgpu"},
	"Intel":  {"xe", "i915", "habanalabs"},
}

// Acceptance finds what the control plane judges an adopted host by. What
// concerns the gateway the agent adds.
func (h *Host) Acceptance(ctx context.Context) (fleet.AcceptanceFacts, error) {
	inv, err := h.Inventory(ctx)
	if err != nil {
		return fleet.AcceptanceFacts{}, err
	}
	r := &reader{root: h.Root}
	f := fleet.AcceptanceFacts{Inventory: inv, Drivers: map[string]string{}, DiskFreeBytes: -1, Kernel: r.text("proc/sys/kernel/osrelease")}
	for vendor, modules := range gpuDrivers {
		for _, m := range modules {
			if _, err := os.Stat(filepath.Join(h.Root, "sys/module", m)); err != nil {
				continue
			}
			f.Drivers[vendor] = m
			if v := r.text("sys/module", m, "version"); v != "" {
				f.Drivers[vendor] = m + " " + v
			}
			break
		}
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(h.Root, &fs); err == nil {
		f.DiskFreeBytes = int64(fs.Bavail) * int64(fs.Bsize)
	}
	return f, nil
}
