package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bettercompute/compute/fleet"
)

// admit writes an admitted join: the node, its key and what it is known by, the
// use of the token, the certificate to be signed, the event and the audit.
func (s *Store) admit(ctx context.Context, tx pgx.Tx, in JoinIn, token joinToken, outcome, nodeID string) (Granted, error) {
	out := Granted{Outcome: outcome, NodeID: nodeID}
	var err error
	switch outcome {
	case fleet.JoinNew:
		if out.NodeID, err = s.newNode(ctx, tx, token); err != nil {
			return out, err
		}
	case fleet.JoinNext:
		if _, err := tx.Exec(ctx, `UPDATE certificates SET revoked_at = now(), revoke_reason = 'joined again' WHERE node_id = $1 AND revoked_at IS NULL`, nodeID); err != nil {
			return out, fmt.Errorf("revoke the former certificates of node %s: %w", nodeID, err)
		}
		if _, err := changeNode(ctx, tx, nodeID, "raise the generation of", `identity_generation = identity_generation + 1`); err != nil {
			return out, err
		}
	}
	if err := useJoinToken(ctx, tx, token, in.KeyHash); err != nil {
		return out, err
	}
	if err := bindMachine(ctx, tx, in, token, out.NodeID); err != nil {
		return out, err
	}
	if err := settleAmbiguous(ctx, tx, out.NodeID); err != nil {
		return out, err
	}
	err = tx.QueryRow(ctx, `INSERT INTO certificates (serial, node_id, generation, not_after, key_hash, token_id)
		SELECT $1, id, identity_generation, now() + $3::interval, $4, $5 FROM nodes WHERE id = $2
		RETURNING generation, now(), not_after`, in.Serial, out.NodeID, certLife, in.KeyHash, token.ID).Scan(&out.Generation, &out.At, &out.NotAfter)
	if err != nil {
		return out, fmt.Errorf("record the certificate of node %s: %w", out.NodeID, err)
	}
	actor := "join:" + token.ID
	if in.Inventory != nil && outcome != fleet.JoinBind {
		if err := recordJoined(ctx, tx, out.NodeID, actor, *in.Inventory); err != nil {
			return out, err
		}
	}
	if outcome == fleet.JoinNew {
		if err := nodeEvent(ctx, tx, out.NodeID, actor, "node.adopting", map[string]any{"joinTokenId": token.ID}); err != nil {
			return out, err
		}
	}
	if err := nodeEvent(ctx, tx, out.NodeID, actor, "security.node.joined", map[string]any{"outcome": outcome, "generation": out.Generation}); err != nil {
		return out, err
	}
	if err := WantReconcile(ctx, tx, out.NodeID); err != nil {
		return out, err
	}
	return out, AddAudit(ctx, tx, AuditIn{TenantID: token.TenantID, Identity: actor, Method: "node/join", NodeID: out.NodeID, Outcome: "OK", RequestID: in.Serial})
}

// recordJoined records what a host that joins reads of itself. An enrolled
// machine's inventory is its BMC's and its boot image's to say.
func recordJoined(ctx context.Context, tx pgx.Tx, nodeID, actor string, inv fleet.Inventory) error {
	var guarded bool
	if err := tx.QueryRow(ctx, `SELECT guarded FROM nodes WHERE id = $1`, nodeID).Scan(&guarded); err != nil {
		return fmt.Errorf("read whether node %s was adopted: %w", nodeID, err)
	}
	if !guarded {
		return nil
	}
	inv.InBand = true
	return recordInventory(ctx, tx, nodeID, actor, inv)
}

