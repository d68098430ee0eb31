package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/bettercompute/compute/fleet"
)

const workSQL = `
SELECT o.id, o.node_id, o.tenant_id, n.site_id, coalesce(n.pool_id, ''), coalesce(n.name, ''), o.verb, o.input, o.requested_by, coalesce(o.reason, ''),
	coalesce(o.return_to, ''), n.provision_state, s.spec, coalesce(o.input->>'erase', ''), n.maybe_in_use, n.erase_owed_since IS NOT NULL,
	coalesce(n.boot_mac, ''), coalesce(b.username, ''), coalesce(b.identity, '{}'), coalesce(b.capabilities, '{}'), i.doc, n.image,
	o.power_on, o.steps, p.id, p.gpu_model, p.gpus_per_node,
	ARRAY(SELECT name FROM operation_secrets x WHERE x.operation_id = o.id ORDER BY name),
	coalesce((SELECT left_behind FROM operations before
	          WHERE before.node_id = o.node_id AND before.id <> o.id AND before.lane = 'provision' AND before.ended_at IS NOT NULL AND before.left_behind <> '{}'
	          AND NOT EXISTS (SELECT FROM operations since, jsonb_array_elements(since.steps) step
	              WHERE since.node_id = o.node_id AND since.ended_at > before.ended_at AND step->>'state' = 'done' AND step->>'name' = ANY ($2))
	          ORDER BY before.ended_at DESC LIMIT 1), '{}')
FROM operations o
JOIN nodes n ON n.id = o.node_id
JOIN sites s ON s.id = n.site_id
LEFT JOIN bmcs b ON b.node_id = n.id
LEFT JOIN inventories i ON i.node_id = n.id
LEFT JOIN pools p ON p.id = n.pool_id
WHERE o.id = $1`

// LoadWork reads what an operation is to do and what is known of its node.
func (s *Store) LoadWork(ctx context.Context, operationID string) (fleet.Work, error) {
	var w fleet.Work
	var inventory json.RawMessage
	var poolID, gpuModel *string
	var gpus *int
	err := s.pool.QueryRow(ctx, workSQL, operationID, fleet.CleaningSteps).Scan(&w.OperationID, &w.NodeID, &w.TenantID, &w.SiteID, &w.PoolID, &w.NodeName, &w.Verb, &w.Input,
		&w.RequestedBy, &w.Reason, &w.ReturnTo, &w.State, &w.Site, &w.Erase, &w.MaybeInUse, &w.EraseOwed, &w.BootMAC, &w.BMCUsername,
		&w.BMCIdentity, &w.Capabilities, &inventory, &w.Image, &w.Boots, &w.Steps, &poolID, &gpuModel, &gpus, &w.Secrets, &w.LeftBehind)
	if isNoRows(err) {
		return w, fleet.Errorf(fleet.CodeNotFound, ReasonUnknownOperation, "operation %s is not in the database", operationID)
	}
	if err != nil {
		return w, fmt.Errorf("read the work of operation %s: %w", operationID, err)
	}
	if inventory != nil {
		w.Inventory = &fleet.Inventory{}
		if err := json.Unmarshal(inventory, w.Inventory); err != nil {
			return w, fmt.Errorf("read the inventory of node %s: %w", w.NodeID, err)
		}
	}
	if poolID != nil {
		w.Pool = &fleet.PoolWant{PoolID: *poolID, GPUModel: *gpuModel}
		if gpus != nil {
			w.Pool.GPUsPerNode = *gpus
		}
	}
	scale := s.WaitScale
	if scale == 0 {
		scale = s.TimeScale
	}
	w.Waits = fleet.WaitsFor(w.Site, w.BMCIdentity.Model, scale)
	return w, nil
}
