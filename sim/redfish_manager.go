package sim

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

const managersPath = serviceRoot + "/Managers"

func (m *Machine) managerPath() string { return managersPath + "/" + m.vary.manager }

func (m *Machine) findManagers(rest []string) *resource {
	if len(rest) == 0 {
		return &resource{get: func(req *request) object {
			paths := []string{m.managerPath()}
			if b := m.prof.Baseboard; b != nil {
				paths = append(paths, managersPath+"/"+b.Manager)
			}
			return m.collection(req, "Manager", managersPath, "Managers", paths)
		}}
	}
	if b := m.prof.Baseboard; b != nil && len(rest) == 1 && rest[0] == b.Manager {
		return &resource{get: func(req *request) object { return m.baseboardManager(req) }}
	}
	if rest[0] != m.vary.manager {
		return nil
	}
	switch strings.Join(rest[1:], "/") {
	case "":
		return &resource{get: m.managerDocument}
	case "Actions/Manager.Reset":
		return &resource{post: m.postManagerReset}
	case "EthernetInterfaces":
		return &resource{get: func(req *request) object {
			return m.collection(req, "EthernetInterface", m.managerPath()+"/EthernetInterfaces", "Ethernet Interfaces",
				[]string{m.managerPath() + "/EthernetInterfaces/1"})
		}}
	case "EthernetInterfaces/1":
		return &resource{get: m.managerEthernet}
	case "NetworkProtocol":
		return &resource{get: m.networkProtocol}
	}
	if rest[1] == "VirtualMedia" && m.spec.MediaUnder == "manager" {
		return m.findMedia(0, m.managerPath()+"/VirtualMedia", rest[2:])
	}
	return nil
}

func (m *Machine) managerDocument(req *request) object {
	path := m.managerPath()
	doc := m.typed("Manager", path, m.vary.manager, m.prof.Names.Manager)
	doc["ManagerType"] = "BMC"
	doc["Model"] = m.prof.ManagerModel
	doc["FirmwareVersion"] = m.bmcFirmware()
	doc["UUID"] = m.st.Manager.UUID
	doc["ServiceEntryPointUUID"] = m.st.Manager.UUID
	doc["DateTime"] = stamp(req.now)
	doc["DateTimeLocalOffset"] = "+00:00"
	doc["PowerState"] = "On"
	doc["Status"] = object{"State": "Enabled", "Health": "OK"}
	doc["EthernetInterfaces"] = link(path + "/EthernetInterfaces")
	doc["NetworkProtocol"] = link(path + "/NetworkProtocol")
	if m.spec.MediaUnder == "manager" {
		doc["VirtualMedia"] = link(path + "/VirtualMedia")
	}
	var servers, chassis []string
	for i := range m.st.Systems {
		if !m.st.Systems[i].Baseboard {
			servers = append(servers, m.systemPath(i))
			chassis = append(chassis, m.chassisPath(i))
		}
	}
	doc["Links"] = object{"ManagerForServers": links(servers...), "ManagerForChassis": links(chassis...)}
	doc["Actions"] = object{"#Manager.Reset": object{"target": path + "/Actions/Manager.Reset",
		"ResetType@Redfish.AllowableValues": anyList(managerResets)}}
	return m.dress("Manager", doc)
}

func (m *Machine) baseboardManager(req *request) object {
	b := m.prof.Baseboard
	doc := m.typed("Manager", managersPath+"/"+b.Manager, b.Manager, b.Manager)
	doc["ManagerType"] = "BMC"
	doc["FirmwareVersion"] = m.bmcFirmware()
	doc["DateTime"] = stamp(req.now)
	doc["Status"] = object{"State": "Enabled", "Health": "OK"}
	doc["Links"] = object{"ManagerForServers": links(systemsPath + "/" + b.ID),
		"ManagerForChassis": links(chassisPath + "/" + b.Chassis)}
	return doc
}

func (m *Machine) bmcFirmware() string {
	return pick(m.ident(0).rand("bmc", 0), m.hw.Firmware, "1.00")
}

func (m *Machine) managerEthernet(*request) object {
	doc := m.typed("EthernetInterface", m.managerPath()+"/EthernetInterfaces/1", "1", "Manager Ethernet Interface")
	doc["MACAddress"] = m.ident(0).mac(63)
	doc["Status"] = object{"State": "Enabled", "Health": "OK"}
	host, _, _ := strings.Cut(m.addr, ":")
	doc["IPv4Addresses"] = []any{object{"Address": host, "SubnetMask": "255.0.0.0", "AddressOrigin": "Static"}}
	return doc
}

func (m *Machine) networkProtocol(*request) object {
	doc := m.typed("ManagerNetworkProtocol", m.managerPath()+"/NetworkProtocol", "NetworkProtocol", "Manager Network Protocol")
	doc["HTTPS"] = object{"ProtocolEnabled": true, "Port": 443}
	doc["IPMI"] = object{"ProtocolEnabled": false, "Port": 623}
	doc["SSH"] = object{"ProtocolEnabled": false, "Port": 22}
	return doc
}

var managerResets = []string{"GracefulRestart", "ForceRestart"}

// postManagerReset restarts the BMC: it is away for a while and forgets its sessions.
func (m *Machine) postManagerReset(req *request) *answer {
	kind, ok := req.body["ResetType"].(string)
	if v, given := req.body["ResetType"]; given && (!ok || !slices.Contains(managerResets, kind)) {
		return m.parameterValue("Manager.Reset", "ResetType", v)
	}
	do := &answer{status: http.StatusNoContent}
	do.act = func(now time.Time) {
		m.st.Manager.DownUntil = now.Add(bmcRestart)
		m.st.Sessions = nil
		if m.spec.TLS.Rotate {
			m.st.TLS.Generation++
		}
	}
	return m.changed(req, m.vary.reset, do)
}
