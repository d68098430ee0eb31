package api_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/api"
	"github.com/bettercompute/compute/devidp"
	"github.com/bettercompute/compute/fleet"
)

// mayRow says who holds a permission, by hand: the roles' initials (break-glass
// is b, owner is w). own is on what is the calling tenant's own; offered on what
// it sees through a pool that it is offered; granted on such a node, by a role
// that the node's owner granted by name.
type mayRow struct {
	permission            fleet.Permission
	own, offered, granted string
}

var may = []mayRow{
	{fleet.PermNodesRead, "vopwb", "vopwb", "vopwb"},
	{fleet.PermNodesCordon, "opw", "", "opw"},
	{fleet.PermNodesDrain, "opw", "", "opw"},
	{fleet.PermNodesUpdate, "opw", "", "opw"},
	{fleet.PermNodesProvision, "pw", "", "pw"},
	{fleet.PermNodesRevokeIdentity, "pw", "", "pw"},
	{fleet.PermNodesDelete, "pw", "", "pw"},
	{fleet.PermNodesSSHRoot, "b", "", "b"},
	{fleet.PermMetalRead, "vopw", "", ""},
	{fleet.PermMetalEnroll, "pw", "", ""},
	{fleet.PermMetalUpdate, "pw", "", ""},
	{fleet.PermMetalSetCredentials, "pw", "", ""},
	{fleet.PermMetalInspect, "pw", "", ""},
	{fleet.PermMetalCommission, "pw", "", ""},
	{fleet.PermMetalDeploy, "pw", "", ""},
	{fleet.PermMetalRescue, "pw", "", ""},
	{fleet.PermMetalRelease, "pw", "", ""},
	{fleet.PermMetalRetire, "pw", "", ""},
	{fleet.PermMetalRetireForce, "w", "", ""},
	{fleet.PermMetalPower, "pw", "", ""},
	{fleet.PermMetalManage, "pw", "", ""},
	{fleet.PermMetalHold, "opw", "", ""},
	{fleet.PermSitesRead, "vopw", "", ""},
	{fleet.PermSitesCreate, "w", "", ""},
	{fleet.PermSitesUpdate, "w", "", ""},
	{fleet.PermPoolsRead, "vopw", "vopw", ""},
	{fleet.PermPoolsCreate, "w", "", ""},
	{fleet.PermPoolsUpdate, "w", "", ""},
	{fleet.PermPoolsArchive, "w", "", ""},
	{fleet.PermPoolsOffer, "w", "", ""},
	{fleet.PermPoolsUnoffer, "w", "", ""},
	{fleet.PermPoolsAddNode, "pw", "", ""},
	{fleet.PermPoolsRemoveNode, "pw", "", ""},
	{fleet.PermReservationsRead, "vopw", "vopw", ""},
	{fleet.PermReservationsCreate, "opw", "opw", ""},
	{fleet.PermReservationsCancel, "opw", "opw", ""},
	{fleet.PermAllocationsRead, "vopw", "vopw", ""},
	{fleet.PermAllocationsCreate, "opw", "opw", ""},
	{fleet.PermAllocationsRelease, "opw", "opw", ""},
	{fleet.PermOperationsRead, "vopw", "", ""},
	{fleet.PermJoinTokensRead, "vopw", "", ""},
	{fleet.PermJoinTokensCreate, "pw", "", ""},
	{fleet.PermJoinTokensRevoke, "pw", "", ""},
	{fleet.PermAccessRead, "vopw", "", ""},
	{fleet.PermAccessGrant, "w", "", ""},
	{fleet.PermAccessRevoke, "w", "", ""},
	{fleet.PermAccessIssueToken, "w", "", ""},
	{fleet.PermAccessRevokeToken, "w", "", ""},
}

// initials are the roles in the order of the table.
var initials = []struct {
	role   fleet.Role
	letter string
}{{fleet.RoleViewer, "v"}, {fleet.RoleOperator, "o"}, {fleet.RoleProvisioner, "p"}, {fleet.RoleOwner, "w"}, {fleet.RoleBreakGlass, "b"}}

// matrixCase is a method with what it is decided as; force is the forced retire,
// and the methods without a permission of their own are decided as the node's
// operation, here an inspect.
type matrixCase struct {
	fleet.Method
	title string
	row   mayRow
	more  obj
}

func matrixCases(t *testing.T) []matrixCase {
	t.Helper()
	rowOf := func(m fleet.Method, p fleet.Permission) mayRow {
		i := slices.IndexFunc(may, func(r mayRow) bool { return r.permission == p })
		if i < 0 {
			t.Fatalf("%s needs %s, of which nobody wrote down who holds it: add its row to may in api/matrix_test.go", m.FullName(), p)
		}
		return may[i]
	}
	var out []matrixCase
	for _, m := range fleet.Methods {
		c := matrixCase{Method: m, title: m.FullName()}
		if m.Permission == "" {
			c.row = rowOf(m, fleet.PermMetalInspect)
			c.row.permission = "as the operation's verb"
		} else {
			c.row = rowOf(m, m.Permission)
		}
		out = append(out, c)
		if m.FullName() == "metal/retire" {
			out = append(out, matrixCase{Method: m, title: "metal/retire with force", row: rowOf(m, fleet.PermMetalRetireForce),
				more: obj{"force": true, "reason": "r"}})
		}
	}
	return out
}

