package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// JoinedHardware is what a node's machine said of itself when it joined, empty
// when it never did.
func (s *Store) JoinedHardware(ctx context.Context, nodeID string) (fleet.Hardware, error) {
	var h fleet.Hardware
	err := s.pool.QueryRow(ctx, `SELECT doc FROM joined_hardware WHERE node_id = $1`, nodeID).Scan(&h)
	if isNoRows(err) {
		return h, nil
	}
	return h, wrapDoing(err, "read how node "+nodeID+" joined")
}

// refuseAdopted is CONFLICT when a machine that is enrolled by its BMC is a host
// that was adopted: the same UUID in either byte order, the same network
// addresses, or the same vendor and serial. The host is named to its own tenant
// only.
func refuseAdopted(ctx context.Context, tx pgx.Tx, o fencedOp, hw fleet.Hardware) error {
	rows, err := tx.Query(ctx, `SELECT h.node_id, n.tenant_id, h.uuid = ANY ($2), h.macs,
			$4 <> '' AND $5 <> '' AND lower(h.doc->>'serial') = lower($4) AND lower(h.doc->>'vendor') = lower($5)
		FROM joined_hardware h JOIN nodes n ON n.id = h.node_id
		WHERE n.guarded AND n.deleted_at IS NULL AND n.id <> $1 AND n.site_id = (SELECT site_id FROM nodes WHERE id = $1)
		AND (h.uuid = ANY ($2) OR h.macs && $3 OR lower(h.doc->>'serial') = lower($4)) ORDER BY h.node_id`,
		o.NodeID, machineUUIDs(hw.UUID), fleet.UniversalMACs(hw.MACs), hw.Serial, hw.Vendor)
	if err != nil {
		return fmt.Errorf("look for an adopted host that is node %s: %w", o.NodeID, err)
	}
	var node, tenant string
	var uuid *bool
	var macs []string
	var serial bool
	found := ""
	_, err = pgx.ForEachRow(rows, []any{&node, &tenant, &uuid, &macs, &serial}, func() error {
		if uuid != nil && *uuid || serial || fleet.SameMACs(macs, hw.MACs) {
			found = "a host that was adopted"
			if tenant == o.TenantID {
				found += " (" + node + ")"
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for an adopted host that is node %s: %w", o.NodeID, err)
	}
	if found == "" {
		return nil
	}
	return fleet.Errorf(fleet.CodeConflict, "already-enrolled", "this machine is %s; give that node this BMC with metal/manage, or drain and delete it first", found)
}

// byBMC says whether a verb is one by which a machine is taken in through its
// BMC.
func byBMC(v fleet.Verb) bool { return v == fleet.VerbEnroll || v == fleet.VerbInspect }

// inventoryHardware is who an inventory is of.
func inventoryHardware(inv fleet.Inventory) fleet.Hardware {
	hw := fleet.Hardware{UUID: inv.UUID, Serial: inv.Serial, Vendor: inv.Vendor}
	for _, n := range inv.NICs {
		hw.MACs = append(hw.MACs, strings.ToLower(n.MAC))
	}
	return hw
}
