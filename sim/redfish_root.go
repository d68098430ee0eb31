package sim

import (
	"net/http"
	"time"
)

// find is the resource at a path below the service root; nil = there is none.
func (m *Machine) find(segments []string) *resource {
	if len(segments) == 0 {
		return &resource{get: m.rootDocument}
	}
	rest := segments[1:]
	switch segments[0] {
	case "odata":
		return &resource{get: m.odataDocument}
	case "Systems":
		return m.findSystems(rest)
	case "Managers":
		return m.findManagers(rest)
	case "Chassis":
		return m.findChassis(rest)
	case "SessionService":
		return m.findSessionService(rest)
	case "AccountService":
		return m.findAccountService(rest)
	case "TaskService":
		return m.findTaskService(rest)
	case "UpdateService":
		return m.findUpdateService(rest)
	}
	return nil
}

func (m *Machine) rootDocument(*request) object {
	doc := m.typed("ServiceRoot", serviceRoot, "RootService", m.prof.Names.Root)
	for member, path := range map[string]string{
		"Systems": "Systems", "Managers": "Managers", "Chassis": "Chassis", "SessionService": "SessionService",
		"AccountService": "AccountService", "Tasks": "TaskService", "UpdateService": "UpdateService",
	} {
		doc[member] = link(serviceRoot + "/" + path)
	}
	doc["RedfishVersion"] = m.prof.RedfishVersion
	doc["UUID"] = m.st.Manager.UUID
	doc["Links"] = object{"Sessions": link(sessionsPath)}
	if m.prof.Vendor != "" {
		doc["Vendor"] = m.prof.Vendor
	}
	if m.prof.Product != "" {
		doc["Product"] = m.prof.Product
	}
	doc["ProtocolFeaturesSupported"] = object{
		"ExpandQuery": object{"ExpandAll": m.vary.expand, "Levels": m.vary.expand, "Links": m.vary.expand,
			"NoLinks": m.vary.expand, "MaxLevels": 1},
		"FilterQuery": false, "SelectQuery": false, "OnlyMemberQuery": false,
	}
	return m.dress("ServiceRoot", doc)
}

func (m *Machine) odataDocument(*request) object {
	entry := func(name string) object {
		return object{"name": name, "kind": "Singleton", "url": serviceRoot + "/" + name}
	}
	return object{"@odata.context": serviceRoot + "/$metadata", "value": []any{
		object{"name": "Service", "kind": "Singleton", "url": serviceRoot + "/"},
		entry("Systems"), entry("Chassis"), entry("Managers"), entry("TaskService"), entry("AccountService"),
		entry("SessionService"), entry("UpdateService"),
	}}
}

const metadata = `<?xml version="1.0" encoding="UTF-8"?>
<edmx:Edmx xmlns:edmx="http://docs.oasis-open.org/odata/ns/edmx" Version="4.0"><edmx:DataServices>` +
	`<Schema xmlns="http://docs.oasis-open.org/odata/ns/edm" Namespace="Service">` +
	`<EntityContainer Name="Service" Extends="ServiceRoot.v1_15_0.ServiceContainer"/></Schema></edmx:DataServices></edmx:Edmx>`

func metadataAnswer() *answer {
	return &answer{status: http.StatusOK, raw: []byte(metadata), header: map[string]string{"Content-Type": "application/xml"}}
}

func status(health string) object {
	return object{"State": "Enabled", "Health": health, "HealthRollup": health}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
