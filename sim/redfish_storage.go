package sim

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// addStorageLinks links what the profile's storage layout offers.
func (m *Machine) addStorageLinks(i int, doc object) {
	path := m.systemPath(i)
	switch m.prof.Storage.Layout {
	case "simpleStorage":
		doc["SimpleStorage"] = link(path + "/SimpleStorage")
	case "smartStorage":
		doc["Storage"] = link(path + "/Storage")
		merge(doc, object{"Oem": object{"Hpe": object{"Links": object{"SmartStorage": link(path + "/SmartStorage")}}}})
	default:
		doc["Storage"] = link(path + "/Storage")
	}
}

func (m *Machine) findStorage(i int, rest []string) *resource {
	if m.st.Systems[i].Baseboard {
		return nil
	}
	path := m.systemPath(i) + "/" + rest[0]
	switch layout := m.prof.Storage.Layout; {
	case rest[0] == "SimpleStorage" && layout == "simpleStorage":
		return m.listed("SimpleStorage", path, "Simple Storage Collection", map[string]func() object{
			"1": func() object { return m.simpleStorage(i, path+"/1") }}, rest[1:])
	case rest[0] == "SmartStorage" && layout == "smartStorage":
		return m.findSmartStorage(i, path, rest[1:])
	case rest[0] == "Storage" && layout == "smartStorage":
		return m.listed("Storage", path, "Storage", nil, rest[1:])
	case rest[0] == "Storage" && layout == "storage":
		unit := m.prof.IDs.Storage
		if len(rest) < 3 {
			return m.listed("Storage", path, "Storage Collection", map[string]func() object{
				unit: func() object { return m.storageUnit(i, path+"/"+unit) }}, rest[1:])
		}
		if rest[1] == unit && rest[2] == "Drives" {
			return m.findDrives(i, path+"/"+unit+"/Drives", rest[3:])
		}
	}
	return nil
}

func driveID(n int) string { return fmt.Sprintf("Disk.Bay.%d", n) }

func (m *Machine) storageUnit(i int, path string) object {
	s := &m.st.Systems[i]
	doc := m.typed("Storage", path, m.prof.IDs.Storage, "Storage Controller")
	paths := make([]string, 0, len(s.Disks))
	for n := range s.Disks {
		paths = append(paths, path+"/Drives/"+driveID(n))
	}
	order := seeded("order", m.vary.order, path)
	order.Shuffle(len(paths), func(a, b int) { paths[a], paths[b] = paths[b], paths[a] })
	doc["Drives"] = links(paths...)
	doc["Drives@odata.count"] = len(paths)
	doc["StorageControllers"] = []any{object{"@odata.id": path + "#/StorageControllers/0", "MemberId": "0",
		"Name": "Storage Controller", "SupportedDeviceProtocols": []any{"NVMe", "SATA"}, "Status": object{"State": "Enabled", "Health": "OK"}}}
	doc["Status"] = status("OK")
	return doc
}

func (m *Machine) findDrives(i int, base string, rest []string) *resource {
	s := &m.st.Systems[i]
	if len(rest) == 0 {
		return nil
	}
	for n := range s.Disks {
		if driveID(n) != rest[0] {
			continue
		}
		path := base + "/" + rest[0]
		switch strings.Join(rest[1:], "/") {
		case "":
			return &resource{get: func(*request) object { return m.driveDocument(i, n, path) }}
		case "Actions/Drive.SecureErase":
			if m.prof.Storage.SecureErase {
				return &resource{post: func(req *request) *answer { return m.postSecureErase(req, i, n) }}
			}
		}
	}
	return nil
}

func (m *Machine) driveDocument(i, n int, path string) object {
	d := &m.st.Systems[i].Disks[n]
	t := m.driveTemplateOf(n)
	doc := m.typed("Drive", path, driveID(n), "Drive "+fmt.Sprint(n))
	doc["SerialNumber"], doc["CapacityBytes"] = d.Serial, d.SizeBytes
	doc["Manufacturer"], doc["Model"], doc["Revision"] = t.Manufacturer, d.Model, t.Firmware
	doc["MediaType"], doc["Protocol"] = mediaOf(d.Type)
	doc["PhysicalLocation"] = object{"PartLocation": object{"LocationType": "Bay", "LocationOrdinalValue": n}}
	doc["Status"] = object{"State": "Enabled", "Health": "OK"}
	if d.Dead {
		doc["Status"] = object{"State": "Enabled", "Health": "Critical"}
	}
	if m.prof.Storage.SecureErase {
		doc["Actions"] = object{"#Drive.SecureErase": object{"target": path + "/Actions/Drive.SecureErase"}}
	}
	return m.dress("Drive", doc)
}

