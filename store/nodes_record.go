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

// RecordFound stores what was learned of a machine through its BMC. A machine
// key that another node of the site has is CONFLICT, reason already-enrolled.
// Of another firmware than the one recorded the quirks are learned anew.
func (s *Store) RecordFound(ctx context.Context, operationID string, f fleet.Found, driver string) error {
	err := s.recordFound(ctx, operationID, f, driver)
	if fleet.ReasonOf(err) == conflicts["bmcs_machine_unique"].reason {
		return s.nameEnrolled(ctx, operationID, f.MachineKey, err)
	}
	return err
}

// nameEnrolled says which node of the site the machine is already.
func (s *Store) nameEnrolled(ctx context.Context, operationID, machineKey string, refused error) error {
	var id, name, address string
	err := s.pool.QueryRow(ctx, `SELECT n.id, coalesce(n.name, ''), b.address FROM bmcs b JOIN nodes n ON n.id = b.node_id
		WHERE b.machine_key = $2 AND b.site_id = (SELECT o.site_id FROM bmcs o JOIN operations p ON p.node_id = o.node_id WHERE p.id = $1)`,
		operationID, machineKey).Scan(&id, &name, &address)
	if err != nil {
		return refused // it was deleted in between, or Postgres went away: a retry tells
	}
	return fleet.Errorf(fleet.CodeConflict, fleet.ReasonOf(refused), "this machine is enrolled in the site as node %s, whose BMC address is %s", strings.TrimSpace(id+" "+name), address)
}

func (s *Store) recordFound(ctx context.Context, operationID string, f fleet.Found, driver string) error {
	hw := fleet.Hardware{UUID: f.Identity.UUID, Serial: f.Identity.Serial, Vendor: f.Identity.Manufacturer}
	return s.fencedMachine(ctx, operationID, machineNames(hw), func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		if byBMC(o.Verb) {
			if err := refuseAdopted(ctx, tx, o, hw); err != nil {
				return err
			}
		}
		if f.Quirks == nil {
			f.Quirks = []string{}
		}
		f.Capabilities.Driver = driver
		var before string
		if err := tx.QueryRow(ctx, `SELECT coalesce(power_state, '') FROM bmcs WHERE node_id = $1`, o.NodeID).Scan(&before); err != nil {
			return noRows(err, "BMC", "read the power of node "+o.NodeID)
		}
		_, err := tx.Exec(ctx, `UPDATE bmcs SET system = CASE WHEN system_named THEN system ELSE $2 END,
				identity = CASE WHEN identity = '{}' THEN $3::jsonb ELSE $3::jsonb || identity END,
				machine_key = coalesce(machine_key, NULLIF($4, '')), capabilities = $5,
				quirks = CASE WHEN coalesce(capabilities->>'firmwareVersion', $5::jsonb->>'firmwareVersion', '') = coalesce($5::jsonb->>'firmwareVersion', '') THEN $6 ELSE '{}'::text[] END,
				power_state = $7, power_at = now(), reachable = true, last_error = NULL, checked_at = now()
			WHERE node_id = $1`, o.NodeID, f.System, f.Identity, f.MachineKey, f.Capabilities, f.Quirks, string(f.Power))
		if err != nil {
			return fmt.Errorf("record what was found of node %s: %w", o.NodeID, err)
		}
		if _, err := tx.Exec(ctx, `UPDATE operations SET hardware_model = NULLIF($2, '') WHERE id = $1`, o.ID, f.Identity.Model); err != nil {
			return fmt.Errorf("record the hardware model of operation %s: %w", o.ID, err)
		}
		if before == string(f.Power) {
			return nil
		}
		return o.event(ctx, tx, "node.power.changed", o.Version, false, map[string]any{"from": before, "to": string(f.Power)})
	})
}

// RecordMaybeInUse sets or clears the presumption that the machine runs
// somebody's work.
func (s *Store) RecordMaybeInUse(ctx context.Context, operationID string, inUse bool) error {
	return s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		if _, err := tx.Exec(ctx, `UPDATE nodes SET maybe_in_use = $2 WHERE id = $1`, o.NodeID, inUse); err != nil {
			return fmt.Errorf("record whether node %s may be in use: %w", o.NodeID, err)
		}
		return nil
	})
}

// RecordPower stores an observed power state, with an event when it changed.
// It is an observation: it needs no fence and raises no version.
func (s *Store) RecordPower(ctx context.Context, nodeID, actor string, state fleet.PowerState, at time.Time) error {
	return s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, _, err := lockNode(ctx, tx, nodeID); err != nil {
			return err
		}
		return recordPower(ctx, tx, nodeID, actor, state, at)
	})
}

