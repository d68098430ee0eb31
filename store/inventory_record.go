package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// inventoryLabels is the prefix of labels that inventory owns.
const inventoryLabels = "inventory/"

// RecordInventory stores an inventory, its GPUs as devices, what it says as
// labels under inventory/, and what changed against the one before as an event.
func (s *Store) RecordInventory(ctx context.Context, operationID string, inv fleet.Inventory) error {
	hw := inventoryHardware(inv)
	return s.fencedMachine(ctx, operationID, machineNames(hw), func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		if byBMC(o.Verb) {
			if err := refuseAdopted(ctx, tx, o, hw); err != nil {
				return err
			}
		}
		// Whoever reads an inventory by the BMC has compared the machine first.
		if _, err := tx.Exec(ctx, `UPDATE bmcs SET identity_shown = NULL WHERE node_id = $1 AND identity_shown IS NOT NULL`, o.NodeID); err != nil {
			return fmt.Errorf("forget the other machine of node %s: %w", o.NodeID, err)
		}
		return recordInventory(ctx, tx, o.NodeID, o.RequestedBy, inv)
	})
}

// recordInventory does it for a node whose row is locked.
func recordInventory(ctx context.Context, tx pgx.Tx, nodeID, actor string, inv fleet.Inventory) error {
	var raw json.RawMessage
	var before *fleet.Inventory
	err := tx.QueryRow(ctx, `SELECT doc FROM inventories WHERE node_id = $1`, nodeID).Scan(&raw)
	switch {
	case err == nil:
		before = &fleet.Inventory{}
		if err := json.Unmarshal(raw, before); err != nil {
			return fmt.Errorf("read the former inventory of node %s: %w", nodeID, err)
		}
	case !isNoRows(err):
		return fmt.Errorf("read the former inventory of node %s: %w", nodeID, err)
	}
	var byBMC *fleet.Inventory
	if !inv.InBand {
		byBMC = &inv
	}
	if err := storeInventory(ctx, tx, nodeID, inv, byBMC); err != nil {
		return err
	}
	if before == nil {
		return nil
	}
	if changes := inventoryChanges(*before, inv); len(changes) > 0 {
		return nodeEvent(ctx, tx, nodeID, actor, "node.inventory.changed", map[string]any{"changes": changes})
	}
	return nil
}

// storeInventory writes an inventory, the devices and the labels that follow from
// it. byBMC is what the BMC alone says; nil keeps what it said last.
func storeInventory(ctx context.Context, tx pgx.Tx, nodeID string, inv fleet.Inventory, byBMC *fleet.Inventory) error {
	macs := []string{}
	for _, n := range inv.NICs {
		if n.MAC != "" {
			macs = append(macs, strings.ToLower(n.MAC))
		}
	}
	_, err := tx.Exec(ctx, `INSERT INTO inventories (node_id, doc, serial, macs, bmc_doc, inspected_at) VALUES ($1, $2, NULLIF($3, ''), $4, $5, now())
		ON CONFLICT (node_id) DO UPDATE SET doc = EXCLUDED.doc, serial = EXCLUDED.serial, macs = EXCLUDED.macs,
			bmc_doc = coalesce(EXCLUDED.bmc_doc, inventories.bmc_doc), inspected_at = EXCLUDED.inspected_at`,
		nodeID, inv, inv.Serial, macs, byBMC)
	if err != nil {
		return fmt.Errorf("record the inventory of node %s: %w", nodeID, err)
	}
	if err := joinDevices(ctx, tx, nodeID, inv.GPUs); err != nil {
		return err
	}
	return labelInventory(ctx, tx, nodeID, inv)
}

