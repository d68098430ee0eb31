package sim

import (
	"fmt"
	"strings"
)

const chassisPath = serviceRoot + "/Chassis"

func (m *Machine) chassisID(i int) string { return numbered(m.vary.chassis, i) }

func (m *Machine) chassisPath(i int) string { return chassisPath + "/" + m.chassisID(i) }

func (m *Machine) findChassis(rest []string) *resource {
	if len(rest) == 0 {
		return &resource{get: func(req *request) object {
			var paths []string
			for i := range m.st.Systems {
				if m.st.Systems[i].Baseboard {
					paths = append(paths, chassisPath+"/"+m.prof.Baseboard.Chassis)
				} else {
					paths = append(paths, m.chassisPath(i))
				}
			}
			return m.collection(req, "Chassis", chassisPath, "Chassis Collection", paths)
		}}
	}
	for i := range m.st.Systems {
		if m.st.Systems[i].Baseboard {
			if b := m.prof.Baseboard; rest[0] == b.Chassis && len(rest) == 1 {
				return &resource{get: func(*request) object { return m.baseboardChassis(i) }}
			}
			continue
		}
		if rest[0] == m.chassisID(i) {
			return m.findChassisPart(i, rest[1:])
		}
	}
	return nil
}

func (m *Machine) findChassisPart(i int, rest []string) *resource {
	path := m.chassisPath(i)
	switch {
	case len(rest) == 0:
		return &resource{get: func(*request) object { return m.chassisDocument(i) }}
	case rest[0] == "NetworkAdapters":
		return m.listed("NetworkAdapter", path+"/NetworkAdapters", "Network Adapter Collection", m.adapters(i, path+"/NetworkAdapters"), rest[1:])
	case rest[0] == "PCIeDevices" && m.prof.GPUs == "pcieDevices":
		return m.listed("PCIeDevice", path+"/PCIeDevices", "PCIe Devices", m.gpuDevices(i, path+"/PCIeDevices"), rest[1:])
	case rest[0] == "Devices" && m.prof.GPUs == "devices":
		return m.listed("HpeServerDevice", path+"/Devices", "Devices", m.hpeDevices(i, path+"/Devices"), rest[1:])
	case strings.Join(rest, "/") == "Power":
		return &resource{get: func(*request) object {
			doc := m.typed("Power", path+"/Power", "Power", "Power")
			doc["PowerControl"] = []any{object{"@odata.id": path + "/Power#/PowerControl/0", "MemberId": "0",
				"Name": "System Power Control", "PowerConsumedWatts": m.watts(i)}}
			return doc
		}}
	}
	return nil
}

// watts is a load that fits the power state.
func (m *Machine) watts(i int) int {
	if m.st.Systems[i].Power == powerOff {
		return 25
	}
	return 350 + m.hw.GPU.Count*90
}

func (m *Machine) chassisDocument(i int) object {
	s := &m.st.Systems[i]
	path := m.chassisPath(i)
	doc := m.typed("Chassis", path, m.chassisID(i), "Computer System Chassis")
	doc["ChassisType"] = "RackMount"
	doc["Manufacturer"], doc["Model"] = m.prof.Vendor, s.Model
	doc["SerialNumber"], doc["PartNumber"] = s.Serial, m.hw.PartNumber
	doc["PowerState"] = m.shownPower(s)
	doc["Status"] = status(s.Health)
	doc["NetworkAdapters"] = link(path + "/NetworkAdapters")
	doc["Power"] = link(path + "/Power")
	doc["Links"] = object{"ComputerSystems": links(m.systemPath(i)), "ManagedBy": links(m.managerPath())}
	switch m.prof.GPUs {
	case "pcieDevices":
		doc["PCIeDevices"] = link(path + "/PCIeDevices")
	case "devices":
		merge(doc, object{"Oem": object{"Hpe": object{"Links": object{"Devices": link(path + "/Devices")}}}})
	}
	return m.dress("Chassis", doc)
}

