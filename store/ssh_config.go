package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// raiseSSHConfig makes every NodeSpec be made anew.
func raiseSSHConfig(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `UPDATE ssh_config SET version = version + 1`)
	return wrapDoing(err, "note that the SSH configuration changed")
}

// lockSSHConfig keeps changes of CAs and accounts in order.
func lockSSHConfig(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT FROM ssh_config FOR UPDATE`)
	return wrapDoing(err, "lock the SSH configuration")
}

// PublishSSH makes the nodes trust the CA that this process signs with, and let
// certificates in to these accounts only. It says false when the CA was
// distrusted. What is so already is left as it is.
func (s *Store) PublishSSH(ctx context.Context, publicKey string, accounts []string) (trusted bool, err error) {
	accounts = slices.Sorted(slices.Values(accounts))
	err = s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := lockSSHConfig(ctx, tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `INSERT INTO ssh_cas (public_key) VALUES ($1) ON CONFLICT DO NOTHING`, publicKey)
		if err != nil {
			return fmt.Errorf("publish the SSH CA: %w", err)
		}
		var known []string
		if err := tx.QueryRow(ctx, `SELECT ARRAY(SELECT account FROM ssh_accounts ORDER BY account COLLATE "C"),
			(SELECT distrusted_at IS NULL FROM ssh_cas WHERE public_key = $1)`, publicKey).Scan(&known, &trusted); err != nil {
			return fmt.Errorf("read the SSH configuration: %w", err)
		}
		if !trusted || tag.RowsAffected() == 0 && slices.Equal(known, accounts) {
			return nil
		}
		if _, err := tx.Exec(ctx, `DELETE FROM ssh_accounts WHERE account <> ALL ($1)`, accounts); err != nil {
			return fmt.Errorf("publish the SSH accounts: %w", err)
		}
		if _, err := tx.Exec(ctx, `INSERT INTO ssh_accounts SELECT unnest($1::text[]) ON CONFLICT DO NOTHING`, accounts); err != nil {
			return fmt.Errorf("publish the SSH accounts: %w", err)
		}
		return raiseSSHConfig(ctx, tx)
	})
	return trusted, err
}

// SSHCA is an SSH CA that nodes know or knew.
type SSHCA struct {
	PublicKey    string
	CreatedAt    time.Time
	DistrustedAt *time.Time
}

// SSHCAs lists the SSH CAs, the oldest first.
func (s *Store) SSHCAs(ctx context.Context) ([]SSHCA, error) {
	rows, err := s.pool.Query(ctx, `SELECT public_key, created_at, distrusted_at FROM ssh_cas ORDER BY created_at, public_key`)
	if err != nil {
		return nil, fmt.Errorf("list the SSH CAs: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[SSHCA])
	return list, wrapDoing(err, "list the SSH CAs")
}

// TrustSSHCA makes the nodes trust a CA before a process signs with it.
func (s *Store) TrustSSHCA(ctx context.Context, publicKey string) error {
	return s.changeSSHCA(ctx, publicKey, `INSERT INTO ssh_cas (public_key) VALUES ($1) ON CONFLICT (public_key) DO UPDATE SET distrusted_at = NULL`)
}

// DistrustSSHCA makes the nodes refuse all that a CA signed.
func (s *Store) DistrustSSHCA(ctx context.Context, publicKey string) error {
	return s.changeSSHCA(ctx, publicKey, `UPDATE ssh_cas SET distrusted_at = coalesce(distrusted_at, now()) WHERE public_key = $1`)
}

func (s *Store) changeSSHCA(ctx context.Context, publicKey, sql string) error {
	return s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := lockSSHConfig(ctx, tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, sql, publicKey)
		if err != nil {
			return fmt.Errorf("change the SSH CA: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return fleet.Errorf(fleet.CodeNotFound, "", "no such SSH CA; compute keys ssh list shows those that there are")
		}
		return raiseSSHConfig(ctx, tx)
	})
}

// SSHTrusted says whether nodes trust a CA.
func SSHTrusted(ctx context.Context, q Reader, publicKey string) (bool, error) {
	var trusted bool
	err := q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM ssh_cas WHERE public_key = $1 AND distrusted_at IS NULL)`, publicKey).Scan(&trusted)
	return trusted, wrapDoing(err, "read whether the SSH CA is trusted")
}

// SyncSSH queues the reconcilers of joined nodes whose NodeSpec was made of
// another SSH configuration, or that have had a certificate end since.
func (s *Store) SyncSSH(ctx context.Context) (int, error) {
	ids, err := s.nodeIDs(ctx, "look for outdated NodeSpecs", `SELECT node_id FROM (
		SELECT s.node_id FROM node_specs s JOIN node_keys USING (node_id) WHERE s.ssh_version <> (SELECT version FROM ssh_config)
		UNION SELECT s.node_id FROM ssh_certs c JOIN node_specs s USING (node_id) JOIN node_keys USING (node_id)
			WHERE c.valid_before <= now() AND c.serial > s.ssh_expired
		) outdated WHERE NOT EXISTS (SELECT FROM reconcile_wanted w WHERE w.node_id = outdated.node_id)
		ORDER BY node_id LIMIT $1`, upkeepBatch)
	if err != nil {
		return 0, err
	}
	for _, id := range ids {
		err := s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			if _, _, err := lockNode(ctx, tx, id); err != nil {
				return err
			}
			return WantReconcile(ctx, tx, id)
		})
		if err != nil && fleet.CodeOf(err) != fleet.CodeNotFound {
			return 0, err
		}
	}
	return len(ids), nil
}

// sshKept is how long the record of a certificate is kept after its end.
const sshKept = 24 * time.Hour

// ForgetSSHCerts removes the records of certificates that ended more than a day
// ago, and returns how many. One that its node's spec does not name as ended yet
// stays until it does: a revoked one must not fall off both lists.
func (s *Store) ForgetSSHCerts(ctx context.Context) (int, error) {
	tag, err := s.pool.Exec(ctx, `DELETE FROM ssh_certs c WHERE valid_before < now() - $1::interval
		AND NOT EXISTS (SELECT FROM node_specs s JOIN node_keys USING (node_id) WHERE s.node_id = c.node_id AND s.ssh_expired < c.serial)`, sshKept)
	if err != nil {
		return 0, fmt.Errorf("remove the records of ended SSH certificates: %w", err)
	}
	return int(tag.RowsAffected()), nil
}
