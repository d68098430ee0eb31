package fleet

import (
	"slices"
	"strings"
)

// Permission is the right to do one thing, named compute:<group>:<kebab-verb>.
type Permission string

// The permissions. The nodes permissions are the reference's.
const (
	PermNodesRead           Permission = "compute:nodes:read"
	PermNodesCordon         Permission = "compute:nodes:cordon"
	PermNodesDrain          Permission = "compute:nodes:drain"
	PermNodesUpdate         Permission = "compute:nodes:update"
	PermNodesProvision      Permission = "compute:nodes:provision"
	PermNodesRevokeIdentity Permission = "compute:nodes:revoke-identity"
	PermNodesDelete         Permission = "compute:nodes:delete"
	PermNodesSSHRoot        Permission = "compute:nodes:ssh-root"

	PermMetalRead           Permission = "compute:metal:read"
	PermMetalEnroll         Permission = "compute:metal:enroll"
	PermMetalUpdate         Permission = "compute:metal:update"
	PermMetalSetCredentials Permission = "compute:metal:set-credentials"
	PermMetalInspect        Permission = "compute:metal:inspect"
	PermMetalCommission     Permission = "compute:metal:commission"
	PermMetalDeploy         Permission = "compute:metal:deploy"
	PermMetalRescue         Permission = "compute:metal:rescue"
	PermMetalRelease        Permission = "compute:metal:release"
	PermMetalRetire         Permission = "compute:metal:retire"
	PermMetalRetireForce    Permission = "compute:metal:retire-force"
	PermMetalPower          Permission = "compute:metal:power"
	PermMetalManage         Permission = "compute:metal:manage"
	PermMetalHold           Permission = "compute:metal:hold"

	PermSitesRead   Permission = "compute:sites:read"
	PermSitesCreate Permission = "compute:sites:create"
	PermSitesUpdate Permission = "compute:sites:update"

	PermPoolsRead       Permission = "compute:pools:read"
	PermPoolsCreate     Permission = "compute:pools:create"
	PermPoolsUpdate     Permission = "compute:pools:update"
	PermPoolsArchive    Permission = "compute:pools:archive"
	PermPoolsOffer      Permission = "compute:pools:offer"
	PermPoolsUnoffer    Permission = "compute:pools:unoffer"
	PermPoolsAddNode    Permission = "compute:pools:add-node"
	PermPoolsRemoveNode Permission = "compute:pools:remove-node"

	PermReservationsRead   Permission = "compute:reservations:read"
	PermReservationsCreate Permission = "compute:reservations:create"
	PermReservationsCancel Permission = "compute:reservations:cancel"
	PermAllocationsRead    Permission = "compute:allocations:read"
	PermAllocationsCreate  Permission = "compute:allocations:create"
	PermAllocationsRelease Permission = "compute:allocations:release"

	PermOperationsRead Permission = "compute:operations:read"

	PermJoinTokensRead   Permission = "compute:join-tokens:read"
	PermJoinTokensCreate Permission = "compute:join-tokens:create"
	PermJoinTokensRevoke Permission = "compute:join-tokens:revoke"

	PermAccessRead        Permission = "compute:access:read"
	PermAccessGrant       Permission = "compute:access:grant"
	PermAccessRevoke      Permission = "compute:access:revoke"
	PermAccessIssueToken  Permission = "compute:access:issue-token"
	PermAccessRevokeToken Permission = "compute:access:revoke-token"
)

// Role is a named set of permissions.
type Role string

// The roles.
const (
	RoleViewer      Role = "viewer"
	RoleOperator    Role = "operator"
	RoleProvisioner Role = "provisioner"
	RoleOwner       Role = "owner"
	RoleBreakGlass  Role = "break-glass"
)

// Roles lists all roles.
var Roles = []Role{RoleViewer, RoleOperator, RoleProvisioner, RoleOwner, RoleBreakGlass}

// IsRead says whether the permission is one of reading.
func (p Permission) IsRead() bool { return strings.HasSuffix(string(p), ":read") }

// Group returns the middle part, the group of methods the permission is of.
func (p Permission) Group() string { return strings.Split(string(p), ":")[1] }

// Grants says whether a role holds a permission (spec api.md, table of roles).
// It is the source of the built-in Cedar policies, which are checked against
// it.
func (r Role) Grants(p Permission) bool {
	switch r {
	case RoleViewer:
		return p.IsRead()
	case RoleOperator:
		return RoleViewer.Grants(p) || slices.Contains([]Permission{PermNodesCordon, PermNodesDrain, PermNodesUpdate, PermMetalHold}, p) ||
			p.Group() == "allocations" || p.Group() == "reservations"
	case RoleProvisioner:
		return RoleOperator.Grants(p) || slices.Contains([]Permission{PermNodesProvision, PermNodesRevokeIdentity, PermNodesDelete,
			PermPoolsAddNode, PermPoolsRemoveNode}, p) ||
			(p.Group() == "metal" && p != PermMetalRetireForce) || p.Group() == "join-tokens"
	case RoleOwner:
		return p != PermNodesSSHRoot
	case RoleBreakGlass:
		return p == PermNodesRead || p == PermNodesSSHRoot
	default:
		return false
	}
}