// recordPower is RecordPower for a node whose row is locked.
func recordPower(ctx context.Context, tx pgx.Tx, nodeID, actor string, state fleet.PowerState, at time.Time) error {
	var before *string
	var beforeAt *time.Time
	if err := tx.QueryRow(ctx, `SELECT power_state, power_at FROM bmcs WHERE node_id = $1`, nodeID).Scan(&before, &beforeAt); err != nil {
		return noRows(err, "BMC", "read the power of node "+nodeID)
	}
	if beforeAt != nil && beforeAt.After(at) {
		return nil // an older look than the one recorded
	}
	if _, err := tx.Exec(ctx, `UPDATE bmcs SET power_state = $2, power_at = $3 WHERE node_id = $1`, nodeID, string(state), at); err != nil {
		return fmt.Errorf("record the power of node %s: %w", nodeID, err)
	}
	if orEmpty(before) == string(state) {
		return nil
	}
	return nodeEvent(ctx, tx, nodeID, actor, "node.power.changed", map[string]any{"from": orEmpty(before), "to": string(state)})
}

// nodeEvent writes an event of a node that is locked.
func nodeEvent(ctx context.Context, tx pgx.Tx, nodeID, actor, typ string, data map[string]any) error {
	var tenantID string
	var version int64
	if err := tx.QueryRow(ctx, `SELECT tenant_id, version FROM nodes WHERE id = $1`, nodeID).Scan(&tenantID, &version); err != nil {
		return fmt.Errorf("read node %s for an event: %w", nodeID, err)
	}
	audience, err := Audience(ctx, tx, nodeID)
	if err != nil {
		return err
	}
	return AddEvents(ctx, tx, EventIn{Type: typ, NodeID: nodeID, TenantID: tenantID, Audience: audience, Private: fleet.EventPrivate(typ),
		Actor: actor, Version: version, Data: data})
}

