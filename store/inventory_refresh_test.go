package store_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

func gpu(serial string) fleet.Device { return fleet.Device{Model: "H100", Serial: serial} }

// inventory is what a BMC says, as a machine with these disks and GPUs.
func inventory(bios string, disks []string, gpus ...string) fleet.Inventory {
	inv := fleet.Inventory{Vendor: "acme", MemoryMiB: 1024, BIOSVersion: bios}
	for _, d := range disks {
		inv.Disks = append(inv.Disks, fleet.Disk{Serial: d})
	}
	for _, g := range gpus {
		inv.GPUs = append(inv.GPUs, gpu(g))
	}
	return inv
}

// rested makes node_a a deployed machine whose hardware was read.
func rested(t *testing.T, inv fleet.Inventory) *ops {
	t.Helper()
	o := newOps(t)
	o.addBMC()
	o.exec(`UPDATE nodes SET provision_state = 'deployed'`)
	o.refresh(fleet.PowerOn, inv, true)
	return o
}

func (o *ops) refresh(power fleet.PowerState, inv fleet.Inventory, want bool) {
	o.t.Helper()
	if got, err := o.RefreshInventory(o.t.Context(), "node_a", power, inv); err != nil || got != want {
		o.t.Fatalf("recorded %v (%v), want %v", got, err, want)
	}
}

// changes are those told by the last inventory event, nil without one.
func (o *ops) changes() []string {
	o.t.Helper()
	list, err := o.pool.Query(o.t.Context(), `SELECT data->'changes' FROM events WHERE type = 'node.inventory.changed' ORDER BY tx DESC, seq DESC LIMIT 1`)
	if err != nil {
		o.t.Fatal(err)
	}
	defer list.Close()
	var out []string
	for list.Next() {
		if err := list.Scan(&out); err != nil {
			o.t.Fatal(err)
		}
	}
	return out
}

// The sweep's reading tells what changed, raises what follows from it, and
// leaves the node's state and version alone.
func TestRefreshInventory(t *testing.T) {
	t.Parallel()
	o := rested(t, inventory("1", []string{"d1"}, "g1", "g2"))
	before, err := store.LoadMetal(t.Context(), o.pool, "node_a")
	if err != nil {
		t.Fatal(err)
	}
	o.refresh(fleet.PowerOn, inventory("1", []string{"d1"}, "g1", "g2"), true)
	if got := o.changes(); got != nil {
		t.Errorf("told %v of hardware that is the same", got)
	}
	o.refresh(fleet.PowerOn, inventory("2", []string{"d2"}, "g1", "g2"), true)
	want := []string{`BIOS version: "1" is now "2"`, "disk d1 is gone", "disk d2 is new"}
	if diff := cmp.Diff(want, o.changes()); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	after, err := store.LoadMetal(t.Context(), o.pool, "node_a")
	if err != nil || after.Version != before.Version || after.ProvisionState != fleet.Deployed || after.Operations != nil {
		t.Errorf("node = version %d %s %+v (%v), want it untouched", after.Version, after.ProvisionState, after.Operations, err)
	}
	o.exec(`INSERT INTO pools (id, tenant_id, site_id, name, gpu_model) VALUES ('pool_1', 'acme', 'site_1', 'p', 'H100')`)
	o.exec(`INSERT INTO allocations (id, tenant_id, pool_id, node_id, holder, gpus, state) VALUES ('alloc_1', 'acme', 'pool_1', 'node_a', 'h', 1, 'active')`)
	o.exec(`UPDATE devices SET allocation_id = 'alloc_1' WHERE serial = 'g2'`)
	o.refresh(fleet.PowerOff, inventory("2", nil), true)
	if m, err := store.LoadMetal(t.Context(), o.pool, "node_a"); err != nil || len(m.Inventory.GPUs) != 2 || len(m.NoScheduleReasons) != 0 {
		t.Errorf("a machine that is off lost %v, reasons %v (%v)", m.Inventory.GPUs, m.NoScheduleReasons, err)
	}
	o.refresh(fleet.PowerOn, inventory("2", []string{"d2"}, "g1"), true)
	if m, err := store.LoadMetal(t.Context(), o.pool, "node_a"); err != nil || !slices.Contains(m.NoScheduleReasons, "condition:DeviceMissing") {
		t.Errorf("reasons = %v (%v), want the vanished device's", m.NoScheduleReasons, err)
	}
}

