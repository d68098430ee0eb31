package sim

import (
	"net/http"
	"slices"
	"strings"
)

var overrideEnabled = []string{"Disabled", "Once", "Continuous"}

// bootMember is the Boot object that shows an override.
func (m *Machine) bootMember(i int, o Override) object {
	b := object{"BootSourceOverrideEnabled": o.Enabled, "BootSourceOverrideTarget": o.Target,
		"BootSourceOverrideTarget@Redfish.AllowableValues": anyList(m.bootTargets()),
		"BootOrder": []any{"Boot0001", "Boot0002", "Boot0003"}}
	if m.prof.Boot.Enabled {
		b["BootSourceOverrideEnabled@Redfish.AllowableValues"] = anyList(overrideEnabled)
	}
	if m.prof.Boot.Mode != "" {
		b["BootSourceOverrideMode"] = o.Mode
		if len(m.prof.Boot.Modes) > 0 {
			b["BootSourceOverrideMode@Redfish.AllowableValues"] = anyList(m.prof.Boot.Modes)
		}
	}
	if m.prof.Boot.HTTPBoot {
		b["HttpBootUri"] = o.HTTPBootURI
	}
	return b
}

func (m *Machine) bootTargets() []string {
	if m.prof.Boot.HTTPBoot {
		return m.prof.Boot.Targets
	}
	return slices.DeleteFunc(slices.Clone(m.prof.Boot.Targets), func(t string) bool { return t == "UefiHttp" })
}

// findSettings is the settings resource: where the boot override is written on
// machines whose boot settings live there, and a decoy on others.
func (m *Machine) findSettings(i int) *resource {
	switch m.spec.BootHome {
	case "settings":
		return &resource{get: func(*request) object { return m.settingsDocument(i) },
			patch: func(req *request) *answer { return m.patchSystem(req, i, true) }}
	case "liveWithDecoy":
		return &resource{get: func(*request) object {
			return m.typed("ComputerSystem", m.systemPath(i)+"/"+m.prof.IDs.Settings, m.prof.IDs.Settings, "Pending Settings")
		}, patch: func(req *request) *answer {
			for k := range req.body {
				return m.propertyNotWritable("/" + k)
			}
			return m.success(http.StatusNoContent)
		}}
	}
	return nil
}

func (m *Machine) settingsDocument(i int) object {
	s := &m.st.Systems[i]
	doc := m.typed("ComputerSystem", m.systemPath(i)+"/"+m.prof.IDs.Settings, m.prof.IDs.Settings, s.Name+" Pending Settings")
	o := s.Override
	if s.Pending != nil {
		o = *s.Pending
	}
	doc["Boot"] = m.bootMember(i, o)
	return doc
}

// judgeBoot judges a wanted override, and makes it from the present one.
func (m *Machine) judgeBoot(i int, boot object, settings bool) (*Override, *answer) {
	if m.spec.BootHome == "settings" && !settings {
		return nil, m.errorAnswer(http.StatusBadRequest, fault{id: "OperationSupportedInFutureStateURI",
			text: "Boot properties can be changed only at the settings URI of this resource.", property: "/Boot"})
	}
	s := &m.st.Systems[i]
	o := s.Override
	if settings && s.Pending != nil {
		o = *s.Pending
	}
	for k, v := range boot {
		into, allowed := m.bootProperty(k, &o)
		if into == nil {
			return nil, m.unknownBoot(k)
		}
		text, ok := v.(string)
		if !ok {
			return nil, m.propertyType("/Boot/"+k, v)
		}
		if allowed != nil && !slices.Contains(allowed, text) {
			return nil, m.valueNotInList("/Boot/"+k, v)
		}
		*into = text
	}
	// A target without Enabled on a disabled override stays without effect, as
	// does an override that is disabled while a target is named.
	if o.Enabled == "Disabled" {
		o.Target = "None"
	}
	return &o, nil
}

// bootProperty is where a member of Boot is kept, and what it may be; nil = it
// is not writable here.
func (m *Machine) bootProperty(k string, o *Override) (*string, []string) {
	switch k {
	case "BootSourceOverrideEnabled":
		return &o.Enabled, overrideEnabled
	case "BootSourceOverrideTarget":
		return &o.Target, m.bootTargets()
	case "BootSourceOverrideMode":
		if m.prof.Boot.Mode != "" {
			return &o.Mode, []string{"UEFI", "Legacy"}
		}
	case "HttpBootUri":
		if m.prof.Boot.HTTPBoot {
			return &o.HTTPBootURI, nil
		}
	}
	return nil, nil
}

func (m *Machine) unknownBoot(k string) *answer {
	if k == "BootOrder" || strings.Contains(k, "@") {
		return m.propertyNotWritable("/Boot/" + k)
	}
	return m.propertyUnknown("/Boot/" + k)
}
