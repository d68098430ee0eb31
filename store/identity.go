package store

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// RevokeNodeIdentity revokes every certificate of a node whose row is locked,
// raises its generation and ends what its session stood for. It returns how many
// certificates were live. Gateways close its sessions when they next look.
func RevokeNodeIdentity(ctx context.Context, tx pgx.Tx, nodeID, reason string) (revoked int, version int64, err error) {
	err = tx.QueryRow(ctx, `WITH gone AS (
			UPDATE certificates SET revoked_at = now(), revoke_reason = $2 WHERE node_id = $1 AND revoked_at IS NULL RETURNING not_after)
		SELECT count(*) FROM gone WHERE not_after > now()`, nodeID, reason).Scan(&revoked)
	if err != nil {
		return 0, 0, fmt.Errorf("revoke the certificates of node %s: %w", nodeID, err)
	}
	batch := &pgx.Batch{}
	batch.Queue(`UPDATE commands SET state = 'cancelled', secrets = NULL, ended_at = now()
		WHERE node_id = $1 AND boot_id IS NULL AND state IN ('pending', 'delivered')`, nodeID)
	// What an earlier deploy left on its disk binds no key any more.
	batch.Queue(`UPDATE deploy_tokens SET expires_at = least(expires_at, now()) WHERE node_id = $1`, nodeID)
	batch.Queue(`UPDATE sessions SET disconnected_at = coalesce(disconnected_at, now()) WHERE node_id = $1`, nodeID)
	// Connected exists only while there is an identity to connect with.
	batch.Queue(`DELETE FROM conditions WHERE node_id = $1 AND type = 'Connected'`, nodeID)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return 0, 0, fmt.Errorf("end the session of node %s: %w", nodeID, err)
	}
	version, err = changeNode(ctx, tx, nodeID, "revoke the identity of", `identity_generation = identity_generation + 1,
		no_schedule_reasons = array_remove(no_schedule_reasons, $2)`, fleet.ReasonUnreachable)
	return revoked, version, err
}

// ShownCert is a certificate that a machine showed, as it was read.
type ShownCert struct {
	NodeID     string
	Generation int64
	Serial     string
	KeyHash    []byte
	NotAfter   time.Time
}

// ReasonCertificate is the reason of a certificate that serves nothing now.
const ReasonCertificate = "certificate"

func notServed(why string) error {
	return fleet.Errorf(fleet.CodeUnauthenticated, ReasonCertificate, "the certificate %s", why)
}

// judgeCert says whether a certificate that was shown is one that the node may
// use: recorded, its key's, of the present generation, not revoked, and by the
// database's clock not past its end by more than grace. Grace is that of a
// renewal, which also takes one that the database has forgotten.
func judgeCert(ctx context.Context, q Reader, c ShownCert, grace time.Duration) error {
	var revoked, ended, sameKey bool
	var generation, present int64
	err := q.QueryRow(ctx, `SELECT c.revoked_at IS NOT NULL, c.not_after + $3::interval <= now(), c.key_hash = $4, c.generation, n.identity_generation
		FROM certificates c JOIN nodes n ON n.id = c.node_id
		WHERE c.serial = $1 AND c.node_id = $2 AND n.deleted_at IS NULL`, c.Serial, c.NodeID, grace, c.KeyHash).
		Scan(&revoked, &ended, &sameKey, &generation, &present)
	switch {
	case isNoRows(err) && grace > 0:
		return judgeForgotten(ctx, q, c, grace)
	case isNoRows(err):
		return notServed("is not of a node that is here")
	case err != nil:
		return fmt.Errorf("look up a certificate of node %s: %w", c.NodeID, err)
	case !sameKey:
		return notServed("was issued for another key")
	case revoked:
		return notServed("was revoked")
	case generation != present || c.Generation != present:
		return notServed("is of an old generation")
	case ended:
		return notServed("has expired")
	}
	return nil
}

// judgeForgotten says whether a certificate that our CA signed and that the
// database does not know may be renewed. A restored database has forgotten all
// that were issued since its backup, a good part of a fleet's in a day: it knows
// their machines by the same key's earlier certificate of the same generation.
func judgeForgotten(ctx context.Context, q Reader, c ShownCert, grace time.Duration) error {
	var known bool
	err := q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM certificates c JOIN nodes n ON n.id = c.node_id
		WHERE c.node_id = $1 AND c.key_hash = $2 AND c.generation = $3 AND c.revoked_at IS NULL
		  AND n.identity_generation = $3 AND n.deleted_at IS NULL) AND $4::timestamptz + $5::interval > now()`,
		c.NodeID, c.KeyHash, c.Generation, c.NotAfter, grace).Scan(&known)
	switch {
	case err != nil:
		return fmt.Errorf("look up the key of node %s: %w", c.NodeID, err)
	case !known:
		return notServed("is not of a node that is here")
	}
	return nil
}

// Renew grants a certificate that follows the one shown, of the same key and
// generation. One that expired less than RenewGrace ago is good for this alone.
func (s *Store) Renew(ctx context.Context, shown ShownCert, keyHash []byte, serial string, proof []byte) (Granted, error) {
	g := Granted{NodeID: shown.NodeID, Generation: shown.Generation}
	err := s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, _, err := lockNode(ctx, tx, shown.NodeID); err != nil {
			if fleet.CodeOf(err) == fleet.CodeNotFound {
				return notServed("is not of a node that is here")
			}
			return err
		}
		if err := judgeCert(ctx, tx, shown, RenewGrace); err != nil {
			return err
		}
		if !bytes.Equal(keyHash, shown.KeyHash) {
			return fleet.Errorf(fleet.CodeAccessDenied, "key", "a certificate is renewed for the same key; with a new key the machine joins again")
		}
		if err := judgeRenewalTPM(ctx, tx, shown.NodeID, keyHash, proof); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, `INSERT INTO certificates (serial, node_id, generation, not_after, key_hash, used_at)
			VALUES ($1, $2, $3, now() + $4::interval, $5, now()) RETURNING now(), not_after`,
			serial, shown.NodeID, shown.Generation, certLife, keyHash).Scan(&g.At, &g.NotAfter)
		return wrapDoing(err, "record a certificate of node "+shown.NodeID)
	})
	return g, err
}