func mediaOf(kind string) (media, protocol string) {
	switch kind {
	case "nvme":
		return "SSD", "NVMe"
	case "ssd":
		return "SSD", "SATA"
	}
	return "HDD", "SAS"
}

// postSecureErase erases a drive in a task, as the time it takes demands.
func (m *Machine) postSecureErase(req *request, i, n int) *answer {
	if m.st.Systems[i].Disks[n].Dead {
		return m.errorAnswer(http.StatusInternalServerError, fault{id: "InternalError",
			text: "The request failed due to an internal service error."})
	}
	if req.again {
		return &answer{status: http.StatusNoContent, act: func(time.Time) { m.st.Systems[i].Disks[n].erase(eraseFull) }}
	}
	return m.nativeTask(req, eraseTaskTime)
}

func (m *Machine) simpleStorage(i int, path string) object {
	doc := m.typed("SimpleStorage", path, "1", "Simple Storage Controller")
	var devices []any
	for n, d := range m.st.Systems[i].Disks {
		t := m.driveTemplateOf(n)
		devices = append(devices, object{"Name": "Drive " + fmt.Sprint(n), "Manufacturer": t.Manufacturer, "Model": d.Model,
			"CapacityBytes": d.SizeBytes, "Status": object{"State": "Enabled", "Health": "OK"}})
	}
	doc["Devices"] = devices
	doc["Status"] = status("OK")
	return doc
}

// findSmartStorage is HPE's own storage tree: controllers with disk drives.
func (m *Machine) findSmartStorage(i int, base string, rest []string) *resource {
	controllers := base + "/ArrayControllers"
	drives := controllers + "/0/DiskDrives"
	switch {
	case len(rest) == 0:
		return &resource{get: func(*request) object {
			doc := m.typed("HpeSmartStorage", base, "1", "HpeSmartStorage")
			doc["Links"] = object{"ArrayControllers": link(controllers)}
			doc["Status"] = object{"Health": "OK"}
			return doc
		}}
	case rest[0] != "ArrayControllers":
		return nil
	case len(rest) <= 2:
		return m.listed("HpeSmartStorageArrayController", controllers, "HpeSmartStorageArrayControllers", map[string]func() object{
			"0": func() object {
				doc := m.typed("HpeSmartStorageArrayController", controllers+"/0", "0", "HpeSmartStorageArrayController")
				doc["Links"] = object{"PhysicalDrives": link(drives)}
				doc["Status"] = object{"State": "Enabled", "Health": "OK"}
				return doc
			}}, rest[1:])
	case rest[1] == "0" && rest[2] == "DiskDrives":
		members := map[string]func() object{}
		for n := range m.st.Systems[i].Disks {
			id := fmt.Sprint(n)
			members[id] = func() object { return m.smartDrive(i, n, drives+"/"+id) }
		}
		return m.listed("HpeSmartStorageDiskDrive", drives, "HpeSmartStorageDiskDrives", members, rest[3:])
	}
	return nil
}

func (m *Machine) smartDrive(i, n int, path string) object {
	d := &m.st.Systems[i].Disks[n]
	t := m.driveTemplateOf(n)
	doc := m.typed("HpeSmartStorageDiskDrive", path, fmt.Sprint(n), "HpeSmartStorageDiskDrive")
	doc["SerialNumber"], doc["Model"] = d.Serial, d.Model
	doc["CapacityGB"] = d.SizeBytes / 1e9
	doc["CapacityMiB"] = d.SizeBytes >> 20
	doc["BlockSizeBytes"], doc["CapacityLogicalBlocks"] = 512, d.SizeBytes/512
	doc["MediaType"], doc["InterfaceType"] = mediaOf(d.Type)
	doc["FirmwareVersion"] = object{"Current": object{"VersionString": t.Firmware}}
	doc["Location"] = fmt.Sprintf("1I:1:%d", n+1)
	doc["Status"] = object{"State": "Enabled", "Health": "OK"}
	return doc
}