// The relations of a caller's tenant to what a call is on.
var relations = []string{"own", "offered", "granted", "foreign", "absent"}

// relationsOf are those that a kind of thing can have. Nothing is granted by
// name but nodes, and what belongs to a tenant is its own or not there.
func relationsOf(r fleet.Resource) []string {
	switch r {
	case fleet.OnNode:
		return relations
	case fleet.OnPool, fleet.OnOperation:
		return []string{"own", "offered", "foreign", "absent"}
	case fleet.OnSite, fleet.OnReservation, fleet.OnAllocation:
		return []string{"own", "foreign", "absent"}
	default:
		return []string{"own", "foreign"}
	}
}

// wants is what a call is to come to: permitted, denied, not found.
func (c matrixCase) wants(relation, letter string, mfa bool) string {
	holders := map[string]string{"own": c.row.own, "offered": c.row.offered, "granted": c.row.granted}[relation]
	switch {
	case relation == "foreign" && c.Resource == fleet.OnTenant:
		return "denied" // no role in that tenant
	case relation == "foreign" || relation == "absent":
		return "not found"
	case relation == "offered" && (c.OwnerOnly || c.Resource == fleet.OnOperation):
		return "not found"
	case relation == "granted" && c.row.permission == fleet.PermNodesRead:
		return "permitted"
	case !strings.Contains(holders, letter):
		return "denied"
	case c.FullName() == "nodes/issueSshCert" && !mfa:
		return "denied"
	}
	return "permitted"
}

// The reservation and the allocation of acme in its pool.
const (
	matrixReservation = "resv_01j00000000000000000000001"
	matrixAllocation  = "alloc_01j00000000000000000000001"
)

// matrixRig has a node, pool, site and operation of acme that globex is offered
// and umbrella knows nothing of, and somebody of each role in each.
type matrixRig struct {
	*sshRig
	pool, operation string
}

func newMatrixRig(t *testing.T) *matrixRig {
	t.Helper()
	r := &matrixRig{sshRig: newSSHRig(t, api.SSHOptions{PerHour: 1e6})}
	if _, err := r.store.CreateTenant(t.Context(), "umbrella", "dev:owner3"); err != nil {
		t.Fatal(err)
	}
	r.pool = r.offeredPool(r.node)
	r.exec(`INSERT INTO reservations (id, tenant_id, pool_id, gpus, starts_at, ends_at, created_by) VALUES ($1, 'acme', $2, 1, now() + interval '1 day', now() + interval '2 days', 'dev:owner')`,
		matrixReservation, r.pool)
	r.exec(`INSERT INTO allocations (id, tenant_id, pool_id, holder, gpus, state) VALUES ($1, 'acme', $2, 'job', 1, 'queued')`, matrixAllocation, r.pool)
	r.operation = r.text(`SELECT id FROM operations WHERE node_id = $1`, r.node)
	r.exec(`UPDATE operations SET verb = 'inspect', state = 'failed', parked = true, ended_at = NULL WHERE id = $1`, r.operation)
	for _, i := range initials {
		for _, mfa := range []bool{true, false} {
			for _, tenant := range []string{"acme", "globex", "umbrella"} {
				subject := caller(tenant, i.letter, mfa)
				r.grant(tenant, subject, i.role)
				r.session(subject, devidp.Token{MFA: mfa, TTL: 8 * time.Hour})
			}
			named := caller("granted", i.letter, mfa)
			r.grant("globex", named, fleet.RoleViewer)
			r.exec(`INSERT INTO bindings (id, tenant_id, identity, role, on_node, granted_by) VALUES ($1, 'acme', 'dev:' || $1, $2, $3, 'dev:owner')`,
				named, string(i.role), r.node)
			r.session(named, devidp.Token{MFA: mfa, TTL: 8 * time.Hour})
		}
	}
	return r
}

func caller(tenant, letter string, mfa bool) string {
	return fmt.Sprintf("%s-%s-%v", tenant, letter, mfa)
}

