package store

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// syncSpec brings the NodeSpec of a joined node, whose row is locked, up to
// date. Its version rises only when it changed.
func syncSpec(ctx context.Context, tx pgx.Tx, nodeID string) error {
	var joined bool
	var raw json.RawMessage
	var version int64
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM node_keys WHERE node_id = $1),
		(SELECT doc FROM node_specs WHERE node_id = $1), coalesce((SELECT version FROM node_specs WHERE node_id = $1), 0)`, nodeID).Scan(&joined, &raw, &version)
	if err != nil || !joined {
		return wrapDoing(err, "read the spec of node "+nodeID)
	}
	want, made, err := buildSpec(ctx, tx, nodeID)
	if err != nil {
		return err
	}
	if raw != nil {
		var have fleet.NodeSpec
		if err := json.Unmarshal(raw, &have); err != nil {
			return fmt.Errorf("read the spec of node %s: %w", nodeID, err)
		}
		want.Version, want.Tag = have.Version, have.Tag
		if reflect.DeepEqual(have, want) {
			_, err := tx.Exec(ctx, `UPDATE node_specs SET ssh_version = $2, ssh_expired = $3::text::numeric WHERE node_id = $1
				AND (ssh_version, ssh_expired) IS DISTINCT FROM ($2, $3::text::numeric)`, nodeID, made.version, made.expired)
			return wrapDoing(err, "note of what the spec of node "+nodeID+" was made")
		}
	}
	want.Version, want.Tag = version+1, rand.Text()
	_, err = tx.Exec(ctx, `INSERT INTO node_specs (node_id, version, doc, ssh_version, ssh_expired) VALUES ($1, $2, $3, $4, $5::text::numeric)
		ON CONFLICT (node_id) DO UPDATE SET version = EXCLUDED.version, doc = EXCLUDED.doc, changed_at = now(),
		ssh_version = EXCLUDED.ssh_version, ssh_expired = EXCLUDED.ssh_expired`, nodeID, want.Version, want, made.version, made.expired)
	return wrapDoing(err, "write the spec of node "+nodeID)
}

// specMade is of what SSH configuration a spec was made.
type specMade struct {
	version int64
	// expired is the greatest serial of a certificate that has ended.
	expired string
}

// buildSpec makes the NodeSpec of what is recorded.
func buildSpec(ctx context.Context, tx pgx.Tx, nodeID string) (fleet.NodeSpec, specMade, error) {
	spec := fleet.NodeSpec{NodeID: nodeID, Labels: map[string]string{}, Taints: []string{}}
	var labels map[string]string
	var reasons, cas, accounts, revoked []string
	var made specMade
	var now time.Time
	var more bool
	// The serial below which all have ended is raised only when another one ended:
	// a spec that says nothing new keeps its version.
	err := tx.QueryRow(ctx, `WITH known AS (SELECT coalesce((SELECT ssh_expired FROM node_specs WHERE node_id = $1), 0) AS expired)
		SELECT labels, no_schedule_reasons,
		ARRAY(SELECT public_key FROM ssh_cas WHERE distrusted_at IS NULL ORDER BY public_key COLLATE "C"),
		ARRAY(SELECT account FROM ssh_accounts ORDER BY account COLLATE "C"),
		ARRAY(SELECT serial::text FROM ssh_certs c WHERE c.node_id = n.id AND revoked_at IS NOT NULL AND serial > known.expired AND valid_before > now() ORDER BY c.serial),
		(SELECT version FROM ssh_config), known.expired::text, now(),
		known.expired = 0 OR EXISTS (SELECT FROM ssh_certs c WHERE c.node_id = n.id AND c.serial > known.expired AND valid_before <= now())
		FROM nodes n, known WHERE id = $1`, nodeID).Scan(&labels, &reasons, &cas, &accounts, &revoked, &made.version, &made.expired, &now, &more)
	if err != nil {
		return spec, made, fmt.Errorf("read what the spec of node %s is made of: %w", nodeID, err)
	}
	if more {
		made.expired = strconv.FormatUint(SSHExpiredThrough(now), 10)
	}
	for k, v := range labels {
		if !strings.HasPrefix(k, inventoryLabels) && !strings.HasPrefix(k, "system/") {
			spec.Labels[k] = v
		}
	}
	for _, r := range reasons {
		if key, ok := strings.CutPrefix(r, fleet.TaintPrefix); ok {
			spec.Taints = append(spec.Taints, key)
		}
	}
	slices.Sort(spec.Taints)
	if len(cas) == 0 {
		return spec, made, nil
	}
	spec.SSH = &fleet.SSHSpec{CAKeys: cas, Principals: map[string][]string{}, RevokedSerials: revoked, ExpiredThrough: made.expired}
	for _, a := range accounts {
		spec.SSH.Principals[a] = []string{fleet.SSHPrincipal(a, nodeID)}
	}
	return spec, made, nil
}

// NodeSpecBeside returns a node's spec, nil when it is the one that the agent knows
// by its version and tag. Another one may be older: the database was restored.
func (s *Store) NodeSpecBeside(ctx context.Context, nodeID string, version int64, tag string) (*fleet.NodeSpec, error) {
	var spec fleet.NodeSpec
	err := s.pool.QueryRow(ctx, `SELECT doc FROM node_specs WHERE node_id = $1 AND (version <> $2 OR coalesce(doc->>'tag', '') <> $3)`, nodeID, version, tag).Scan(&spec)
	if isNoRows(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the spec of node %s: %w", nodeID, err)
	}
	return &spec, nil
}

// SpecReport is what an agent says of a version it tried.
type SpecReport struct {
	Version int64 `json:"version"`
	// Applied is the version that it runs now: Version, or the last good one.
	Applied int64  `json:"applied"`
	Error   string `json:"error,omitempty"`
	// SSHConflict says what of the host's own sshd configuration stands in the
	// way.
	SSHConflict string `json:"sshConflict,omitempty"`
	// Address is the host's own, "" when it has none that others reach.
	Address string `json:"address,omitempty"`
}

// ReportSpec records what an agent made of a NodeSpec.
func (s *Store) ReportSpec(ctx context.Context, nodeID string, r SpecReport) error {
	_, err := s.pool.Exec(ctx, `UPDATE node_specs SET judged = greatest(judged, least($2, version)), applied = least($3, version), applied_at = now(), apply_error = NULLIF($4, ''),
		address = NULLIF($5, '') WHERE node_id = $1`, nodeID, r.Version, r.Applied, r.Error, r.Address)
	if err != nil {
		return fmt.Errorf("record the spec that node %s runs: %w", nodeID, err)
	}
	c := fleet.Condition{Type: "SshConflict", Status: fleet.ConditionFalse, Reason: "none"}
	switch {
	case r.SSHConflict != "":
		c.Status, c.Reason, c.Message = fleet.ConditionTrue, "host-configuration", r.SSHConflict
		if r.Error != "" {
			c.Message += "; " + r.Error
		}
	case r.Error != "":
		c.Status, c.Reason, c.Message = fleet.ConditionTrue, "not-applied", fmt.Sprintf("NodeSpec %d could not be applied and %d stays: %s", r.Version, r.Applied, r.Error)
	}
	return s.SetCondition(ctx, nodeID, c)
}
