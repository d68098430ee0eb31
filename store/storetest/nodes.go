package storetest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// Machine is a node that Deployed makes.
type Machine struct {
	TenantID, SiteID, PoolID string
	// GPUs is how many it has, all of Model ("H100 SXM5" when empty).
	GPUs   int
	Model  string
	Labels map[string]string
}

// Deployed makes a deployed node with an inventory, its devices and a session:
// one that placement takes when it is in a pool.
func Deployed(t testing.TB, s *store.Store, m Machine) (nodeID string) {
	t.Helper()
	nodeID = store.NewID(fleet.KindNode)
	if m.Model == "" {
		m.Model = "H100 SXM5"
	}
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	inv := fleet.Inventory{}
	batch := &pgx.Batch{}
	batch.Queue(`INSERT INTO nodes (id, tenant_id, site_id, pool_id, provision_state, labels) VALUES ($1, $2, $3, NULLIF($4, ''), 'deployed', $5)`,
		nodeID, m.TenantID, m.SiteID, m.PoolID, m.Labels)
	batch.Queue(`INSERT INTO node_visibility (tenant_id, node_id) VALUES ($1, $2)`, m.TenantID, nodeID)
	for range m.GPUs {
		id := store.NewID(fleet.KindDevice)
		batch.Queue(`INSERT INTO devices (id, node_id, model, serial) VALUES ($1, $2, $3, $1)`, id, nodeID, m.Model)
		inv.GPUs = append(inv.GPUs, fleet.Device{Model: m.Model, Serial: id})
	}
	batch.Queue(`INSERT INTO inventories (node_id, doc, inspected_at) VALUES ($1, $2, now())`, nodeID, inv)
	batch.Queue(`INSERT INTO certificates (serial, node_id, generation, not_after, key_hash) VALUES ($1, $1, 0, now() + interval '1 day', '\x00')`, nodeID)
	if err := s.Pool().SendBatch(context.Background(), batch).Close(); err != nil {
		t.Fatalf("make a node: %v", err)
	}
	Connect(t, s, nodeID)
	return nodeID
}

// Connect opens a session of a node that Deployed made.
func Connect(t testing.TB, s *store.Store, nodeID string) (epoch int64) {
	t.Helper()
	epoch, err := s.OpenSession(context.Background(), "gw-1", store.ShownCert{NodeID: nodeID, Serial: nodeID, KeyHash: []byte{0}})
	if err != nil {
		t.Fatalf("connect node %s: %v", nodeID, err)
	}
	return epoch
}

// CapacitySound fails the test when something that must always hold of pools,
// quotas, reservations and allocations does not.
func CapacitySound(t testing.TB, s *store.Store) {
	t.Helper()
	for _, broken := range CapacityFaults(t, s) {
		t.Errorf("broken: %s", broken)
	}
}

// capacityRules find rows that break what must always hold.
var capacityRules = map[string]string{
	"a device has the holder that its live booking says": `SELECT d.id FROM devices d
		FULL JOIN (SELECT * FROM allocation_devices WHERE live) x ON x.device_id = d.id WHERE d.allocation_id IS DISTINCT FROM x.allocation_id`,
	"only active allocations hold devices, as many as they say, on their node": `SELECT a.id FROM allocations a
		LEFT JOIN devices d ON d.allocation_id = a.id AND d.node_id = a.node_id GROUP BY a.id
		HAVING count(d.id) <> CASE WHEN a.state = 'active' THEN a.gpus ELSE 0 END`,
	"a quota's slots add up to the offer": `SELECT o.tenant_id FROM pool_offers o LEFT JOIN quota_slots q USING (pool_id, tenant_id)
		GROUP BY o.pool_id, o.tenant_id, o.quota_gpus HAVING coalesce(sum(q.quota), 0) <> o.quota_gpus`,
	"a quota's use is what its allocations hold": `SELECT o.tenant_id FROM pool_offers o JOIN quota_slots q USING (pool_id, tenant_id)
		GROUP BY o.pool_id, o.tenant_id HAVING sum(q.used) <> (SELECT coalesce(sum(a.gpus), 0) FROM allocations a
			WHERE a.pool_id = o.pool_id AND a.tenant_id = o.tenant_id AND a.state = 'active' AND a.reservation_id IS NULL)`,
	"a reservation's use is what its allocations hold": `SELECT r.id FROM reservations r
		WHERE r.used <> (SELECT coalesce(sum(a.gpus), 0) FROM allocations a WHERE a.reservation_id = r.id AND a.state = 'active')`,
	"no quota is passed but by a forced cut": `SELECT tenant_id FROM quota_slots GROUP BY pool_id, tenant_id HAVING sum(used) > sum(quota) + sum(over)`,
}

// CapacityFaults names the rules that are broken.
func CapacityFaults(t testing.TB, s *store.Store) []string {
	t.Helper()
	var out []string
	for rule, sql := range capacityRules {
		rows, err := s.Pool().Query(context.Background(), sql)
		if err != nil {
			t.Fatalf("%s: %v", rule, err)
		}
		bad, err := pgx.CollectRows(rows, pgx.RowTo[*string])
		if err != nil {
			t.Fatalf("%s: %v", rule, err)
		}
		if len(bad) > 0 {
			out = append(out, rule)
		}
	}
	return out
}