// What the machine saw of itself stays beside what its BMC says, but for parts
// that came or went.
func TestRefreshInventoryInBand(t *testing.T) {
	t.Parallel()
	o := rested(t, inventory("1", []string{"d1", "d2"}))
	inBand := inventory("1", []string{"d1", "d2", "usb"}, "g1")
	inBand.InBand, inBand.TPM, inBand.BMC = true, &fleet.TPM{}, &fleet.BMCLAN{Address: "192.0.2.17"}
	o.exec(`UPDATE inventories SET doc = $1`, inBand)
	o.refresh(fleet.PowerOn, inventory("1", []string{"d2", "d3"}), true)
	m, err := store.LoadMetal(t.Context(), o.pool, "node_a")
	if err != nil {
		t.Fatal(err)
	}
	want := inventory("1", []string{"d2", "usb", "d3"}, "g1")
	want.InBand, want.TPM, want.BMC = true, &fleet.TPM{}, &fleet.BMCLAN{Address: "192.0.2.17"}
	if diff := cmp.Diff(&want, m.Inventory); diff != "" {
		t.Errorf("inventory (-want +got):\n%s", diff)
	}
	if got := strings.Join(o.changes(), ", "); got != "disk d1 is gone, disk d3 is new" {
		t.Errorf("changes = %s", got)
	}
	// Without a former word of the BMC its first is the measure of the next.
	o.exec(`UPDATE inventories SET bmc_doc = NULL, doc = $1`, inBand)
	o.exec(`DELETE FROM events`)
	o.refresh(fleet.PowerOn, inventory("1", []string{"d1"}), true)
	if m, err = store.LoadMetal(t.Context(), o.pool, "node_a"); err != nil || len(m.Inventory.Disks) != 3 || o.changes() != nil {
		t.Errorf("disks %v, told %v (%v): want neither touched", m.Inventory.Disks, o.changes(), err)
	}
}

// Where the host says that its BMC is found is told when it moved, and no news
// where a reading does not say.
func TestInventoryBMCAddressMoved(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.mustBegin("op_1", fleet.VerbInspect)
	at := func(address string) fleet.Inventory {
		return fleet.Inventory{InBand: true, BMC: &fleet.BMCLAN{Address: address}}
	}
	for _, c := range []struct {
		inv  fleet.Inventory
		want []string
	}{
		{at("192.0.2.17"), nil}, {at("192.0.2.17"), nil},
		{at("192.0.2.18"), []string{`BMC address: "192.0.2.17" is now "192.0.2.18"`}}, {fleet.Inventory{}, nil},
	} {
		o.exec(`DELETE FROM events`)
		if err := o.RecordInventory(t.Context(), "op_1", c.inv); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, o.changes()); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
	}
}

// Only machines at rest in a state that nobody inspects in are due, once an
// interval; beside an operation nothing is recorded.
func TestClaimDueInventories(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.addBMC()
	for _, c := range []struct {
		state, set string
		want       int
	}{
		{"deployed", "", 1}, {"rescue", "", 1}, {"adopted", "", 1}, {"ready", "", 0}, {"retired", "", 0},
		{"deployed", `UPDATE nodes SET provision_op = 'op_x'`, 0},
		{"deployed", `UPDATE bmcs SET reachable = false`, 0},
		{"deployed", `UPDATE bmcs SET next_inventory_at = now() + interval '1 minute'`, 0},
	} {
		o.exec(`UPDATE nodes SET provision_state = $1, provision_op = NULL`, c.state)
		o.exec(`UPDATE bmcs SET next_inventory_at = now(), reachable = true`)
		o.exec(`DELETE FROM bmc_leases`)
		if c.set != "" {
			o.exec(c.set)
		}
		for _, want := range []int{c.want, 0} {
			due, err := o.ClaimDueInventories(t.Context(), "w", 10, time.Minute, 0, time.Hour)
			if err != nil || len(due) != want {
				t.Errorf("%s, %q: claimed %d (%v), want %d", c.state, c.set, len(due), err, want)
			}
		}
	}
	o.exec(`UPDATE nodes SET provision_state = 'deployed', provision_op = 'op_x'`)
	o.refresh(fleet.PowerOn, inventory("1", nil), false)
	o.exec(`UPDATE nodes SET provision_state = 'ready', provision_op = NULL`)
	o.refresh(fleet.PowerOn, inventory("1", nil), false)
}
