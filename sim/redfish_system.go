package sim

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

const systemsPath = serviceRoot + "/Systems"

func (m *Machine) systemPath(i int) string { return systemsPath + "/" + m.st.Systems[i].ID }

func (m *Machine) findSystems(rest []string) *resource {
	if len(rest) == 0 {
		return &resource{get: func(req *request) object {
			var paths []string
			for i := range m.st.Systems {
				paths = append(paths, m.systemPath(i))
			}
			return m.collection(req, "ComputerSystem", systemsPath, "Computer Systems", paths)
		}}
	}
	i := m.system(rest[0])
	if i < 0 {
		return nil
	}
	s := &m.st.Systems[i]
	if len(rest) == 1 {
		res := &resource{get: func(*request) object { return m.systemDocument(i) }}
		if !s.Baseboard {
			res.patch = func(req *request) *answer { return m.patchSystem(req, i, false) }
		}
		return res
	}
	if s.Baseboard {
		return m.findParts(i, rest[1:])
	}
	switch sub := strings.Join(rest[1:], "/"); sub {
	case "Actions/ComputerSystem.Reset":
		return &resource{post: func(req *request) *answer { return m.postReset(req, i) }}
	case "ResetActionInfo":
		if m.spec.ResetTypesFrom != "actionInfo" {
			return nil
		}
		return &resource{get: func(*request) object { return m.resetInfo(i) }}
	case m.prof.IDs.Settings:
		return m.findSettings(i)
	case "Bios":
		return &resource{get: func(*request) object { return m.biosDocument(i) }}
	case "SecureBoot":
		return &resource{get: func(*request) object { return m.secureBootDocument(i) }}
	}
	if rest[1] == "VirtualMedia" && m.spec.MediaUnder == "system" {
		return m.findMedia(i, m.systemPath(i)+"/VirtualMedia", rest[2:])
	}
	return m.findParts(i, rest[1:])
}

// hasParts says whether the system lists its own processors and memory: with a
// baseboard these are the baseboard's.
func (m *Machine) hasParts(i int) bool {
	return m.prof.Baseboard == nil || m.st.Systems[i].Baseboard
}

func (m *Machine) systemDocument(i int) object {
	s := &m.st.Systems[i]
	path := m.systemPath(i)
	doc := m.typed("ComputerSystem", path, s.ID, s.Name)
	doc["SystemType"] = "Physical"
	doc["Manufacturer"] = m.prof.Vendor
	doc["Model"] = s.Model
	doc["SerialNumber"] = s.Serial
	doc["PartNumber"] = m.hw.PartNumber
	doc["SKU"] = m.hw.SKU
	doc["AssetTag"] = s.AssetTag
	doc["Status"] = status(s.Health)
	doc["PowerState"] = m.shownPower(s)
	if s.UUID != "" {
		doc["UUID"] = s.UUID
	}
	doc["Processors"] = link(path + "/Processors")
	doc["Memory"] = link(path + "/Memory")
	if m.hasParts(i) {
		doc["ProcessorSummary"] = m.processorSummary()
		doc["MemorySummary"] = object{"TotalSystemMemoryGiB": m.hw.Memory.Count * m.hw.Memory.SizeMiB / 1024, "Status": status("OK")}
	}
	if s.Baseboard {
		doc["Manufacturer"] = m.prof.Baseboard.Manufacturer
		doc["Links"] = object{"Chassis": links(chassisPath + "/" + m.prof.Baseboard.Chassis),
			"ManagedBy": links(managersPath + "/" + m.prof.Baseboard.Manager)}
		return doc
	}
	m.addMainMembers(i, doc)
	return m.dress("ComputerSystem", doc)
}

// addMainMembers adds what a system with power and boot has.
func (m *Machine) addMainMembers(i int, doc object) {
	s := &m.st.Systems[i]
	path := m.systemPath(i)
	doc["Boot"] = m.bootMember(i, s.Override)
	doc["BiosVersion"] = m.biosVersion(i)
	doc["EthernetInterfaces"] = link(path + "/EthernetInterfaces")
	doc["Bios"] = link(path + "/Bios")
	doc["SecureBoot"] = link(path + "/SecureBoot")
	m.addStorageLinks(i, doc)
	if m.spec.MediaUnder == "system" {
		doc["VirtualMedia"] = link(path + "/VirtualMedia")
	}
	if m.spec.BootHome != "live" {
		doc["@Redfish.Settings"] = object{"@odata.type": "#Settings.v1_3_5.Settings",
			"SettingsObject": link(path + "/" + m.prof.IDs.Settings)}
	}
	if m.hw.TPM != "" {
		doc["TrustedModules"] = []any{object{"InterfaceType": m.hw.TPM, "Status": object{"State": "Enabled", "Health": "OK"}}}
	}
	if m.prof.GPUs == "pcieDevices" {
		doc["PCIeDevices"] = links(m.gpuDevicePaths(i)...)
	}
	if m.prof.Boot.Progress {
		doc["BootProgress"] = object{"LastState": bootProgress(s)}
	}
	doc["Links"] = object{"Chassis": links(m.chassisPath(i)), "ManagedBy": links(m.managerPath())}
	reset := object{"target": path + "/Actions/ComputerSystem.Reset"}
	switch m.spec.ResetTypesFrom {
	case "inline":
		reset["ResetType@Redfish.AllowableValues"] = anyList(m.spec.ResetTypes)
	case "actionInfo":
		reset["@Redfish.ActionInfo"] = path + "/ResetActionInfo"
	}
	doc["Actions"] = object{"#ComputerSystem.Reset": reset}
}