// newNode makes a node in adopting with its first Adopt run.
func (s *Store) newNode(ctx context.Context, tx pgx.Tx, token joinToken) (string, error) {
	if token.PoolID != nil {
		var state string
		if err := tx.QueryRow(ctx, `SELECT state FROM pools WHERE id = $1 FOR SHARE`, *token.PoolID).Scan(&state); err != nil {
			return "", noRows(err, "pool", "read the pool of a join token")
		}
		if state != "active" {
			return "", fleet.Errorf(fleet.CodeInvalidState, "pool-archived", "the token's pool is archived; make another token")
		}
	}
	id, op := NewID(fleet.KindNode), NewID(fleet.KindOperation)
	_, err := tx.Exec(ctx, `INSERT INTO nodes (id, tenant_id, site_id, pool_id, provision_state, labels, guarded, identity_generation)
		VALUES ($1, $2, $3, $4, 'adopting', $5, true, 1)`, id, token.TenantID, token.SiteID, token.PoolID, token.Labels)
	if err != nil {
		return "", fmt.Errorf("insert node %s: %w", id, err)
	}
	if _, err := tx.Exec(ctx, `INSERT INTO node_visibility (tenant_id, node_id) VALUES ($1, $2)`, token.TenantID, id); err != nil {
		return "", fmt.Errorf("make node %s visible to its tenant: %w", id, err)
	}
	return id, s.InsertOperation(ctx, tx, NewOperation{ID: op, NodeID: id, TenantID: token.TenantID, Verb: fleet.VerbAdopt, Lane: LaneProvision,
		Input: map[string]any{}, RequestedBy: "join:" + token.ID})
}

// unanswered says whether the key $1 was bound with the token $2 and no
// certificate of that came to anything: then the machine may ask again, since
// the answer to a join can be lost. One that was used or revoked was answered,
// and its token is spent.
const unanswered = `EXISTS (SELECT FROM node_keys WHERE hash = $1 AND token_id = $2)
	AND NOT EXISTS (SELECT FROM certificates WHERE key_hash = $1 AND token_id = $2
		AND (used_at IS NOT NULL OR revoked_at IS NOT NULL AND revoke_reason <> 'joined again'))`

// useJoinToken counts a use; the conditions are judged by the statement that
// counts. A machine uses its token once, however often it asks before it has an
// answer.
func useJoinToken(ctx context.Context, tx pgx.Tx, token joinToken, keyHash []byte) error {
	if token.DeployNode != "" {
		return useDeployToken(ctx, tx, token, keyHash)
	}
	var before bool
	err := tx.QueryRow(ctx, `SELECT `+unanswered, keyHash, token.ID).Scan(&before)
	if err != nil {
		return fmt.Errorf("look for a former use of join token %s: %w", token.ID, err)
	}
	if before {
		return nil
	}
	tag, err := tx.Exec(ctx, `UPDATE join_tokens SET uses = uses + 1
		WHERE id = $1 AND uses < max_uses AND revoked_at IS NULL AND expires_at > now()`, token.ID)
	if err != nil {
		return fmt.Errorf("use join token %s: %w", token.ID, err)
	}
	if tag.RowsAffected() == 0 {
		return badJoinToken()
	}
	return nil
}

func useDeployToken(ctx context.Context, tx pgx.Tx, token joinToken, keyHash []byte) error {
	tag, err := tx.Exec(ctx, `UPDATE deploy_tokens SET used_at = coalesce(used_at, now())
		WHERE node_id = $3 AND 'deploy ' || operation_id = $2 AND expires_at > now()
		AND (used_at IS NULL OR `+unanswered+`)`, keyHash, token.ID, token.DeployNode)
	if err != nil {
		return fmt.Errorf("use the deploy token of node %s: %w", token.DeployNode, err)
	}
	if tag.RowsAffected() == 0 {
		return badJoinToken()
	}
	return nil
}

