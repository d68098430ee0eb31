package store_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// An erase stays owed until every fixed disk has a record made since the deploy
// began; a removable medium needs none, a disk without a serial can have none.
func TestEraseOwed(t *testing.T) {
	t.Parallel()
	done := func(serial string) fleet.DiskErase {
		return fleet.DiskErase{Serial: serial, Method: "full", Result: "done"}
	}
	for name, c := range map[string]struct {
		disks  []fleet.Disk
		erased []fleet.DiskErase
		owed   bool
	}{
		"all":          {[]fleet.Disk{{Serial: "A"}, {Serial: "B"}}, []fleet.DiskErase{done("A"), done("B")}, false},
		"one left":     {[]fleet.Disk{{Serial: "A"}, {Serial: "B"}}, []fleet.DiskErase{done("A")}, true},
		"one failed":   {[]fleet.Disk{{Serial: "A"}}, []fleet.DiskErase{{Serial: "A", Method: "full", Result: "failed"}}, true},
		"removable":    {[]fleet.Disk{{Serial: "A"}, {Serial: "U", Removable: true}}, []fleet.DiskErase{done("A")}, false},
		"no serial":    {[]fleet.Disk{{Serial: "A"}, {Model: "M.2"}}, []fleet.DiskErase{done("A")}, true},
		"skipped":      {[]fleet.Disk{{Serial: "A"}}, []fleet.DiskErase{{Serial: "A", Method: "skipped", Result: "done"}}, false},
		"no inventory": {nil, []fleet.DiskErase{done("A")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOps(t)
			o.mustBegin("op_1", fleet.VerbRelease)
			if c.disks != nil {
				if err := o.RecordInventory(t.Context(), "op_1", fleet.Inventory{Disks: c.disks}); err != nil {
					t.Fatal(err)
				}
			}
			// A record from before the deploy does not count.
			if err := o.RecordErase(t.Context(), "op_1", "before", []fleet.DiskErase{done("A"), done("B")}); err != nil {
				t.Fatal(err)
			}
			if err := o.RecordEraseOwed(t.Context(), "op_1"); err != nil {
				t.Fatal(err)
			}
			if err := o.RecordErase(t.Context(), "op_1", "after", c.erased); err != nil {
				t.Fatal(err)
			}
			s, err := store.LoadSituation(t.Context(), o.pool, "node_a")
			if err != nil || s.EraseOwed != c.owed {
				t.Errorf("erase owed = %v (%v), want %v", s.EraseOwed, err, c.owed)
			}
		})
	}
}

// What an operation records is recorded once, however often the activity that
// records it runs: one whose answer was lost, or whose worker was killed, runs
// again.
func TestRecordedOnce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	erased := []fleet.DiskErase{{Serial: "A", Method: "full", Result: "done"}, {Serial: "B", Method: "skipped", Result: "done"}}
	park := fleet.OperationFailure{Step: "switch-on", Code: "timeout", Cause: "stuck", Park: true}
	for name, act := range map[string]func(o *ops) error{
		"park":      func(o *ops) error { return o.FailOperation(ctx, "op_1", park) },
		"abort":     func(o *ops) error { return o.AbortOperation(ctx, "op_1", "aborted", []string{"medium"}) },
		"erase":     func(o *ops) error { return o.RecordErase(ctx, "op_1", "cmd_1", erased) },
		"identity":  func(o *ops) error { return o.RevokeIdentity(ctx, "op_1", "deploy") },
		"inventory": func(o *ops) error { return o.RecordInventory(ctx, "op_1", fleet.Inventory{Serial: "S"}) },
		"end step":  func(o *ops) error { return o.EndStep(ctx, "op_1", "switch-on", fleet.StepDone, "on") },
		"retry": func(o *ops) error {
			if _, _, state, _ := o.state("op_1"); state == fleet.OpRunning {
				if err := o.FailOperation(ctx, "op_1", park); err != nil {
					return err
				}
			}
			_, err := o.RetryOperation(ctx, "op_1", "temporal")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOps(t)
			o.mustBegin("op_1", fleet.VerbDeploy)
			if _, err := o.BeginOperation(ctx, "op_1", "run"); err != nil {
				t.Fatal(err)
			}
			if err := act(o); err != nil {
				t.Fatal(err)
			}
			once := o.told()
			if err := act(o); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(once, o.told()); diff != "" {
				t.Errorf("the second time changed (-once +twice):\n%s", diff)
			}
		})
	}
	t.Run("another key is another erase", func(t *testing.T) {
		t.Parallel()
		o := newOps(t)
		o.mustBegin("op_1", fleet.VerbRelease)
		for _, key := range []string{"cmd_1", "cmd_2"} {
			if err := o.RecordErase(ctx, "op_1", key, erased[:1]); err != nil {
				t.Fatal(err)
			}
		}
		if got := o.typed("node.disks.erased"); got != 2 {
			t.Errorf("%d events of two erases", got)
		}
	})
}

