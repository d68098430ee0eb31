package sim

import "fmt"

const firmwarePath = serviceRoot + "/UpdateService/FirmwareInventory"

func (m *Machine) findUpdateService(rest []string) *resource {
	if len(rest) == 0 {
		return &resource{get: func(*request) object {
			doc := m.typed("UpdateService", serviceRoot+"/UpdateService", "UpdateService", "Update Service")
			doc["ServiceEnabled"] = true
			doc["FirmwareInventory"] = link(firmwarePath)
			doc["Status"] = object{"State": "Enabled", "Health": "OK"}
			return m.dress("UpdateService", doc)
		}}
	}
	if rest[0] != "FirmwareInventory" {
		return nil
	}
	members := map[string]func() object{}
	for n, f := range m.firmware() {
		id := fmt.Sprint(n + 1)
		members[id] = func() object {
			doc := m.typed("SoftwareInventory", firmwarePath+"/"+id, id, f.name)
			doc["Version"], doc["Updateable"] = f.version, true
			doc["Status"] = object{"State": "Enabled", "Health": "OK"}
			return doc
		}
	}
	return m.listed("SoftwareInventory", firmwarePath, "Firmware Inventory Collection", members, rest[1:])
}

type firmware struct{ name, version string }

// firmware lists the versions of everything on the machine that has one.
func (m *Machine) firmware() []firmware {
	out := []firmware{{m.prof.ManagerModel, m.bmcFirmware()}, {"BIOS", m.biosVersion(0)}}
	for n := range m.hw.GPU.Count {
		out = append(out, firmware{fmt.Sprintf("%s GPU %d", m.hw.GPU.Model, n), m.hw.GPU.Firmware})
	}
	for _, t := range m.hw.NICs {
		out = append(out, firmware{t.Model, t.Firmware})
	}
	for _, t := range m.hw.Drives {
		out = append(out, firmware{t.Model, t.Firmware})
	}
	return out
}