// labelInventory replaces the labels that inventory owns, when they differ.
func labelInventory(ctx context.Context, tx pgx.Tx, nodeID string, inv fleet.Inventory) error {
	var labels map[string]string
	if err := tx.QueryRow(ctx, `SELECT labels FROM nodes WHERE id = $1`, nodeID).Scan(&labels); err != nil {
		return fmt.Errorf("read the labels of node %s: %w", nodeID, err)
	}
	want := maps.Clone(labels)
	maps.DeleteFunc(want, func(k, _ string) bool { return strings.HasPrefix(k, inventoryLabels) })
	set := func(key, value string) {
		if value != "" {
			want[inventoryLabels+key] = value
		}
	}
	set("vendor", inv.Vendor)
	set("model", inv.Model)
	set("memory-mib", strconv.FormatInt(inv.MemoryMiB, 10))
	set("gpu-count", strconv.Itoa(len(inv.GPUs)))
	if len(inv.GPUs) > 0 {
		set("gpu-model", inv.GPUs[0].Model)
	}
	if maps.Equal(labels, want) {
		return nil
	}
	_, err := LabelNode(ctx, tx, nodeID, want)
	return err
}

// inventoryChanges names what differs, one line a kind of part.
func inventoryChanges(before, after fleet.Inventory) []string {
	var out []string
	named := func(what, a, b string) {
		if a != b {
			out = append(out, fmt.Sprintf("%s: %q is now %q", what, a, b))
		}
	}
	named("vendor", before.Vendor, after.Vendor)
	named("model", before.Model, after.Model)
	named("serial", before.Serial, after.Serial)
	named("uuid", before.UUID, after.UUID)
	named("BIOS version", before.BIOSVersion, after.BIOSVersion)
	named("health", before.Health, after.Health)
	if before.BMC != nil && after.BMC != nil {
		named("BMC address", before.BMC.Address, after.BMC.Address)
	}
	if before.MemoryMiB != after.MemoryMiB {
		out = append(out, fmt.Sprintf("memory: %d MiB is now %d MiB", before.MemoryMiB, after.MemoryMiB))
	}
	if len(before.CPUs) != len(after.CPUs) {
		out = append(out, fmt.Sprintf("CPUs: %d are now %d", len(before.CPUs), len(after.CPUs)))
	}
	out = append(out, gone("disk", keysOf(before.Disks, func(d fleet.Disk) string { return d.Serial }), keysOf(after.Disks, func(d fleet.Disk) string { return d.Serial }))...)
	out = append(out, gone("NIC", keysOf(before.NICs, func(n fleet.NIC) string { return n.MAC }), keysOf(after.NICs, func(n fleet.NIC) string { return n.MAC }))...)
	out = append(out, gone("GPU", keysOf(before.GPUs, deviceKey), keysOf(after.GPUs, deviceKey))...)
	if !reflect.DeepEqual(before.Firmware, after.Firmware) && len(before.Firmware)+len(after.Firmware) > 0 {
		out = append(out, firmwareChanges(before.Firmware, after.Firmware)...)
	}
	return out
}

func firmwareChanges(before, after []fleet.Component) []string {
	was := map[string]string{}
	for _, c := range before {
		was[c.Name] = c.Version
	}
	var out []string
	for _, c := range after {
		if v, ok := was[c.Name]; ok && v != c.Version {
			out = append(out, fmt.Sprintf("firmware %s: %q is now %q", c.Name, v, c.Version))
		}
	}
	return out
}

func deviceKey(d fleet.Device) string {
	for _, k := range []string{d.Serial, d.PCIAddress, d.UUID, d.Slot} {
		if k != "" {
			return k
		}
	}
	return ""
}

func keysOf[T any](list []T, key func(T) string) []string {
	out := make([]string, 0, len(list))
	for _, v := range list {
		out = append(out, key(v))
	}
	slices.Sort(out)
	return out
}

func gone(what string, before, after []string) []string {
	var out []string
	for _, k := range before {
		if !slices.Contains(after, k) {
			out = append(out, what+" "+k+" is gone")
		}
	}
	for _, k := range after {
		if !slices.Contains(before, k) {
			out = append(out, what+" "+k+" is new")
		}
	}
	return out
}