// told is what is kept of a node for people: its events, its version, its erase
// records, and the disks that stay shown.
func (o *ops) told() map[string]int {
	o.t.Helper()
	out := map[string]int{}
	for name, sql := range map[string]string{
		"events":        `SELECT count(*) FROM events`,
		"version":       `SELECT version FROM nodes WHERE id = 'node_a'`,
		"erase records": `SELECT count(*) FROM erase_records`,
		"skipped disks": `SELECT jsonb_array_length(skipped_disks) FROM nodes WHERE id = 'node_a'`,
		"samples":       `SELECT count(*) FROM step_samples`,
	} {
		var n int
		if err := o.pool.QueryRow(o.t.Context(), sql).Scan(&n); err != nil {
			o.t.Fatal(err)
		}
		out[name] = n
	}
	return out
}

// An operation revokes the identity once, however often it asks.
func TestRevokeIdentityOnce(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_1", fleet.VerbDeploy)
	for range 3 {
		if err := o.RevokeIdentity(t.Context(), "op_1", "deploy"); err != nil {
			t.Fatal(err)
		}
	}
	n, err := store.LoadNode(t.Context(), o.pool, "node_a")
	if err != nil || n.IdentityGeneration != 1 {
		t.Errorf("generation = %d (%v), want 1", n.IdentityGeneration, err)
	}
	if got := o.typed("security.node.identity-revoked"); got != 1 {
		t.Errorf("%d events of the revocation, want 1", got)
	}
}

// typed counts the events of a type.
func (o *ops) typed(typ string) int {
	o.t.Helper()
	var n int
	if err := o.pool.QueryRow(o.t.Context(), `SELECT count(*) FROM events WHERE type = $1`, typ).Scan(&n); err != nil {
		o.t.Fatal(err)
	}
	return n
}

// A condition is told when its status changes and not when it is seen again; a
// bad one keeps work off the node; every other certificate is told.
func TestConditions(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	set := func(c fleet.Condition) {
		t.Helper()
		if err := o.SetCondition(t.Context(), "node_a", c); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		set(fleet.Condition{Type: "HardwareHealthy", Status: fleet.ConditionFalse, Reason: "fan"})
	}
	n, err := store.LoadNode(t.Context(), o.pool, "node_a")
	if err != nil || len(n.NoScheduleReasons) != 1 || n.NoScheduleReasons[0] != "condition:HardwareHealthy" || o.typed("node.condition.changed") != 1 {
		t.Errorf("reasons %v (%v), %d events; want one of each", n.NoScheduleReasons, err, o.typed("node.condition.changed"))
	}
	set(fleet.Condition{Type: "HardwareHealthy", Status: fleet.ConditionUnknown})
	if n, err = store.LoadNode(t.Context(), o.pool, "node_a"); err != nil || len(n.NoScheduleReasons) != 0 {
		t.Errorf("reasons %v (%v) after Unknown, want none", n.NoScheduleReasons, err)
	}
	if _, err := o.pool.Exec(t.Context(), `INSERT INTO bmcs (node_id, site_id, address, driver, username, tls_mode, tls_fingerprint)
		SELECT id, site_id, 'https://10.0.0.1', 'redfish', 'root', 'pin', 'sha256:pinned' FROM nodes WHERE id = 'node_a'`); err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{"sha256:first", "sha256:first", "sha256:second"} {
		if err := o.CertificateChanged(t.Context(), "node_a", shown, "its certificate is "+shown); err != nil {
			t.Fatal(err)
		}
	}
	if got := o.typed("security.bmc.certificate-changed"); got != 2 {
		t.Errorf("%d certificates told, want 2", got)
	}
	shown := func() string {
		t.Helper()
		m, err := store.LoadMetal(t.Context(), o.pool, "node_a")
		if err != nil {
			t.Fatal(err)
		}
		return m.BMC.TLS.Shown
	}
	if got := shown(); got != "sha256:second" {
		t.Errorf("the view shows %q as the other certificate", got)
	}
	set(fleet.Condition{Type: "BmcTrusted", Status: fleet.ConditionTrue})
	if got := shown(); got != "" {
		t.Errorf("a trusted BMC still shows %q as another certificate", got)
	}
	for range 2 {
		if err := o.MachineChanged(t.Context(), "node_a", fleet.BMCIdentity{Serial: "OTHER"}, "its serial is OTHER"); err != nil {
			t.Fatal(err)
		}
	}
	m, err := store.LoadMetal(t.Context(), o.pool, "node_a")
	if err != nil || m.BMC.ShownIdentity == nil || m.BMC.ShownIdentity.Serial != "OTHER" || o.typed("security.bmc.identity-changed") != 1 {
		t.Errorf("%+v, %d events, %v", m.BMC, o.typed("security.bmc.identity-changed"), err)
	}
}
