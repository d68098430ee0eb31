package api_test

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/api"
	"github.com/bettercompute/compute/devidp"
	"github.com/bettercompute/compute/fleet"
)

// contractCase is a sentence of the reference's prose with calls that show it.
type contractCase struct {
	Rule  string
	Given contractGiven
	Do    []contractStep
}

// contractGiven is how the case finds its node.
type contractGiven struct {
	State            string
	FailedFrom       string `yaml:"failedFrom"`
	Cordoned         bool
	CordonReason     string `yaml:"cordonReason"`
	Reasons          []string
	Labels           map[string]string
	Certificates     int
	Session, Offered bool
	Allocated        bool
	PastAllocation   bool `yaml:"pastAllocation"`
	Absent           bool
}

// contractStep is one call and what is expected of it. What is not said is not
// looked at.
type contractStep struct {
	// As calls for a tenant, by default the owner for acme; Method is another one
	// than the file's.
	As, Tenant, Method string
	// With are the members beside tenant, node and what is required; Bare leaves
	// out what is required.
	With obj
	Bare bool
	// Work does what a controller does before the call: drain looks at the node.
	// Expire lets SSH certificates end after it.
	Work   string
	Expire bool

	// Refused is the code and, when given, the reason. Fields are those named.
	Refused string
	Fields  []string
	// Answers are members that the answer has, Without members that it has not.
	Answers obj
	Without []string
	// Unchanged: the answer is the node as it was, and nothing is published.
	Unchanged bool
	// Version is by how much the node's rises; Publishes the events in order;
	// Event members of the last one's data.
	Version   *int
	Publishes []string
	Event     obj
	// Reconciler says whether the node's is queued by the call.
	Reconciler *bool
	// Lists says whether the node is in the list; Pages that the list is the same
	// in pages of that size, in id order.
	Lists *bool
	Pages int
	// EventTypes are the types that are listed.
	EventTypes []string `yaml:"eventTypes"`
	// Allocations counts live ones, Certificates SSH certificates, Revoked
	// certificates by reason; Drains is the state of the node's last drain.
	Allocations, Certificates *int
	Revoked                   map[string]int
	Drains                    string
	// Referenced: audit rows and past allocations name the node.
	Referenced bool
}

// contractRun is one case under way.
type contractRun struct {
	*sshRig
	t      *testing.T
	method string
	node   string
	pool   string
	// cursor and serial are of the answers before.
	cursor, serial string
}

// Each sentence of the reference's prose holds.
func TestContractCases(t *testing.T) {
	t.Parallel()
	for _, c := range contracts(t) {
		t.Run(c.Method, func(t *testing.T) {
			t.Parallel()
			if len(c.Cases) == 0 {
				t.Fatal("no case says what the prose says")
			}
			r := newSSHRig(t, api.SSHOptions{PerHour: 1e6, Accounts: []string{"root", "ops"}})
			r.grant("acme", "provisioner", fleet.RoleProvisioner)
			for _, subject := range []string{"oncall-password", "oncall-leaving"} {
				r.grant("acme", subject, fleet.RoleBreakGlass)
			}
			r.session("oncall-leaving", devidp.Token{MFA: true, TTL: 30 * time.Second})
			for i, cc := range c.Cases {
				t.Run(strconv.Itoa(i+1), func(t *testing.T) {
					r.rig.t = t
					run := &contractRun{sshRig: r, t: t, method: c.Method}
					run.given(i, cc.Given)
					for n, s := range cc.Do {
						run.step(fmt.Sprintf("%s\nstep %d", cc.Rule, n+1), s)
					}
				})
			}
		})
	}
}