func (m *Machine) baseboardChassis(i int) object {
	b := m.prof.Baseboard
	doc := m.typed("Chassis", chassisPath+"/"+b.Chassis, b.Chassis, b.Chassis)
	doc["ChassisType"] = "Module"
	doc["Manufacturer"], doc["Model"] = b.Manufacturer, b.Model
	doc["SerialNumber"] = m.st.Systems[i].Serial
	doc["Status"] = status("OK")
	doc["Links"] = object{"ComputerSystems": links(m.systemPath(i)), "ManagedBy": links(managersPath + "/" + b.Manager)}
	return doc
}

func (m *Machine) adapters(i int, path string) map[string]func() object {
	out := map[string]func() object{}
	for n := range m.hw.NICs {
		t := &m.hw.NICs[n]
		id := fmt.Sprintf("NIC.%d", n+1)
		out[id] = func() object {
			doc := m.typed("NetworkAdapter", path+"/"+id, id, "Network Adapter")
			doc["Manufacturer"], doc["Model"] = t.Manufacturer, t.Model
			doc["SerialNumber"] = m.ident(i).serial("nic", n, 12)
			doc["Controllers"] = []any{object{"FirmwarePackageVersion": t.Firmware}}
			doc["Status"] = object{"State": "Enabled", "Health": "OK"}
			return doc
		}
	}
	return out
}

func (m *Machine) gpuDevicePaths(i int) []string {
	var out []string
	for _, p := range m.gpus(i) {
		out = append(out, fmt.Sprintf("%s/PCIeDevices/GPU.%d", m.chassisPath(i), p.Index+1))
	}
	return out
}

// gpuDevices lists GPUs among the PCIe devices, where the vendor has them.
func (m *Machine) gpuDevices(i int, path string) map[string]func() object {
	out := map[string]func() object{}
	for _, p := range m.gpus(i) {
		id := fmt.Sprintf("GPU.%d", p.Index+1)
		out[id] = func() object {
			doc := m.typed("PCIeDevice", path+"/"+id, id, m.hw.GPU.Model)
			doc["DeviceType"] = "SingleFunction"
			doc["Manufacturer"], doc["Model"], doc["PartNumber"] = m.hw.GPU.Manufacturer, m.hw.GPU.Model, m.hw.GPU.PartNumber
			doc["SerialNumber"], doc["FirmwareVersion"] = p.Serial, m.hw.GPU.Firmware
			doc["Status"] = object{"State": "Enabled", "Health": "OK"}
			return doc
		}
	}
	return out
}

// hpeDevices is HPE's collection of slots, GPUs and empty ones among them.
func (m *Machine) hpeDevices(i int, path string) map[string]func() object {
	out := map[string]func() object{}
	add := func(n int, name, kind, serial, firmware, state string) {
		id := fmt.Sprint(n)
		out[id] = func() object {
			doc := m.typed("HpeServerDevice", path+"/"+id, id, name)
			doc["DeviceType"], doc["SerialNumber"] = kind, serial
			doc["FirmwareVersion"] = object{"Current": object{"VersionString": firmware}}
			doc["Location"] = "PCI-E Slot " + id
			doc["Manufacturer"], doc["ProductPartNumber"] = "", ""
			if kind == "GPU" {
				doc["Manufacturer"], doc["ProductPartNumber"] = m.hw.GPU.Manufacturer, m.hw.GPU.PartNumber
			}
			doc["Status"] = object{"State": state}
			return doc
		}
	}
	n := 1
	add(n, "Empty slot 17", "Unknown", "", "N/A", "Absent")
	for _, p := range m.gpus(i) {
		add(n+1, m.hw.GPU.Model, "GPU", p.Serial, m.hw.GPU.Firmware, "Enabled")
		add(n+2, fmt.Sprintf("Empty slot %d", n+2), "Unknown", "", "N/A", "Absent")
		n += 2
	}
	for k := range m.hw.NICs {
		n++
		add(n, m.hw.NICs[k].Model, "LOM/NIC", m.ident(i).serial("nic", k, 12), m.hw.NICs[k].Firmware, "Enabled")
	}
	return out
}
