package store_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/storetest"
)

const (
	specNode = "node_01arz3ndektsv4rrffq69g5fav"
	someCA   = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAA"
	otherCA  = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBBB"
)

// specs is a store with a joined node and one that has not joined.
type specs struct {
	*store.Store
	t *testing.T
}

func newSpecs(t *testing.T) *specs {
	t.Helper()
	s := &specs{store.New(storetest.New(t), store.Options{}), t}
	t.Cleanup(s.Close)
	for _, sql := range []string{
		`INSERT INTO tenants (id) VALUES ('acme')`,
		`INSERT INTO sites (id, tenant_id, name, spec) VALUES ('site_1', 'acme', 'one', '{"name": "one"}')`,
		`INSERT INTO nodes (id, tenant_id, site_id, provision_state) VALUES ('` + specNode + `', 'acme', 'site_1', 'adopted'), ('node_y', 'acme', 'site_1', 'ready')`,
		`INSERT INTO node_keys (hash, node_id) VALUES ('h', '` + specNode + `')`,
	} {
		if _, err := s.Pool().Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *specs) tx(fn func(ctx context.Context, tx pgx.Tx) error) {
	s.t.Helper()
	if err := s.InTx(s.t.Context(), fn); err != nil {
		s.t.Fatal(err)
	}
}

// spec queues the nodes whose spec is outdated, which must be so many, runs the
// reconciler and returns the joined node's spec.
func (s *specs) spec(outdated int) *fleet.NodeSpec {
	s.t.Helper()
	if n, err := s.SyncSSH(s.t.Context()); err != nil || n != outdated {
		s.t.Errorf("%d nodes are outdated (%v), want %d", n, err, outdated)
	}
	if _, err := s.Reconcile(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	spec, err := s.NodeSpecBeside(s.t.Context(), specNode, 0, "")
	if err != nil {
		s.t.Fatal(err)
	}
	return spec
}

// issue records a certificate that ends then.
func (s *specs) issue(end time.Time) (c fleet.SSHCert, serial uint64) {
	s.t.Helper()
	s.tx(func(ctx context.Context, tx pgx.Tx) error {
		var err error
		if err = store.LockNode(ctx, tx, specNode); err != nil {
			return err
		}
		c, err = store.InsertSSHCert(ctx, tx, store.NewSSHCert{NodeID: specNode, TenantID: "acme", Principal: "root@" + specNode, IssuedBy: "dev:oncall",
			KeyHash: "h", ValidAfter: end.Add(-time.Hour), ValidBefore: end})
		return err
	})
	serial, err := strconv.ParseUint(c.Serial, 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return c, serial
}

func (s *specs) revoke(serial uint64) {
	s.t.Helper()
	s.tx(func(ctx context.Context, tx pgx.Tx) error {
		if err := store.LockNode(ctx, tx, specNode); err != nil {
			return err
		}
		_, err := store.RevokeSSHCert(ctx, tx, store.SSHCertRef{NodeID: specNode, TenantID: "acme", Serial: serial}, "dev:oncall", nil)
		return err
	})
}

func (s *specs) publish(accounts ...string) {
	s.t.Helper()
	if trusted, err := s.PublishSSH(s.t.Context(), someCA, accounts); err != nil || !trusted {
		s.t.Fatalf("publish: trusted %v, %v", trusted, err)
	}
}

// A NodeSpec follows CAs, accounts, revocations and labels, each with a new
// version, and nothing else makes one.
func TestNodeSpecFollowsSSH(t *testing.T) {
	t.Parallel()
	s := newSpecs(t)
	s.tx(func(ctx context.Context, tx pgx.Tx) error { return store.WantReconcile(ctx, tx, specNode) })
	if spec := s.spec(0); spec.Version != 1 || spec.SSH != nil {
		t.Errorf("without a CA: %+v", spec)
	}
	first := s.spec(0)
	if again, err := s.NodeSpecBeside(t.Context(), specNode, first.Version, first.Tag); err != nil || again != nil {
		t.Errorf("to who knows it: %+v (%v)", again, err)
	}
	for _, known := range []fleet.NodeSpec{{Version: 2, Tag: first.Tag}, {Version: 1, Tag: "another"}, {Version: 1}} {
		if again, err := s.NodeSpecBeside(t.Context(), specNode, known.Version, known.Tag); err != nil || again == nil {
			t.Errorf("to who knows %+v: %+v (%v)", known, again, err)
		}
	}
	s.publish("root", "ops")
	spec := s.spec(1)
	if spec.Tag == "" || spec.Tag == first.Tag {
		t.Errorf("the tag %q, of the version before %q", spec.Tag, first.Tag)
	}
	if spec.Version != 2 || !slices.Equal(spec.SSH.CAKeys, []string{someCA}) || len(spec.SSH.Principals) != 2 || spec.SSH.Principals["ops"][0] != "ops@"+specNode {
		t.Errorf("with a CA: %+v %+v", spec, spec.SSH)
	}
	s.publish("ops", "root")
	if again := s.spec(0); again.Version != 2 {
		t.Errorf("the same again: version %d", again.Version)
	}
	s.tx(func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(store.WantReconcile(ctx, tx, specNode), store.WantReconcile(ctx, tx, "node_y"))
	})
	if again := s.spec(0); again.Version != 2 {
		t.Errorf("made again: version %d", again.Version)
	}
	if spec, err := s.NodeSpecBeside(t.Context(), "node_y", 0, ""); err != nil || spec != nil {
		t.Errorf("of a node that has not joined: %+v (%v)", spec, err)
	}
	live, serial := s.issue(time.Now().Add(time.Hour))
	if again := s.spec(0); again.Version != 2 {
		t.Errorf("a certificate: version %d", again.Version)
	}
	if _, err := s.Pool().Exec(t.Context(), `INSERT INTO ssh_certs (serial, node_id, tenant_id, principal, issued_by, key_hash, valid_after, valid_before, revoked_at)
		VALUES (9000000000000000000, 'node_y', 'acme', 'root@node_y', 'dev:oncall', 'h', now(), now() + interval '1 hour', now())`); err != nil {
		t.Fatal(err)
	}
	s.revoke(serial)
	s.revoke(serial)
	revoked := s.spec(0)
	if revoked.Version != 3 || !slices.Equal(revoked.SSH.RevokedSerials, []string{live.Serial}) {
		t.Errorf("revoked: %+v %+v", revoked, revoked.SSH)
	}
	s.publish("root")
	if spec := s.spec(1); spec.Version != 4 || len(spec.SSH.Principals) != 1 {
		t.Errorf("an account less: %+v %+v", spec, spec.SSH)
	}
	if err := s.TrustSSHCA(t.Context(), otherCA); err != nil {
		t.Fatal(err)
	}
	if err := s.DistrustSSHCA(t.Context(), someCA); err != nil {
		t.Fatal(err)
	}
	if spec := s.spec(1); spec.Version != 5 || !slices.Equal(spec.SSH.CAKeys, []string{otherCA}) {
		t.Errorf("another CA: %+v %+v", spec, spec.SSH)
	}
	if trusted, err := s.PublishSSH(t.Context(), someCA, []string{"evil"}); err != nil || trusted {
		t.Errorf("a process brings a distrusted CA back: %v, %v", trusted, err)
	}
	if spec := s.spec(0); spec.Version != 5 || spec.SSH.Principals["evil"] != nil {
		t.Errorf("a process with a distrusted CA changed the accounts: %+v", spec.SSH)
	}
	s.tx(func(ctx context.Context, tx pgx.Tx) error {
		if err := store.LockNode(ctx, tx, specNode); err != nil {
			return err
		}
		if _, err := store.LabelNode(ctx, tx, specNode, map[string]string{"rack": "r1", "inventory/gpus": "8", "system/site": "x"}); err != nil {
			return err
		}
		return store.WantReconcile(ctx, tx, specNode)
	})
	if spec := s.spec(0); spec.Version != 6 || len(spec.Labels) != 1 || spec.Labels["rack"] != "r1" {
		t.Errorf("a label: %+v", spec)
	}
	s.tx(func(ctx context.Context, tx pgx.Tx) error {
		if err := store.LockNode(ctx, tx, specNode); err != nil {
			return err
		}
		if _, err := store.TaintNode(ctx, tx, specNode, []string{"unreachable", "taint:b", "draining", "taint:a"}); err != nil {
			return err
		}
		return store.WantReconcile(ctx, tx, specNode)
	})
	if spec := s.spec(0); spec.Version != 7 || !slices.Equal(spec.Taints, []string{"a", "b"}) {
		t.Errorf("taints: %+v", spec)
	}
	if err := s.DistrustSSHCA(t.Context(), "ssh-ed25519 AAAA"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("a CA that there is not: %v", err)
	}
}

// Certificates that have ended by the database's clock are named by the spec, so
// that a host whose clock is behind by days refuses them too, and revoked ones
// are never let in again by falling off the list.
func TestNodeSpecNamesWhatEnded(t *testing.T) {
	t.Parallel()
	s := newSpecs(t)
	s.publish("root")
	s.tx(func(ctx context.Context, tx pgx.Tx) error { return store.WantReconcile(ctx, tx, specNode) })
	through := func(spec *fleet.NodeSpec) uint64 {
		t.Helper()
		n, err := strconv.ParseUint(spec.SSH.ExpiredThrough, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	first := s.spec(0)
	_, live := s.issue(time.Now().Add(time.Hour))
	_, ended := s.issue(time.Now().Add(-time.Second))
	_, soon := s.issue(time.Now().Add(2 * time.Second))
	s.revoke(soon)
	s.revoke(live)
	tick, late := time.NewTicker(50*time.Millisecond), time.Now().Add(time.Minute)
	defer tick.Stop()
	spec := first
	for ; through(spec) < soon && time.Now().Before(late); <-tick.C {
		if _, err := s.SyncSSH(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		next, err := s.NodeSpecBeside(t.Context(), specNode, 0, "")
		if err != nil {
			t.Fatal(err)
		}
		if refuses := through(next) >= soon || slices.Contains(next.SSH.RevokedSerials, strconv.FormatUint(soon, 10)); !refuses && next.Version > first.Version+1 {
			t.Fatalf("version %d lets the revoked certificate in: %+v", next.Version, next.SSH)
		}
		spec = next
	}
	if through(spec) < ended || through(spec) < soon || through(spec) >= live {
		t.Errorf("ended through %d, want from %d and %d on, below %d", through(spec), ended, soon, live)
	}
	if !slices.Equal(spec.SSH.RevokedSerials, []string{strconv.FormatUint(live, 10)}) {
		t.Errorf("revoked %v, want the one that has not ended", spec.SSH.RevokedSerials)
	}
	// Seconds later, when nothing more has ended.
	if _, err := s.Pool().Exec(t.Context(), `WITH gone AS (DELETE FROM ssh_certs WHERE valid_before <= now())
		UPDATE node_specs SET ssh_expired = ssh_expired - 4294967296, doc = jsonb_set(doc, '{ssh,expiredThrough}', to_jsonb((ssh_expired - 4294967296)::text))`); err != nil {
		t.Fatal(err)
	}
	s.tx(func(ctx context.Context, tx pgx.Tx) error { return store.WantReconcile(ctx, tx, specNode) })
	if again := s.spec(0); again.Version != spec.Version {
		t.Errorf("version %d without a change, was %d", again.Version, spec.Version)
	}
}

// The record of a certificate goes a day after its end, and not before the node's
// spec names it as ended.
func TestForgetSSHCerts(t *testing.T) {
	t.Parallel()
	s := newSpecs(t)
	s.publish("root")
	s.tx(func(ctx context.Context, tx pgx.Tx) error { return store.WantReconcile(ctx, tx, specNode) })
	s.spec(0)
	if _, err := s.Pool().Exec(t.Context(), `UPDATE node_specs SET ssh_expired = 1`); err != nil {
		t.Fatal(err)
	}
	s.issue(time.Now().Add(-25 * time.Hour))
	s.issue(time.Now().Add(-23 * time.Hour))
	for _, c := range []struct{ removed, outdated int }{{0, 1}, {1, 0}, {0, 0}} {
		if n, err := s.ForgetSSHCerts(t.Context()); err != nil || n != c.removed {
			t.Errorf("%d were removed (%v), want %d", n, err, c.removed)
		}
		s.spec(c.outdated)
	}
}

// What an agent says of a NodeSpec shows as the condition SshConflict.
func TestSpecReportIsACondition(t *testing.T) {
	t.Parallel()
	s := newSpecs(t)
	s.publish("root")
	s.tx(func(ctx context.Context, tx pgx.Tx) error { return store.WantReconcile(ctx, tx, specNode) })
	s.spec(0)
	// What an agent says of versions that there are not keeps nothing from it.
	if err := s.ReportSpec(t.Context(), specNode, store.SpecReport{Version: 99, Applied: 98}); err != nil {
		t.Fatal(err)
	}
	var judged, applied int64
	if err := s.Pool().QueryRow(t.Context(), `SELECT judged, applied FROM node_specs WHERE node_id = $1`, specNode).Scan(&judged, &applied); err != nil || judged != 1 || applied != 1 {
		t.Errorf("judged %d, applied %d (%v), want the version that there is", judged, applied, err)
	}
	for _, c := range []struct {
		report         store.SpecReport
		status         fleet.ConditionStatus
		reason, quotes string
	}{
		{store.SpecReport{Version: 1, Applied: 0, SSHConflict: "sshd_config line 3: TrustedUserCAKeys x"}, fleet.ConditionTrue, "host-configuration", "line 3"},
		{store.SpecReport{Version: 1, Applied: 0, Error: "sshd refuses it"}, fleet.ConditionTrue, "not-applied", "sshd refuses it"},
		{store.SpecReport{Version: 1, Applied: 1}, fleet.ConditionFalse, "none", ""},
	} {
		if err := s.ReportSpec(t.Context(), specNode, c.report); err != nil {
			t.Fatal(err)
		}
		n, err := store.LoadNode(t.Context(), s.Pool(), specNode)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(n.Conditions, func(c fleet.Condition) bool { return c.Type == "SshConflict" })
		if i < 0 || n.Conditions[i].Status != c.status || n.Conditions[i].Reason != c.reason || !strings.Contains(n.Conditions[i].Message, c.quotes) {
			t.Errorf("%+v: conditions %+v", c.report, n.Conditions)
		}
	}
}