// bindMachine records the machine's key and what it is known by. The primary
// keys make a machine one node's, whatever ran at the same time.
func bindMachine(ctx context.Context, tx pgx.Tx, in JoinIn, token joinToken, nodeID string) error {
	macs := fleet.UniversalMACs(in.Hardware.MACs)
	if macs == nil {
		macs = []string{}
	}
	if err := bindKey(ctx, tx, in, token, nodeID); err != nil {
		return err
	}
	batch := &pgx.Batch{}
	batch.Queue(`DELETE FROM machine_claims WHERE node_id = $1 `, nodeID)
	uuids := machineUUIDs(in.Hardware.UUID)
	var uuid *string
	if len(uuids) > 0 {
		uuid = &uuids[0]
		batch.Queue(`INSERT INTO machine_claims (kind, value, node_id) VALUES ('uuid', $1, $2)`, uuids[0], nodeID)
	}
	if len(macs) > 0 {
		batch.Queue(`INSERT INTO machine_claims (kind, value, node_id) VALUES ('macs', $1, $2)`, strings.Join(macs, " "), nodeID)
	}
	if in.ek != "" {
		batch.Queue(`INSERT INTO machine_claims (kind, value, node_id) VALUES ('ek', $1, $2)`, in.ek, nodeID)
	}
	batch.Queue(`INSERT INTO joined_hardware (node_id, doc, uuid, macs) VALUES ($1, $2, $3, $4)
		ON CONFLICT (node_id) DO UPDATE SET doc = EXCLUDED.doc, uuid = EXCLUDED.uuid, macs = EXCLUDED.macs, joined_at = now()`, nodeID, in.Hardware, uuid, macs)
	return knownMachine(tx.SendBatch(ctx, batch).Close(), "bind the machine of node "+nodeID)
}

// bindKey makes the key the node's. A key of another node, or a node of another
// key, is a conflict.
func bindKey(ctx context.Context, tx pgx.Tx, in JoinIn, token joinToken, nodeID string) error {
	if in.ek != "" {
		// The TPM is who the machine is; the key that lay on a disk may be gone.
		if _, err := tx.Exec(ctx, `DELETE FROM node_keys WHERE node_id = $1 AND hash <> $2`, nodeID, in.KeyHash); err != nil {
			return fmt.Errorf("unbind the former key of node %s: %w", nodeID, err)
		}
	}
	tag, err := tx.Exec(ctx, `INSERT INTO node_keys (hash, node_id, token_id) VALUES ($1, $2, $3)
		ON CONFLICT (hash) DO UPDATE SET token_id = EXCLUDED.token_id WHERE node_keys.node_id = EXCLUDED.node_id`,
		in.KeyHash, nodeID, token.ID)
	if err != nil {
		return knownMachine(err, "bind the key of node "+nodeID)
	}
	if tag.RowsAffected() == 0 {
		return fleet.Errorf(fleet.CodeConflict, fleet.ReasonMachineKnown, "the key is another node's")
	}
	return nil
}

// knownMachine makes a CONFLICT of a broken claim.
func knownMachine(err error, doing string) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "23505" {
		return &fleet.Error{Code: fleet.CodeConflict, Reason: fleet.ReasonMachineKnown, Detail: "the machine joined as another node at the same moment", Err: err}
	}
	return wrapDoing(err, doing)
}

// JoinFile makes what the system that an operation installs joins as its node
// by: a one-time token, and the gateway that takes it. Made again it is the same.
func (s *Store) JoinFile(ctx context.Context, operationID string) (fleet.JoinFile, error) {
	f := fleet.JoinFile{GatewayURL: s.GatewayURL}
	err := s.pool.QueryRow(ctx, `SELECT ca_fingerprint FROM gateways WHERE ca_fingerprint IS NOT NULL ORDER BY at DESC LIMIT 1`).Scan(&f.CAFingerprint)
	if isNoRows(err) {
		return f, fleet.Errorf(fleet.CodeUnavailable, "no-gateway", "no gateway with a CA of nodes has served yet; start one")
	}
	if err != nil {
		return f, fmt.Errorf("look for the gateways' CA: %w", err)
	}
	f.Token, err = s.DeployToken(ctx, operationID)
	return f, err
}

// DeployToken makes the one-time token by which the system that an operation
// installs joins as its node. Made again it is the same.
func (s *Store) DeployToken(ctx context.Context, operationID string) (string, error) {
	word, err := s.derive(labelDeployToken, operationID)
	if err != nil {
		return "", err
	}
	token := "bcdeploy_" + word
	err = s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		_, err := tx.Exec(ctx, `INSERT INTO deploy_tokens (operation_id, node_id, hash, expires_at) VALUES ($1, $2, $3, now() + interval '24 hours')
			ON CONFLICT (operation_id) DO NOTHING`, o.ID, o.NodeID, hashSecret(token))
		return wrapDoing(err, "make the deploy token of operation "+o.ID)
	})
	return token, err
}