// given makes the case's node.
func (r *contractRun) given(i int, g contractGiven) {
	r.t.Helper()
	r.node = absentNode
	if g.Absent {
		return
	}
	state := fleet.ProvisionState(g.State)
	if state == "" {
		state = fleet.Ready
	}
	made := r.enrolled(fmt.Sprintf("127.0.2.%d", i+1), fleet.Ready)
	r.node = made.ID
	labels, reasons := g.Labels, g.Reasons
	if labels == nil {
		labels = map[string]string{}
	}
	if reasons == nil {
		reasons = []string{}
	}
	var failed any
	if g.FailedFrom != "" {
		failed = fleet.Failure{From: fleet.ProvisionState(g.FailedFrom), Step: "s"}
	}
	guarded := state == fleet.Adopted || state == fleet.Adopting
	r.exec(`UPDATE nodes SET provision_state = $2, failed = $3, cordoned = $4, cordon_reason = NULLIF($5, ''), no_schedule_reasons = $6, labels = $7, guarded = $8 WHERE id = $1`,
		r.node, string(state), failed, g.Cordoned, g.CordonReason, reasons, labels, guarded)
	r.exec(`DELETE FROM reconcile_wanted WHERE node_id = $1`, r.node)
	for n := range g.Certificates {
		r.exec(`INSERT INTO certificates (serial, node_id, generation, not_after) VALUES ($1 || '-' || $2, $1, 0, now() + interval '1 day')`, r.node, strconv.Itoa(n))
	}
	if g.Session {
		r.exec(`INSERT INTO sessions (node_id, epoch, gateway, connected_at, last_seen_at) VALUES ($1, 3, 'gw-1', now(), now())`, r.node)
		r.exec(`INSERT INTO conditions (node_id, type, status) VALUES ($1, 'Connected', 'True')`, r.node)
	}
	if g.Offered {
		r.pool = r.offeredPool(r.node)
	}
	if g.Allocated {
		r.allocate(r.node, "alloc_of_"+r.node, "dev:ann")
	}
	if g.PastAllocation {
		r.allocate(r.node, "alloc_of_"+r.node, "dev:ann")
		r.exec(`UPDATE allocations SET state = 'released' WHERE node_id = $1`, r.node)
	}
}

// fill replaces the words of a case by what they stand for.
func (r *contractRun) fill(v any, version int64) any {
	switch x := v.(type) {
	case string:
		switch x {
		case "$version":
			return version
		case "$stale":
			return max(version-1, 1) + 1000*b2i(version == 1)
		case "$future":
			return version + 1
		}
		return strings.NewReplacer("$node", r.node, "$pool", r.pool, "$site", r.site, "$cursor", r.cursor, "$serial", r.serial).Replace(x)
	case obj:
		out := obj{}
		for k, e := range x {
			out[k] = r.fill(e, version)
		}
		return out
	case []any:
		out := make([]any, len(x))
		for i, e := range x {
			out[i] = r.fill(e, version)
		}
		return out
	}
	return v
}

func b2i(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// standing is what a step can change.
type standing struct {
	version int64
	node    any
	events  int
}

func (r *contractRun) standing() standing {
	r.t.Helper()
	s := standing{events: r.count(`SELECT count(*) FROM events WHERE node_id = $1`, r.node)}
	if r.count(`SELECT count(*) FROM nodes WHERE id = $1`, r.node) == 0 {
		return s
	}
	s.version = int64(r.count(`SELECT version FROM nodes WHERE id = $1`, r.node))
	var out struct{ Node any }
	if p := r.call("owner", "nodes/get", on(r.node), &out); p == nil {
		s.node = out.Node
	}
	return s
}

func (r *contractRun) step(at string, s contractStep) {
	r.t.Helper()
	before := r.standing()
	method := "nodes/" + r.method
	if s.Method != "" {
		method = "nodes/" + s.Method
	}
	m, _ := fleet.FindMethod("nodes", strings.TrimPrefix(method, "nodes/"))
	in := obj{}
	if m.Resource == fleet.OnNode {
		in["nodeId"] = r.node
	}
	if !s.Bare && s.With["set"] == nil && s.With["remove"] == nil && s.With["add"] == nil {
		maps.Copy(in, required[method])
		if method == "nodes/issueSshCert" {
			in["publicKey"] = r.key
		}
	}
	maps.Copy(in, r.fill(s.With, before.version).(obj))
	as, tenant := s.As, s.Tenant
	if as == "" {
		as = "owner"
	}
	if tenant == "" {
		tenant = "acme"
	}
	in["tenantId"] = tenant
	if s.Work == "drain" {
		drain := r.text(`SELECT id FROM operations WHERE node_id = $1 AND lane = 'drain'`, r.node)
		r.began(drain)
		if _, err := r.store.FinishDrain(r.t.Context(), drain); err != nil {
			r.t.Fatal(err)
		}
	}
	if s.Reconciler != nil {
		r.exec(`DELETE FROM reconcile_wanted WHERE node_id = $1`, r.node)
	}
	if s.EventTypes != nil {
		r.events(r.node) // until all that are written can be read
	}
	var answer any
	p := r.call(as, method, in, &answer)
	r.keep(answer)
	r.judge(at, s, before, p, answer)
	if s.Expire {
		r.exec(`UPDATE ssh_certs SET valid_before = now() - interval '1 minute', valid_after = now() - interval '1 hour' WHERE node_id = $1`, r.node)
	}
}

// keep notes what later steps can name.
func (r *contractRun) keep(answer any) {
	if c, ok := member(answer, "nextCursor").(string); ok {
		r.cursor = c
	}
	if s, ok := member(answer, "sshCert.serial").(string); ok {
		r.serial = s
	}
}
