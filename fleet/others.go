package fleet

import (
	"maps"
	"strings"
)

// EventPrivate says whether events of a type go to the node's own tenant only
// (spec api.md, "Events").
func EventPrivate(eventType string) bool {
	for _, prefix := range []string{"security.", "node.provision.", "node.ssh-cert.", "node.hold.", "node.operation."} {
		if strings.HasPrefix(eventType, prefix) {
			return true
		}
	}
	return eventType == "node.adopting"
}

// ForOthers is the node as tenants see it that it does not belong to: what its
// owner said and does stays with the owner.
func (n Node) ForOthers() Node {
	n.CordonReason, n.Hold, n.Operations = "", nil, nil
	if n.Failed != nil {
		f := *n.Failed
		f.Cause, f.Remedy = "", ""
		n.Failed = &f
	}
	return n
}

// ByOwner is what an event of a tenant's thing says in its member by when it was
// the pool's owner that acted, who stays unnamed to the tenant.
const ByOwner = "owner"

// For is the event as a tenant sees it: whole when it is told of a node or pool of
// its own, or of an allocation, reservation or certificate of its own that it
// acted on itself.
func (e Event) For(tenantID string) Event {
	if e.TenantID == tenantID || e.Data["tenantId"] == tenantID && e.Data["by"] != ByOwner {
		return e
	}
	return e.ForOthers()
}

// ForOthers is the event as tenants see it that the node does not belong to. Of
// SSH certificates only the tenant that issued one hears, and it hears all.
func (e Event) ForOthers() Event {
	if strings.HasPrefix(e.Type, "node.ssh-cert.") {
		return e
	}
	e.Actor = "owner"
	e.Data = maps.Clone(e.Data)
	for _, member := range []string{"reason", "operationId", "allocations"} {
		delete(e.Data, member)
	}
	return e
}
