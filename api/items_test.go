package api_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/api"
	"github.com/bettercompute/compute/authz"
	"github.com/bettercompute/compute/fleet"
)

// withPolicies is the API by an operator's own policies.
func (r *rig) withPolicies(text string) *rig {
	r.t.Helper()
	file := filepath.Join(r.t.TempDir(), "policies.cedar")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	policies, err := authz.New(file)
	if err != nil {
		r.t.Fatal(err)
	}
	_, url := r.serveWith(api.Options{CallsPerSecond: 1e6, Authz: policies})
	return r.at(url)
}

// listed reads a list to its end in pages of a size and returns how many items
// each page had and the ids of all.
func (r *rig) listed(subject, method string, limit int) (pages []int, ids []string) {
	r.t.Helper()
	for cursor := ""; ; {
		in := obj{"tenantId": "acme", "limit": limit}
		if cursor != "" {
			in["cursor"] = cursor
		}
		var page struct {
			Items      []struct{ ID string }
			NextCursor string
		}
		r.ok(subject, method, in, &page)
		pages = append(pages, len(page.Items))
		for _, item := range page.Items {
			ids = append(ids, item.ID)
		}
		if cursor = page.NextCursor; cursor == "" {
			return pages, ids
		}
	}
}

// What a caller may not read is left out of what it lists and of its stream: a
// page can be short, or empty, and still have a next one.
func TestItemsAreDecidedEach(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	r.deployed(pool, 4)
	var operations, allocations, reservations []string
	for i := range 3 {
		r.enrolled(fmt.Sprintf("127.0.0.%d", 9+i), fleet.Ready)
		allocations = append(allocations, r.mustTake("owner", take("acme", pool, 1, "ttlSeconds", 60)).ID)
		reservations = append(reservations, r.mustReserve("owner", reserve("acme", pool, 1, time.Hour, 2*time.Hour)).ID)
	}
	_, nodes := r.listed("viewer", "nodes/list", 50)
	_, operations = r.listed("viewer", "operations/list", 50)
	hidden := map[string]string{"Node": nodes[1], "Operation": operations[1], "Allocation": allocations[1], "Reservation": reservations[1]}
	var unless []string
	for kind, id := range hidden {
		unless = append(unless, fmt.Sprintf("resource == %s::%q", kind, id))
	}
	own := r.withPolicies(`permit (principal, action in Action::"read", resource) unless { ` + strings.Join(unless, " || ") + ` };`)
	own.refused("viewer", "nodes/get", on(nodes[1]), fleet.CodeAccessDenied, "not-permitted")
	for method, all := range map[string][]string{"nodes/list": nodes, "metal/list": nodes, "operations/list": operations, "allocations/list": allocations,
		"reservations/list": reservations} {
		pages, got := own.listed("viewer", method, 1)
		if diff := cmp.Diff(slices.Delete(slices.Clone(all), 1, 2), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", method, diff)
		}
		if len(pages) != len(all) || pages[1] != 0 {
			t.Errorf("%s: items a page %v, want the second empty", method, pages)
		}
	}
	r.ok("owner", "nodes/cordon", on(nodes[1]), nil)
	r.ok("owner", "nodes/cordon", on(nodes[2]), nil)
	for _, m := range own.stream("viewer", "cursor=0:0", func(m sse) bool { return strings.Contains(m.data, nodes[2]) && m.event == "node.cordoned" }) {
		if strings.Contains(m.data, nodes[1]) {
			t.Errorf("the stream tells %s", m.data)
		}
	}
}

// A decision that cannot be made is a refusal, whatever other policies say.
func TestPolicyThatFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	broken := r.withPolicies(`permit (principal, action, resource);
		forbid (principal, action, resource) when { context.nothing == 1 };`)
	broken.refused("owner", "nodes/list", obj{"tenantId": "acme"}, fleet.CodeAccessDenied, "not-permitted")
	broken.refused("owner", "sites/create", obj{"tenantId": "acme", "name": "x"}, fleet.CodeAccessDenied, "not-permitted")
}
