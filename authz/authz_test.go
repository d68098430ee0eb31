package authz_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/bettercompute/compute/authz"
	"github.com/bettercompute/compute/fleet"
)

func engine(t *testing.T) *authz.Engine {
	t.Helper()
	e, err := authz.New("")
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// The built-in policies are the table of roles, role by role and permission by
// permission.
func TestPoliciesAreTheRoles(t *testing.T) {
	t.Parallel()
	e := engine(t)
	for _, role := range fleet.Roles {
		for _, p := range authz.Permissions() {
			got := e.Allowed(authz.Request{Identity: "dev:x", Permission: p, Resource: fleet.OnNode, ResourceID: "n", Relation: authz.Own, Roles: []fleet.Role{role}})
			if want := role.Grants(p); got != want {
				t.Errorf("%s on %s: %v, want %v", role, p, got, want)
			}
		}
	}
}

// A tenant that sees a node through an offer reads it and does nothing else,
// whatever its role, unless the owner granted it by name.
func TestOfferedTenantOnlyReads(t *testing.T) {
	t.Parallel()
	e := engine(t)
	for _, p := range authz.Permissions() {
		r := authz.Request{Identity: "dev:x", Permission: p, Resource: fleet.OnNode, ResourceID: "n", Relation: authz.Offered, Roles: []fleet.Role{fleet.RoleOwner}}
		if got, want := e.Allowed(r), p == fleet.PermNodesRead || p == fleet.PermPoolsRead; got != want {
			t.Errorf("offered owner on %s: %v, want %v", p, got, want)
		}
	}
	named := authz.Request{Identity: "dev:x", Permission: fleet.PermNodesCordon, Resource: fleet.OnNode, ResourceID: "n", Relation: authz.Offered,
		Roles: []fleet.Role{fleet.RoleViewer}, Named: []fleet.Role{fleet.RoleOperator}}
	if !e.Allowed(named) {
		t.Error("an operator named by the owner may not cordon")
	}
	named.Permission = fleet.PermMetalRead
	if e.Allowed(named) {
		t.Error("the metal view is open to an offered tenant")
	}
}

// Nobody without a role may do anything.
func TestNoRole(t *testing.T) {
	t.Parallel()
	e := engine(t)
	for _, p := range authz.Permissions() {
		if e.Allowed(authz.Request{Identity: "dev:x", Permission: p, Resource: fleet.OnNode, ResourceID: "n", Relation: authz.Own}) {
			t.Errorf("no role, and %s is allowed", p)
		}
	}
}

// Policies that do not parse are refused, and the old ones stay.
func TestReloadRefused(t *testing.T) {
	t.Parallel()
	e := engine(t)
	bad := filepath.Join(t.TempDir(), "bad.cedar")
	if err := os.WriteFile(bad, []byte("permit (principal, action"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.Reload(bad); err == nil {
		t.Error("policies that do not parse were taken")
	}
	if !e.Allowed(authz.Request{Identity: "dev:x", Permission: fleet.PermNodesRead, Resource: fleet.OnNode, ResourceID: "n", Relation: authz.Own, Roles: []fleet.Role{fleet.RoleViewer}}) {
		t.Error("the old policies are gone")
	}
	if _, err := authz.New(bad); err == nil {
		t.Error("an engine started on policies that do not parse")
	}
}