// SetCondition stores a condition and keeps its reason in noScheduleReasons,
// with an event when the status changed. A condition that stays as it is costs
// one read.
func (s *Store) SetCondition(ctx context.Context, nodeID string, c fleet.Condition) error {
	c.Message = fleet.Text(c.Message, mostError)
	var same bool
	err := s.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM conditions WHERE node_id = $1 AND type = $2 AND status = $3 AND reason = $4 AND message = $5)`,
		nodeID, c.Type, string(c.Status), c.Reason, c.Message).Scan(&same)
	if err != nil {
		return fmt.Errorf("read condition %s of node %s: %w", c.Type, nodeID, err)
	}
	if same {
		return nil
	}
	return s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, _, err := lockNode(ctx, tx, nodeID); err != nil {
			return err
		}
		return setCondition(ctx, tx, nodeID, c)
	})
}

// setCondition is SetCondition for a node whose row is locked.
func setCondition(ctx context.Context, tx pgx.Tx, nodeID string, c fleet.Condition) error {
	kind, ok := fleet.ConditionKinds[c.Type]
	if !ok {
		return fmt.Errorf("no condition type %q", c.Type)
	}
	var before fleet.ConditionStatus
	err := tx.QueryRow(ctx, `SELECT status FROM conditions WHERE node_id = $1 AND type = $2`, nodeID, c.Type).Scan(&before)
	if err != nil && !isNoRows(err) {
		return fmt.Errorf("read condition %s of node %s: %w", c.Type, nodeID, err)
	}
	_, err = tx.Exec(ctx, `INSERT INTO conditions (node_id, type, status, reason, message) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (node_id, type) DO UPDATE SET status = EXCLUDED.status, reason = EXCLUDED.reason, message = EXCLUDED.message,
		since = CASE WHEN conditions.status = EXCLUDED.status THEN conditions.since ELSE now() END`,
		nodeID, c.Type, string(c.Status), c.Reason, c.Message)
	if err != nil {
		return fmt.Errorf("record condition %s of node %s: %w", c.Type, nodeID, err)
	}
	if c.Type == "BmcTrusted" && c.Status == fleet.ConditionTrue {
		if _, err := tx.Exec(ctx, `UPDATE bmcs SET tls_shown = NULL WHERE node_id = $1 AND tls_shown IS NOT NULL`, nodeID); err != nil {
			return fmt.Errorf("forget the other certificate of the BMC of node %s: %w", nodeID, err)
		}
	}
	if before == c.Status {
		return nil
	}
	return conditionChanged(ctx, tx, nodeID, c, before, kind)
}

func conditionChanged(ctx context.Context, tx pgx.Tx, nodeID string, c fleet.Condition, before fleet.ConditionStatus, kind fleet.ConditionKind) error {
	if kind.AddReason != "" {
		set := `no_schedule_reasons = array_remove(no_schedule_reasons, $2)`
		if kind.Bad(c.Status) {
			set = `no_schedule_reasons = array_append(array_remove(no_schedule_reasons, $2), $2)`
		}
		var has bool
		if err := tx.QueryRow(ctx, `SELECT $2 = ANY (no_schedule_reasons) FROM nodes WHERE id = $1`, nodeID, kind.AddReason).Scan(&has); err != nil {
			return fmt.Errorf("read the reasons of node %s: %w", nodeID, err)
		}
		if has != kind.Bad(c.Status) {
			if _, err := changeNode(ctx, tx, nodeID, "reason", set, kind.AddReason); err != nil {
				return err
			}
			// Its pool may have room now.
			if err := WantReconcile(ctx, tx, nodeID); err != nil {
				return err
			}
		}
	}
	return nodeEvent(ctx, tx, nodeID, "system", "node.condition.changed",
		map[string]any{"type": c.Type, "from": string(before), "to": string(c.Status), "reason": c.Reason, "message": c.Message})
}

// RevokeIdentity revokes the node's certificates and raises its generation,
// once an operation.
func (s *Store) RevokeIdentity(ctx context.Context, operationID, reason string) error {
	return s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		if _, done := o.Journal["identity-revoked"]; done {
			return nil
		}
		if _, err := tx.Exec(ctx, `UPDATE operations SET journal = journal || '{"identity-revoked": true}' WHERE id = $1`, o.ID); err != nil {
			return fmt.Errorf("record the revocation by operation %s: %w", o.ID, err)
		}
		// The disk that held the key goes. A TPM stays bound, by its claim.
		if _, err := tx.Exec(ctx, `DELETE FROM node_keys WHERE node_id = $1`, o.NodeID); err != nil {
			return fmt.Errorf("unbind the key of node %s: %w", o.NodeID, err)
		}
		_, version, err := RevokeNodeIdentity(ctx, tx, o.NodeID, reason)
		if err != nil {
			return err
		}
		return o.event(ctx, tx, "security.node.identity-revoked", version, true, map[string]any{"reason": reason})
	})
}

// RecordEraseOwed marks the disks as holding a deployed image from now on, and
// that none is known to be whole.
func (s *Store) RecordEraseOwed(ctx context.Context, operationID string) error {
	return s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		if _, err := tx.Exec(ctx, `UPDATE nodes SET erase_owed_since = clock_timestamp(), whole_image = false WHERE id = $1`, o.NodeID); err != nil {
			return fmt.Errorf("record that node %s owes an erase: %w", o.NodeID, err)
		}
		return nil
	})
}

// RecordImage stores the image on the disk; whole says that all of it was
// verified.
func (s *Store) RecordImage(ctx context.Context, operationID string, image fleet.ImageView, whole bool) error {
	return s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		return recordResult(ctx, tx, fencedOp{NodeID: o.NodeID}, fleet.OperationResult{Image: &image, Whole: &whole})
	})
}

// RecordErase stores erase records, keeps skipped disks shown on the node, and
// clears what is owed once every fixed disk of the inventory has a record since.
// A disk without a serial can have none, so it goes on being owed. What a key of
// the operation stored already is not stored again.
func (s *Store) RecordErase(ctx context.Context, operationID, key string, disks []fleet.DiskErase) error {
	key = "erase-recorded/" + key
	return s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		if _, done := o.Journal[key]; done {
			return nil
		}
		if _, err := tx.Exec(ctx, `UPDATE operations SET journal = journal || jsonb_build_object($2::text, true) WHERE id = $1`, o.ID, key); err != nil {
			return fmt.Errorf("record that operation %s recorded its erase: %w", o.ID, err)
		}
		batch := &pgx.Batch{}
		for _, d := range disks {
			batch.Queue(`INSERT INTO erase_records (id, node_id, operation_id, tenant_id, disk_serial, method, result, detail, actor)
				VALUES ($1, $2, $3, $4, $5, $6, $7, NULLIF($8, ''), $9)`,
				NewID(fleet.KindErase), o.NodeID, o.ID, o.TenantID, d.Serial, d.Method, d.Result, d.Detail, o.RequestedBy)
		}
		skipped := slices.DeleteFunc(slices.Clone(disks), func(d fleet.DiskErase) bool { return d.Method != "skipped" })
		if len(skipped) > 0 {
			batch.Queue(`UPDATE nodes SET skipped_disks = skipped_disks || $2::jsonb WHERE id = $1`, o.NodeID, skipped)
		}
		batch.Queue(`UPDATE nodes n SET erase_owed_since = NULL
			WHERE n.id = $1 AND n.erase_owed_since IS NOT NULL
			AND EXISTS (SELECT FROM inventories i WHERE i.node_id = n.id)
			AND NOT EXISTS (
				SELECT FROM inventories i, jsonb_array_elements(coalesce(i.doc->'disks', '[]')) disk
				WHERE i.node_id = n.id AND NOT coalesce((disk->>'removable')::boolean, false) AND NOT EXISTS (
					SELECT FROM erase_records r WHERE r.node_id = n.id AND r.disk_serial = coalesce(disk->>'serial', '')
					AND r.at >= n.erase_owed_since AND r.result IN ('done', 'skipped')))`, o.NodeID)
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return fmt.Errorf("record the erase of node %s: %w", o.NodeID, err)
		}
		return o.event(ctx, tx, "node.disks.erased", o.Version, true, map[string]any{"disks": disks})
	})
}