func bootProgress(s *System) string {
	switch {
	case s.Power == powerOff:
		return "None"
	case !s.PostUntil.IsZero():
		return "SystemHardwareInitializationComplete"
	case s.Running != nil && s.Running.Source != sourceNone:
		return "OSRunning"
	}
	return "SetupEntered"
}

func anyList(l []string) []any {
	out := make([]any, len(l))
	for i, v := range l {
		out[i] = v
	}
	return out
}

func (m *Machine) resetInfo(i int) object {
	doc := m.typed("ActionInfo", m.systemPath(i)+"/ResetActionInfo", "ResetActionInfo", "Reset Action Info")
	doc["Parameters"] = []any{object{"Name": "ResetType", "Required": true, "DataType": "String",
		"AllowableValues": anyList(m.spec.ResetTypes)}}
	return doc
}

func (m *Machine) postReset(req *request, i int) *answer {
	for k := range req.body {
		if k != "ResetType" {
			return m.parameterUnknown("ComputerSystem.Reset", k)
		}
	}
	v, ok := req.body["ResetType"]
	if !ok {
		return m.parameterMissing("ComputerSystem.Reset", "ResetType")
	}
	kind, ok := v.(string)
	if !ok || !slices.Contains(m.spec.ResetTypes, kind) {
		return m.parameterValue("ComputerSystem.Reset", "ResetType", v)
	}
	do := &answer{status: http.StatusNoContent}
	do.act = func(now time.Time) { m.reset(i, kind, now) }
	return m.changed(req, m.vary.reset, do)
}

// patchSystem changes a system: its boot override and asset tag.
func (m *Machine) patchSystem(req *request, i int, settings bool) *answer {
	var o *Override
	for k, v := range req.body {
		switch {
		case k == "AssetTag" && !settings:
			if _, ok := v.(string); !ok {
				return m.propertyType("/AssetTag", v)
			}
		case k == "Boot":
			boot, ok := v.(object)
			if !ok {
				return m.propertyType("/Boot", v)
			}
			next, refusal := m.judgeBoot(i, boot, settings)
			if refusal != nil {
				return refusal
			}
			o = next
		case m.systemDocument(i)[k] != nil:
			return m.propertyNotWritable("/" + k)
		default:
			return m.propertyUnknown("/" + k)
		}
	}
	do := &answer{status: http.StatusNoContent}
	do.act = func(time.Time) {
		s := &m.st.Systems[i]
		if tag, ok := req.body["AssetTag"].(string); ok {
			s.AssetTag = tag
		}
		if o != nil && settings {
			s.Pending = o
		} else if o != nil {
			s.Override = *o
		}
	}
	do.render = func() object {
		if settings {
			return m.settingsDocument(i)
		}
		return m.systemDocument(i)
	}
	return m.changed(req, m.vary.patch, do)
}

func (m *Machine) biosVersion(i int) string {
	return pick(m.ident(i).rand("bios", 0), m.hw.BIOS, "")
}

func (m *Machine) biosDocument(i int) object {
	doc := m.typed("Bios", m.systemPath(i)+"/Bios", "Bios", "BIOS Configuration Current Settings")
	doc["AttributeRegistry"] = "BiosAttributeRegistry.v1_0_0"
	doc["Attributes"] = object{
		"BootMode": m.st.Systems[i].Override.Mode, "ProcVirtualization": "Enabled", "SriovGlobalEnable": "Enabled",
		"MemTest": "Disabled", "SystemMemorySize": fmt.Sprintf("%d GB", m.hw.Memory.Count*m.hw.Memory.SizeMiB/1024),
	}
	return m.dress("Bios", doc)
}

func (m *Machine) secureBootDocument(i int) object {
	doc := m.typed("SecureBoot", m.systemPath(i)+"/SecureBoot", "SecureBoot", "UEFI Secure Boot")
	doc["SecureBootEnable"] = false
	doc["SecureBootCurrentBoot"] = "Disabled"
	doc["SecureBootMode"] = "UserMode"
	return doc
}
