package store

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// The labels that keep what is derived from the boot key apart.
const (
	labelBootID      = "boot-id"
	labelToken       = "call-in-token"
	labelSession     = "session"
	labelReport      = "report-id"
	labelDeployToken = "deploy-token"
)

// presence is how long a machine that was heard of counts as there.
const presence = 90 * time.Second

// ReasonBootUsed is the reason of arming a boot again that a machine used, or
// that was voided.
const ReasonBootUsed = "boot-used"

// derive makes an unguessable, url-safe word from the boot key. The parts hold
// no zero byte, so that no two lists of parts derive the same.
func (s *Store) derive(label string, parts ...string) (string, error) {
	if len(s.BootKey) < 32 {
		return "", errors.New("no boot key of 32 bytes is configured (COMPUTE_BOOT_KEY)")
	}
	mac := hmac.New(sha256.New, s.BootKey)
	mac.Write([]byte(label + "\x00" + strings.Join(parts, "\x00")))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)), nil
}

// hashSecret is what is stored of a token or a session.
func hashSecret(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// ArmBoot makes the operation's boot of this number and voids the ones before,
// with their commands. The same number again returns the same boot while no
// machine used it.
func (s *Store) ArmBoot(ctx context.Context, operationID string, number int) (fleet.Boot, error) {
	id, err := s.derive(labelBootID, operationID, strconv.Itoa(number))
	if err != nil {
		return fleet.Boot{}, err
	}
	token, err := s.derive(labelToken, operationID, strconv.Itoa(number))
	if err != nil {
		return fleet.Boot{}, err
	}
	err = s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		var spent bool
		err := tx.QueryRow(ctx, `INSERT INTO boots (id, operation_id, node_id, power_on, token_hash) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (operation_id, power_on) DO UPDATE SET token_hash = EXCLUDED.token_hash
			RETURNING used_at IS NOT NULL OR voided_at IS NOT NULL`, id, o.ID, o.NodeID, number, hashSecret(token)).Scan(&spent)
		if err != nil {
			return fmt.Errorf("arm boot %d of operation %s: %w", number, o.ID, err)
		}
		if spent {
			return fleet.Errorf(fleet.CodeConflict, ReasonBootUsed, "boot %d of operation %s was used or ended; arm the next number", number, o.ID)
		}
		batch := &pgx.Batch{}
		batch.Queue(`UPDATE commands SET state = 'cancelled', secrets = NULL, ended_at = now()
			WHERE operation_id = $1 AND boot_id <> $2 AND state IN ('pending', 'delivered')`, o.ID, id)
		batch.Queue(`UPDATE boots SET voided_at = now() WHERE operation_id = $1 AND id <> $2 AND voided_at IS NULL`, o.ID, id)
		batch.Queue(`UPDATE operations SET power_on = greatest(power_on, $2) WHERE id = $1`, o.ID, number)
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return fmt.Errorf("void the former boots of operation %s: %w", o.ID, err)
		}
		return nil
	})
	if err != nil {
		return fleet.Boot{}, err
	}
	base := strings.TrimSuffix(s.BootURL, "/") + "/boot/" + id
	return fleet.Boot{ID: id, ISOURL: base + "/compute.iso", HTTPURL: base + "/boot.efi", Number: number}, nil
}

// VoidBoots ends all boots of the operation: their files and tokens are gone,
// and a machine that called in on one is told to stop.
func (s *Store) VoidBoots(ctx context.Context, operationID string) error {
	if _, err := s.pool.Exec(ctx, `UPDATE boots SET voided_at = now() WHERE operation_id = $1 AND voided_at IS NULL`, operationID); err != nil {
		return fmt.Errorf("void the boots of operation %s: %w", operationID, err)
	}
	return nil
}

// PresenceWindow is how long a machine that was heard of counts as there; it is
// shorter where time is scaled, but leaves room for a real network.
func (s *Store) PresenceWindow() time.Duration {
	if s.TimeScale <= 1 {
		return presence
	}
	return max(time.Duration(float64(presence)/s.TimeScale), 6*time.Second)
}

// Machine reads what is known of the machine on the operation's last boot. An
// operation without a boot has none.
func (s *Store) Machine(ctx context.Context, operationID string) (fleet.Machine, error) {
	var m fleet.Machine
	err := s.pool.QueryRow(ctx, `SELECT used_at IS NOT NULL, reused_at IS NOT NULL, coalesce(last_seen_at > now() - $2::interval, false), read_at
		FROM boots WHERE operation_id = $1 ORDER BY power_on DESC LIMIT 1`, operationID, s.PresenceWindow()).
		Scan(&m.CalledIn, &m.Reused, &m.Present, &m.ReadAt)
	if err != nil && !isNoRows(err) {
		return m, fmt.Errorf("read the machine of operation %s: %w", operationID, err)
	}
	return m, nil
}

// ImageURL opens the whole URL of the operation's image.
func (s *Store) ImageURL(ctx context.Context, operationID string) (string, error) {
	url, err := s.OperationSecret(ctx, operationID, fleet.SecretImageURL)
	if err == nil || fleet.CodeOf(err) != fleet.CodeNotFound {
		return url, err
	}
	// A URL without a query is no secret and lies in the input.
	var plain *string
	err = s.pool.QueryRow(ctx, `SELECT input->'image'->>'url' FROM operations WHERE id = $1`, operationID).Scan(&plain)
	if isNoRows(err) || (err == nil && plain == nil) {
		return "", fleet.NotFound("image")
	}
	if err != nil {
		return "", fmt.Errorf("read the image of operation %s: %w", operationID, err)
	}
	return *plain, nil
}
