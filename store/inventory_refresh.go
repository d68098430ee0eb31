package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// refreshed are the states whose machines nobody inspects for long: the sweep
// looks at their hardware.
const refreshed = `n.provision_state IN ('deployed', 'rescue', 'adopted')`

// ClaimDueInventories claims machines at rest whose inventory is due, with a read
// lease of each BMC, in one statement. They are due again after the time given,
// whatever comes of it.
func (s *Store) ClaimDueInventories(ctx context.Context, holder string, limit int, life, grace, again time.Duration) ([]DueBMC, error) {
	return s.claimDue(ctx, `
		WITH due AS MATERIALIZED (
			SELECT b.node_id FROM bmcs b JOIN nodes n ON n.id = b.node_id
			WHERE b.next_inventory_at <= now() AND b.reachable AND `+refreshed+` AND n.provision_op IS NULL AND `+atRest+`
			ORDER BY b.next_inventory_at LIMIT $2 FOR UPDATE OF b SKIP LOCKED),
		claimed AS (UPDATE bmcs b SET next_inventory_at = now() + $5::interval * (0.9 + 0.2 * random()) FROM due WHERE b.node_id = due.node_id),`+leaseDue,
		holder, limit, life, grace, again)
}

// AtRest says whether a machine is one that the inventory sweep may read now.
func (s *Store) AtRest(ctx context.Context, nodeID string) (bool, error) {
	var is bool
	err := s.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM nodes n WHERE n.id = $1 AND n.deleted_at IS NULL AND n.provision_op IS NULL AND `+refreshed+`)`, nodeID).Scan(&is)
	return is, wrapDoing(err, "look whether node "+nodeID+" is at rest")
}

// RefreshInventory records what the BMC of a machine at rest says of its
// hardware, and tells what changed since the BMC was read last: what the machine
// itself found stays, but for parts that came or went. The state of the node and
// what its verbs are judged by stay as they are. When an operation began in the
// meantime nothing is recorded: what it does to the machine is its own to tell.
func (s *Store) RefreshInventory(ctx context.Context, nodeID string, power fleet.PowerState, seen fleet.Inventory) (recorded bool, err error) {
	err = s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		recorded = false
		fence, _, err := lockNode(ctx, tx, nodeID)
		if err != nil || fence != "" {
			return err
		}
		var is bool
		if err := tx.QueryRow(ctx, `SELECT `+refreshed+` FROM nodes n WHERE n.id = $1`, nodeID).Scan(&is); err != nil || !is {
			return wrapDoing(err, "read the state of node "+nodeID)
		}
		var doc, byBMC *fleet.Inventory
		err = tx.QueryRow(ctx, `SELECT doc, bmc_doc FROM inventories WHERE node_id = $1`, nodeID).Scan(&doc, &byBMC)
		if err != nil && !isNoRows(err) {
			return fmt.Errorf("read the former inventory of node %s: %w", nodeID, err)
		}
		recorded = true
		// The machine was compared before it was read.
		if _, err := tx.Exec(ctx, `UPDATE bmcs SET identity_shown = NULL WHERE node_id = $1 AND identity_shown IS NOT NULL`, nodeID); err != nil {
			return fmt.Errorf("forget the other machine of node %s: %w", nodeID, err)
		}
		if doc == nil {
			return storeInventory(ctx, tx, nodeID, seen, &seen)
		}
		before := *doc
		if byBMC != nil {
			before = *byBMC
		}
		if byBMC == nil && doc.InBand {
			// What the machine sees is no measure of what its BMC says: it is from now on.
			return storeInventory(ctx, tx, nodeID, *doc, &seen)
		}
		if power != fleet.PowerOn {
			seen = keepParts(before, seen)
		}
		if err := storeInventory(ctx, tx, nodeID, carried(*doc, before, seen), &seen); err != nil {
			return err
		}
		changes := inventoryChanges(before, seen)
		if len(changes) == 0 {
			return nil
		}
		return nodeEvent(ctx, tx, nodeID, "system", "node.inventory.changed", map[string]any{"changes": changes})
	})
	return recorded, err
}

// keepParts keeps the parts that a BMC cannot see while the machine is not on.
func keepParts(before, seen fleet.Inventory) fleet.Inventory {
	seen.CPUs, seen.MemoryMiB, seen.DIMMs, seen.Disks = before.CPUs, before.MemoryMiB, before.DIMMs, before.Disks
	seen.NICs, seen.GPUs, seen.PCIDevices, seen.Health = before.NICs, before.GPUs, before.PCIDevices, before.Health
	return seen
}

// carried brings an inventory up to date by what changed in the BMC's view. One
// that the BMC alone gave is replaced.
func carried(doc, before, after fleet.Inventory) fleet.Inventory {
	if !doc.InBand {
		return after
	}
	m := after
	m.InBand, m.Missing = true, doc.Missing
	m.CPUs = unlessChanged(doc.CPUs, len(before.CPUs) != len(after.CPUs), after.CPUs)
	m.DIMMs = unlessChanged(doc.DIMMs, len(before.DIMMs) != len(after.DIMMs), after.DIMMs)
	if before.MemoryMiB == after.MemoryMiB {
		m.MemoryMiB = doc.MemoryMiB
	}
	if doc.TPM != nil {
		m.TPM = doc.TPM
	}
	m.BMC = doc.BMC
	m.Disks = cameAndWent(doc.Disks, before.Disks, after.Disks, func(a, b fleet.Disk) bool { return a.Serial != "" && a.Serial == b.Serial })
	m.NICs = cameAndWent(doc.NICs, before.NICs, after.NICs, func(a, b fleet.NIC) bool { return a.MAC != "" && strings.EqualFold(a.MAC, b.MAC) })
	m.GPUs = cameAndWent(doc.GPUs, before.GPUs, after.GPUs, sameDevice)
	m.PCIDevices = cameAndWent(doc.PCIDevices, before.PCIDevices, after.PCIDevices, sameDevice)
	return m
}

func unlessChanged[T any](have []T, changed bool, seen []T) []T {
	if changed || len(have) == 0 {
		return seen
	}
	return have
}

// cameAndWent takes out of a list the parts that were there before and are not
// any more, and adds those that are new.
func cameAndWent[T any](have, before, after []T, same func(a, b T) bool) []T {
	in := func(list []T, p T) bool {
		return slices.ContainsFunc(list, func(q T) bool { return same(p, q) })
	}
	out := slices.DeleteFunc(slices.Clone(have), func(p T) bool { return in(before, p) && !in(after, p) })
	for _, p := range after {
		if !in(before, p) && !in(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// sameDevice says whether two views are of one device: by the first identity
// that both have.
func sameDevice(a, b fleet.Device) bool {
	for _, of := range identities {
		if x, y := *of(&a), *of(&b); x != "" && y != "" {
			return x == y
		}
	}
	return false
}
