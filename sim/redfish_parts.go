package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// findParts is the inventory of a system: what it is made of.
func (m *Machine) findParts(i int, rest []string) *resource {
	path := m.systemPath(i) + "/" + rest[0]
	var kind, name string
	var members map[string]func() object
	switch rest[0] {
	case "Processors":
		kind, name, members = "Processor", "Processors", m.processors(i, path)
	case "Memory":
		kind, name, members = "Memory", "Memory Module Collection", m.modules(i, path)
	case "EthernetInterfaces":
		if m.st.Systems[i].Baseboard {
			return nil
		}
		kind, name, members = "EthernetInterface", "Ethernet Interface Collection", m.ethernet(i, path)
	default:
		return m.findStorage(i, rest)
	}
	return m.listed(kind, path, name, members, rest[1:])
}

// listed is a collection whose members are made by functions, or one of them.
func (m *Machine) listed(kind, path, name string, members map[string]func() object, rest []string) *resource {
	switch len(rest) {
	case 0:
		paths := make([]string, 0, len(members))
		for _, id := range slices.Sorted(maps.Keys(members)) {
			paths = append(paths, path+"/"+id)
		}
		return &resource{get: func(req *request) object { return m.collection(req, kind, path, name, paths) }}
	case 1:
		if make := members[rest[0]]; make != nil {
			return &resource{get: func(*request) object { return m.dress(kind, make()) }}
		}
	}
	return nil
}

func (m *Machine) processorSummary() object {
	return object{"Count": m.hw.CPU.Count, "Model": m.padded(m.hw.CPU.Model),
		"LogicalProcessorCount": m.hw.CPU.Count * m.hw.CPU.Threads, "Status": status("OK")}
}

// padded is a model name as the vendor's firmware writes it.
func (m *Machine) padded(name string) string {
	return fmt.Sprintf("%-*s", m.prof.Names.PadModel, name)
}

func (m *Machine) processors(i int, path string) map[string]func() object {
	out := map[string]func() object{}
	if !m.hasParts(i) {
		return out
	}
	cpu, gpu := m.hw.CPU, m.hw.GPU
	for n := range cpu.Count {
		id := fmt.Sprintf("CPU_%d", n)
		out[id] = func() object {
			doc := m.typed("Processor", path+"/"+id, id, "Processor")
			doc["ProcessorType"] = "CPU"
			doc["Socket"] = fmt.Sprintf("CPU.Socket.%d", n+1)
			doc["Manufacturer"], doc["Model"] = cpu.Manufacturer, m.padded(cpu.Model)
			doc["ProcessorArchitecture"] = cpu.Architecture
			doc["InstructionSet"] = instructionSet(cpu.Architecture)
			doc["TotalCores"], doc["TotalThreads"], doc["MaxSpeedMHz"] = cpu.Cores, cpu.Threads, cpu.SpeedMHz
			doc["Status"] = object{"State": "Enabled", "Health": "OK"}
			return doc
		}
	}
	if m.prof.GPUs != "processors" && m.prof.GPUs != "baseboard" {
		return out
	}
	for _, p := range m.gpus(i) {
		id := fmt.Sprintf("GPU_%d", p.Index)
		out[id] = func() object {
			doc := m.typed("Processor", path+"/"+id, id, "Processor")
			doc["ProcessorType"] = "GPU"
			doc["Manufacturer"], doc["Model"], doc["PartNumber"] = gpu.Manufacturer, gpu.Model, gpu.PartNumber
			doc["SerialNumber"], doc["FirmwareVersion"] = p.Serial, gpu.Firmware
			doc["MemorySummary"] = object{"TotalMemorySizeMiB": gpu.MemoryMiB, "ECCModeEnabled": true}
			doc["Status"] = object{"State": "Enabled", "Health": "OK"}
			return doc
		}
	}
	return out
}

// gpus lists the GPUs of a system; those of a baseboard are its main system's.
func (m *Machine) gpus(i int) []part {
	if m.st.Systems[i].Baseboard {
		i = 0
	}
	return m.parts(i, "gpu", m.hw.GPU.Count, 13)
}

func instructionSet(architecture string) string {
	if architecture == "ARM" {
		return "ARM-A64"
	}
	return "x86-64"
}

func (m *Machine) modules(i int, path string) map[string]func() object {
	out := map[string]func() object{}
	if !m.hasParts(i) {
		return out
	}
	t := m.hw.Memory
	id := m.ident(i)
	for n := range t.Slots {
		slot := fmt.Sprintf("DIMM%d", n+1)
		out[slot] = func() object {
			doc := m.typed("Memory", path+"/"+slot, slot, "DIMM Slot "+fmt.Sprint(n+1))
			doc["DeviceLocator"] = slot
			if n >= t.Count {
				doc["Status"] = object{"State": "Absent"}
				return doc
			}
			doc["MemoryType"], doc["MemoryDeviceType"] = "DRAM", t.Type
			doc["CapacityMiB"], doc["OperatingSpeedMhz"] = t.SizeMiB, t.SpeedMHz
			doc["Manufacturer"], doc["PartNumber"] = t.Manufacturer, t.PartNumber
			doc["SerialNumber"] = id.serial("dimm", n, 8)
			doc["Status"] = object{"State": "Enabled", "Health": "OK"}
			return doc
		}
	}
	return out
}

func (m *Machine) ethernet(i int, path string) map[string]func() object {
	out := map[string]func() object{}
	for _, n := range m.nics(i) {
		id := fmt.Sprint(n.Index + 1)
		out[id] = func() object {
			doc := m.typed("EthernetInterface", path+"/"+id, id, "Ethernet Interface")
			mac := n.MAC
			if n.Template.Dark {
				mac = "Not Available"
			}
			doc["MACAddress"], doc["PermanentMACAddress"] = mac, mac
			doc["SpeedMbps"] = n.Template.SpeedMbps
			doc["LinkStatus"] = "LinkUp"
			doc["Description"] = strings.TrimSpace(n.Template.Manufacturer + " " + n.Template.Model)
			doc["Status"] = object{"State": "Enabled", "Health": "OK"}
			return doc
		}
	}
	return out
}