// input is a call's, with a version that nothing has, so that what is permitted
// goes no further.
func (r *matrixRig) input(c matrixCase, relation string, n int) (subject func(letter string, mfa bool) string, in obj) {
	tenant := map[string]string{"own": "acme", "absent": "acme", "offered": "globex", "granted": "globex", "foreign": "umbrella"}[relation]
	who := tenant
	if relation == "granted" {
		who = "granted"
	}
	if relation == "foreign" && c.Resource == fleet.OnTenant {
		tenant = "acme"
	}
	ids := map[fleet.Resource][3]string{fleet.OnNode: {"nodeId", r.node, absentNode}, fleet.OnPool: {"poolId", r.pool, "pool_absent"},
		fleet.OnSite: {"siteId", r.site, "site_01j00000000000000000000000"}, fleet.OnOperation: {"operationId", r.operation, "op_01j00000000000000000000000"},
		fleet.OnReservation: {"reservationId", matrixReservation, "resv_01j00000000000000000000000"},
		fleet.OnAllocation:  {"allocationId", matrixAllocation, "alloc_01j00000000000000000000000"}}
	in = fillIn(required[c.FullName()], strings.NewReplacer("$node", r.node, "$pool", r.pool, "$site", r.site, "$tenant", tenant,
		"$name", fmt.Sprintf("n-%d-%s", n, strings.ToLower(relation))))
	in["tenantId"] = tenant
	if id, ok := ids[c.Resource]; ok {
		in[id[0]] = id[1]
		if relation == "absent" {
			in[id[0]] = id[2]
		}
	}
	if _, ok := reflect.TypeOf(c.In).FieldByName("Version"); ok {
		in["version"] = 900000
	}
	if c.FullName() == "nodes/issueSshCert" {
		in["publicKey"] = r.key
	}
	for name, v := range c.more {
		in[name] = v
	}
	return func(letter string, mfa bool) string { return caller(who, letter, mfa) }, in
}

func fillIn(v obj, words *strings.Replacer) obj {
	out := obj{}
	for name, e := range v {
		switch x := e.(type) {
		case string:
			out[name] = words.Replace(x)
		case obj:
			out[name] = fillIn(x, words)
		default:
			out[name] = e
		}
	}
	return out
}

// came says what a call came to.
func came(p *problem, c matrixCase) string {
	kind := strings.TrimPrefix(string(c.Resource), "compute-")
	switch {
	case p == nil:
		return "permitted"
	case p.Code == fleet.CodeAccessDenied:
		return "denied"
	case p.Code == fleet.CodeNotFound && p.Detail == fleet.NotFound(kind).Detail:
		return "not found"
	case p.Reason == "no-capacity" || p.HTTP == 501: // of an empty pool, and of what is off
		return "permitted"
	case p.Code == fleet.CodeInvalidInput || p.HTTP >= 500 || p.HTTP == 401:
		return fmt.Sprintf("%+v", *p)
	}
	return "permitted"
}

// Every method, by every role, with a second factor and without, on what is the
// tenant's own, what it is offered, what it was granted by name, what it cannot
// see and what is not there, comes to what was written down by hand.
func TestAuthorizationMatrix(t *testing.T) {
	t.Parallel()
	r := newMatrixRig(t)
	for n, c := range matrixCases(t) {
		t.Run(c.title, func(t *testing.T) {
			for _, relation := range relationsOf(c.Resource) {
				for i, role := range initials {
					for _, mfa := range []bool{true, false} {
						subject, in := r.input(c, relation, 100*n+10*i+int(b2i(mfa)))
						p := r.call(subject(role.letter, mfa), c.FullName(), in, nil)
						if got, want := came(p, c), c.wants(relation, role.letter, mfa); got != want {
							t.Errorf("%s on what is %s, MFA %v: %s, want %s", role.role, relation, mfa, got, want)
						}
					}
				}
			}
		})
	}
}

// The table of the documentation is the one that was written down by hand.
func TestAuthorizationDocument(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(`# Who may do what

Each method is decided by one permission on one resource. A role is bound on a tenant, a pool or a node (` + "`access/grant`" + `) and holds its permissions on what lies below. This is the built-in set of policies; ` + "`authz/policies.cedar`" + ` is its text, and an operator can replace it.

- **own**: the tenant that calls owns it. A node belongs to the tenant that enrolled or joined it.
- **offered**: the tenant sees it through a pool that it is offered.
- **granted**: a node that the tenant is offered, by a role that the node's owner granted to the identity by name.

What a tenant cannot see answers as what is not there, ` + "`NOT_FOUND`" + `, whatever the role; so do a pool's owner-only methods to every other tenant, and the operations of a node to others than its tenant. What it sees and the identity may not do is ` + "`ACCESS_DENIED`" + `. An identity without any role in the tenant is ` + "`ACCESS_DENIED`" + ` before anything is looked up.

A second factor is asked for by ` + "`nodes/issueSshCert`" + ` alone (by default).

| method | permission | viewer | operator | provisioner | owner | break-glass |
|---|---|---|---|---|---|---|
`)
	for _, c := range matrixCases(t) {
		fmt.Fprintf(&b, "| %s | %s |", c.title, c.row.permission)
		for _, i := range initials {
			var cell []string
			for _, relation := range relationsOf(c.Resource) {
				if c.wants(relation, i.letter, true) == "permitted" {
					cell = append(cell, relation)
				}
			}
			if cell == nil {
				cell = []string{"–"}
			}
			fmt.Fprintf(&b, " %s |", strings.Join(cell, ", "))
		}
		b.WriteString("\n")
	}
	file := filepath.Join("..", "docs", "authorization.md")
	if api.Update() {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(have), b.String()); diff != "" {
		t.Errorf("docs/authorization.md is not as the table makes it (make generate):\n%s", diff)
	}
}
