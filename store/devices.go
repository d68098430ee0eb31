package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// deviceRow is a recorded device.
type deviceRow struct {
	ID, Model, Serial, UUID, PCI, Slot string
	matched                            bool
}

// joinDevices makes a node's device rows those of an inventory. A device is
// joined to its row by serial, else PCI address, else UUID, else slot. One that
// is gone stays, as not present. One that could be two rows adds none and
// raises InventoryAmbiguous. An identity that two devices of one inventory share
// (two GPUs of one module with the module's serial) identifies neither.
func joinDevices(ctx context.Context, tx pgx.Tx, nodeID string, seen []fleet.Device) error {
	rows, err := tx.Query(ctx, `SELECT id, model, coalesce(serial, ''), coalesce(uuid, ''), coalesce(pci_address, ''), coalesce(slot, '')
		FROM devices WHERE node_id = $1 ORDER BY id`, nodeID)
	if err != nil {
		return fmt.Errorf("read the devices of node %s: %w", nodeID, err)
	}
	known, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (*deviceRow, error) {
		d := &deviceRow{}
		return d, r.Scan(&d.ID, &d.Model, &d.Serial, &d.UUID, &d.PCI, &d.Slot)
	})
	if err != nil {
		return fmt.Errorf("read the devices of node %s: %w", nodeID, err)
	}
	batch := &pgx.Batch{}
	ambiguous := ""
	for _, d := range identifying(seen) {
		row, unclear := matchDevice(known, d)
		switch {
		case unclear:
			ambiguous = "the " + d.Model + " " + deviceKey(d) + " could be more than one recorded device"
		case row != nil:
			row.matched = true
			batch.Queue(`UPDATE devices SET present = true, model = $2, serial = coalesce(NULLIF($3, ''), serial), uuid = coalesce(NULLIF($4, ''), uuid),
				pci_address = coalesce(NULLIF($5, ''), pci_address), slot = coalesce(NULLIF($6, ''), slot) WHERE id = $1`,
				row.ID, d.Model, d.Serial, d.UUID, d.PCIAddress, d.Slot)
		default:
			batch.Queue(`INSERT INTO devices (id, node_id, model, serial, uuid, pci_address, slot)
				VALUES ($1, $2, $3, NULLIF($4, ''), NULLIF($5, ''), NULLIF($6, ''), NULLIF($7, ''))`,
				NewID(fleet.KindDevice), nodeID, d.Model, d.Serial, d.UUID, d.PCIAddress, d.Slot)
		}
	}
	for _, row := range known {
		if !row.matched && ambiguous == "" {
			batch.Queue(`UPDATE devices SET present = false WHERE id = $1`, row.ID)
		}
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("record the devices of node %s: %w", nodeID, err)
	}
	return deviceConditions(ctx, tx, nodeID, ambiguous)
}

// identities are what a device can be joined by, best first.
var identities = []func(*fleet.Device) *string{
	func(d *fleet.Device) *string { return &d.Serial },
	func(d *fleet.Device) *string { return &d.PCIAddress },
	func(d *fleet.Device) *string { return &d.UUID },
	func(d *fleet.Device) *string { return &d.Slot },
}

// identifying are the devices with only those identities that none of the
// others shares.
func identifying(seen []fleet.Device) []fleet.Device {
	out := slices.Clone(seen)
	for _, of := range identities {
		count := map[string]int{}
		for i := range seen {
			count[*of(&seen[i])]++
		}
		for i := range out {
			if count[*of(&out[i])] > 1 {
				*of(&out[i]) = ""
			}
		}
	}
	return out
}

// matchDevice finds the row of a device by the first identity that both have.
// Devices that nothing tells apart are as good as one another: each takes a row
// of its model that has no identity either.
func matchDevice(known []*deviceRow, d fleet.Device) (row *deviceRow, ambiguous bool) {
	for _, by := range []struct {
		want string
		have func(*deviceRow) string
	}{
		{d.Serial, func(r *deviceRow) string { return r.Serial }},
		{d.PCIAddress, func(r *deviceRow) string { return r.PCI }},
		{d.UUID, func(r *deviceRow) string { return r.UUID }},
		{d.Slot, func(r *deviceRow) string { return r.Slot }},
	} {
		if by.want == "" {
			continue
		}
		for _, r := range known {
			replaced := r.Serial != "" && d.Serial != "" && r.Serial != d.Serial
			if r.matched || replaced || by.have(r) != by.want {
				continue
			}
			if row != nil {
				return nil, true
			}
			row = r
		}
		if row != nil {
			return row, false
		}
	}
	if d.Serial+d.PCIAddress+d.UUID+d.Slot != "" {
		return nil, false
	}
	for _, r := range known {
		if !r.matched && r.Model == d.Model && r.Serial+r.PCI+r.UUID+r.Slot == "" {
			return r, false
		}
	}
	return nil, false
}

// deviceConditions raises or clears what the devices say of their node.
func deviceConditions(ctx context.Context, tx pgx.Tx, nodeID, ambiguous string) error {
	if err := setConditionTx(ctx, tx, nodeID, "InventoryAmbiguous", ambiguous); err != nil {
		return err
	}
	return judgeMissing(ctx, tx, nodeID)
}

// judgeMissing raises DeviceMissing while an allocated device is gone from the
// inventory, and clears it once nobody holds such a one.
func judgeMissing(ctx context.Context, tx pgx.Tx, nodeID string) error {
	var missing int
	err := tx.QueryRow(ctx, `SELECT count(*) FROM devices d WHERE d.node_id = $1 AND d.allocation_id IS NOT NULL AND NOT d.present`, nodeID).Scan(&missing)
	if err != nil {
		return fmt.Errorf("read the missing devices of node %s: %w", nodeID, err)
	}
	gone := ""
	if missing > 0 {
		gone = fmt.Sprintf("%d allocated device(s) vanished from the inventory", missing)
	}
	return setConditionTx(ctx, tx, nodeID, "DeviceMissing", gone)
}

// setConditionTx sets a condition that is bad when True: True with a message,
// False without one. A False that was never True is not written.
func setConditionTx(ctx context.Context, tx pgx.Tx, nodeID, typ, message string) error {
	var before fleet.ConditionStatus
	err := tx.QueryRow(ctx, `SELECT status FROM conditions WHERE node_id = $1 AND type = $2`, nodeID, typ).Scan(&before)
	if err != nil && !isNoRows(err) {
		return fmt.Errorf("read condition %s of node %s: %w", typ, nodeID, err)
	}
	c := fleet.Condition{Type: typ, Status: fleet.ConditionFalse, Message: message}
	if message != "" {
		c.Status = fleet.ConditionTrue
	}
	if before == c.Status || (before == "" && message == "") {
		return nil
	}
	_, err = tx.Exec(ctx, `INSERT INTO conditions (node_id, type, status, message) VALUES ($1, $2, $3, $4)
		ON CONFLICT (node_id, type) DO UPDATE SET status = EXCLUDED.status, message = EXCLUDED.message, since = now()`, nodeID, typ, string(c.Status), message)
	if err != nil {
		return fmt.Errorf("record condition %s of node %s: %w", typ, nodeID, err)
	}
	return conditionChanged(ctx, tx, nodeID, c, before, fleet.ConditionKinds[typ])
}
