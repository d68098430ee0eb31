package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// challengeLife is how long a machine has to answer the challenge of its TPM,
// by the database's clock. A slow TPM takes seconds.
const challengeLife = 5 * time.Minute

// ReasonTPMChallenge is the reason of a TPM's proof that is missing, was used,
// has ended, or is of another challenge; a fresh challenge mends it.
const ReasonTPMChallenge = "tpm-challenge"

// ChallengeIn is a secret that was made unreadable for all but one TPM, and what
// it may be shown for.
type ChallengeIn struct {
	Secret []byte
	// EK names the TPM.
	EK string
	// KeyHash is of the key of the certificate request.
	KeyHash []byte
	// Token is that of a join. Shown, when not nil, is the certificate that is to
	// be renewed; then there is no token.
	Token string
	Shown *ShownCert
}

// Challenge records a challenge. Only who holds a token that lets machines join,
// or a certificate that may be renewed, is given one.
func (s *Store) Challenge(ctx context.Context, in ChallengeIn) error {
	return s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		asked := askedByToken(in.Token)
		if in.Shown != nil {
			asked = askedByNode(in.Shown.NodeID)
			if err := judgeCert(ctx, tx, *in.Shown, RenewGrace); err != nil {
				return err
			}
		} else if _, err := findJoinToken(ctx, tx, in.Token); err != nil {
			return err
		}
		// Those that were never answered go with the next one that is asked for.
		_, err := tx.Exec(ctx, `DELETE FROM tpm_challenges WHERE secret_hash IN (
			SELECT secret_hash FROM tpm_challenges WHERE expires_at < now() ORDER BY expires_at LIMIT 100 FOR UPDATE SKIP LOCKED)`)
		if err != nil {
			return fmt.Errorf("drop ended challenges of TPMs: %w", err)
		}
		_, err = tx.Exec(ctx, `INSERT INTO tpm_challenges (secret_hash, key_hash, asked_by, ek, expires_at) VALUES ($1, $2, $3, $4, now() + $5::interval)`,
			hashSecret(string(in.Secret)), in.KeyHash, asked, in.EK, challengeLife)
		return wrapDoing(err, "record a challenge of a TPM")
	})
}

func askedByToken(token string) []byte { return hashSecret("token " + token) }

func askedByNode(nodeID string) []byte { return hashSecret("node " + nodeID) }

// useChallenge takes a proof, once, and says which TPM gave it; no proof is no
// TPM. The statement that takes it judges it.
func useChallenge(ctx context.Context, tx pgx.Tx, proof, keyHash, asked []byte) (ek string, err error) {
	if len(proof) == 0 {
		return "", nil
	}
	err = tx.QueryRow(ctx, `DELETE FROM tpm_challenges WHERE secret_hash = $1 AND key_hash = $2 AND asked_by = $3 AND expires_at > now() RETURNING ek`,
		hashSecret(string(proof)), keyHash, asked).Scan(&ek)
	if isNoRows(err) {
		return "", fleet.Errorf(fleet.CodeAccessDenied, ReasonTPMChallenge, "the TPM's proof answers no open challenge of this key: it was used, has ended, or is of another one; ask for a fresh challenge")
	}
	return ek, wrapDoing(err, "take the proof of a TPM")
}

// judgeRenewalTPM requires of a node whose TPM is bound that this TPM proved
// itself anew.
func judgeRenewalTPM(ctx context.Context, tx pgx.Tx, nodeID string, keyHash, proof []byte) error {
	proved, err := useChallenge(ctx, tx, proof, keyHash, askedByNode(nodeID))
	if err != nil {
		return err
	}
	var bound string
	err = tx.QueryRow(ctx, `SELECT value FROM machine_claims WHERE kind = 'ek' AND node_id = $1`, nodeID).Scan(&bound)
	switch {
	case isNoRows(err):
		return nil
	case err != nil:
		return fmt.Errorf("read the TPM of node %s: %w", nodeID, err)
	case proved == "":
		return fleet.Errorf(fleet.CodeAccessDenied, ReasonTPMChallenge, "the TPM of node %s is bound: its certificate is renewed with a fresh proof of that TPM only", nodeID)
	case proved != bound:
		return fleet.Errorf(fleet.CodeAccessDenied, fleet.ReasonKeyDiffers, "another TPM than the one bound to node %s gave the proof", nodeID)
	}
	return nil
}
