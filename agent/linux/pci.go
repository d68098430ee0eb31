package linux

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"

	"github.com/bettercompute/compute/fleet"
)

// Class codes of PCI devices (PCI Code and ID Assignment Specification).
const (
	classVGA         = "0x0300"
	class3D          = "0x0302"
	classDisplay     = "0x0380"
	classAccelerator = "0x1200"
	classBridge      = "0x06"
)

// gpuVendors make processors that are booked. The graphics of a BMC are ASPEED's
// or Matrox's.
var gpuVendors = map[string]string{"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}

// gpuModels name the accelerators that a boot image meets without their driver,
// by vendor and device (the PCI ID repository).
var gpuModels = map[string]string{
	"10de:1db1": "Tesla V100 SXM2 16GB", "10de:1db5": "Tesla V100 SXM2 32GB", "10de:1eb8": "Tesla T4",
	"10de:20b0": "A100 SXM4 40GB", "10de:20b2": "A100 SXM4 80GB", "10de:20f1": "A100 PCIe 40GB", "10de:20b5": "A100 PCIe 80GB",
	"10de:2235": "A40", "10de:26b5": "L40", "10de:26b9": "L40S", "10de:27b8": "L4",
	"10de:2330": "H100 SXM5 80GB", "10de:2331": "H100 PCIe", "10de:2335": "H200 SXM 141GB",
	"1002:740f": "Instinct MI210", "1002:740c": "Instinct MI250X/MI250", "1002:74a1": "Instinct MI300X",
}

// pci are the GPUs and the other devices, without bridges.
func (r *reader) pci() (gpus, others []fleet.Device) {
	entries, err := os.ReadDir(filepath.Join(r.root, "sys/bus/pci/devices"))
	if err != nil {
		r.miss("GPUs and PCI devices: sys/bus/pci/devices cannot be read")
		return nil, nil
	}
	names := r.pciNames()
	for _, e := range entries {
		dir := filepath.Join("sys/bus/pci/devices", e.Name())
		class, vendor := r.text(dir, "class"), r.text(dir, "vendor")
		if class == "" || vendor == "" {
			r.miss("PCI device %s: what it is cannot be read", e.Name())
		}
		if strings.HasPrefix(class, classBridge) {
			continue
		}
		id := strings.TrimPrefix(vendor, "0x") + ":" + strings.TrimPrefix(r.text(dir, "device"), "0x")
		d := fleet.Device{Vendor: names[id[:min(4, len(id))]], Model: names[id], PCIAddress: e.Name()}
		if d.Model == "" {
			d.Model = gpuModels[id]
		}
		if d.Model == "" {
			d.Model = id
		}
		if isGPU(class, vendor) {
			d.Kind, d.Vendor = "gpu", gpuVendors[vendor]
			r.nvidia(&d)
			if d.UUID == "" {
				r.miss("GPU %s: neither serial nor UUID can be read; the kernel's driver, where it is loaded, tells none", d.PCIAddress)
			}
			gpus = append(gpus, d)
			continue
		}
		d.Kind = strings.TrimPrefix(class, "0x")
		others = append(others, d)
	}
	return gpus, others
}

// isGPU says whether a device is a processor to be booked. Intel's plain VGA is
// a processor's own graphics.
func isGPU(class, vendor string) bool {
	if gpuVendors[vendor] == "" {
		return false
	}
	for _, c := range []string{class3D, classDisplay, classAccelerator} {
		if strings.HasPrefix(class, c) {
			return true
		}
	}
	return strings.HasPrefix(class, classVGA) && vendor != "0x8086"
}

// nvidia takes over what NVIDIA's driver tells, where it is loaded.
func (r *reader) nvidia(d *fleet.Device) {
	for line := range strings.Lines(r.text("proc/driver/nvidia/gpus", d.PCIAddress, "information")) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "Model":
			d.Model = value
		case "GPU UUID":
			if !strings.Contains(value, "?") { // not read from the board yet
				d.UUID = value
			}
		}
	}
}

// pciNames reads the system's list of PCI names, where it has one: vendors by
// four digits, devices by vendor:device.
func (r *reader) pciNames() map[string]string {
	names := map[string]string{}
	for _, path := range []string{"usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids"} {
		f, err := os.Open(filepath.Join(r.root, path))
		if err != nil {
			continue
		}
		defer f.Close()
		vendor := ""
		for lines := bufio.NewScanner(f); lines.Scan(); {
			line := lines.Text()
			switch {
			case line == "" || line[0] == '#' || strings.HasPrefix(line, "\t\t"):
			case strings.HasPrefix(line, "C "):
				return names // the classes follow
			case line[0] == '\t':
				if id, name, ok := strings.Cut(line[1:], "  "); ok {
					names[vendor+":"+id] = name
				}
			default:
				id, name, _ := strings.Cut(line, "  ")
				vendor = id
				names[id] = name
			}
		}
		return names
	}
	return names
}
