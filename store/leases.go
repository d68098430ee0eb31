package store

import (
	"context"
	"fmt"
	"time"
)

// ChangeSlot is the slot of a BMC's lease that changes need; reads take any
// above. LoginSlot is the right to log in or out, held beside one of these for
// as long as that takes: so there is one session.
const (
	ChangeSlot = 0
	LoginSlot  = -1
)

// Lease is the right to talk to a BMC until it expires.
type Lease struct {
	NodeID string
	Slot   int
	// Token tells this holder from all before: who lost the lease can neither
	// renew nor give it back.
	Token int64
	// TakenOver says that a holder let it expire, at least one request's
	// timeout ago.
	TakenOver bool
}

// LeaseAsk is for what a lease is wanted.
type LeaseAsk struct {
	NodeID, Holder string
	// Change asks for the one slot of changes, Login for that of logins, else it
	// is one of Reads others.
	Change, Login bool
	Reads         int
	Life          time.Duration
	// Grace is how long an expired lease is left alone: a request of its holder
	// may still be under way.
	Grace time.Duration
}

// TakeLease takes a lease of a node's BMC. It is nil when none is free; wait
// says how long the earliest holder may still keep it.
func (s *Store) TakeLease(ctx context.Context, a LeaseAsk) (l *Lease, wait time.Duration, err error) {
	first, last := ChangeSlot, ChangeSlot
	switch {
	case a.Login:
		first, last = LoginSlot, LoginSlot
	case !a.Change:
		first, last = 1, max(1, a.Reads)
	}
	taken := Lease{NodeID: a.NodeID}
	var before *string
	err = s.pool.QueryRow(ctx, `
		INSERT INTO bmc_leases AS l (node_id, slot, holder, token, expires_at)
		SELECT $1, slot, $4, 1, clock_timestamp() + $5 FROM (
			SELECT g AS slot FROM generate_series($2::int, $3::int) g
			WHERE NOT EXISTS (SELECT FROM bmc_leases x WHERE x.node_id = $1 AND x.slot = g AND x.holder IS NOT NULL AND x.expires_at + $6::interval > clock_timestamp())
			ORDER BY g LIMIT 1) pick
		ON CONFLICT (node_id, slot) DO UPDATE SET holder = EXCLUDED.holder, token = l.token + 1, expires_at = EXCLUDED.expires_at
			WHERE l.holder IS NULL OR l.expires_at + $6::interval <= clock_timestamp()
		RETURNING slot, token, (SELECT x.holder FROM bmc_leases x WHERE x.node_id = $1 AND x.slot = l.slot)`,
		a.NodeID, first, last, a.Holder, a.Life, a.Grace).Scan(&taken.Slot, &taken.Token, &before)
	if isNoRows(err) {
		var left float64
		err := s.pool.QueryRow(ctx, `SELECT coalesce(extract(epoch FROM min(expires_at) - clock_timestamp()), 0)::float8 FROM bmc_leases
			WHERE node_id = $1 AND slot BETWEEN $2 AND $3 AND holder IS NOT NULL`, a.NodeID, first, last).Scan(&left)
		if err != nil {
			return nil, 0, fmt.Errorf("read the leases of the BMC of node %s: %w", a.NodeID, err)
		}
		return nil, max(0, time.Duration(left*float64(time.Second))+a.Grace), nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("take a lease of the BMC of node %s: %w", a.NodeID, err)
	}
	taken.TakenOver = before != nil
	return &taken, 0, nil
}

// CheckLease says whether a lease is still the holder's, for at least the time
// given, and whether the node's fence is still the operation's ("" asks for
// none).
func (s *Store) CheckLease(ctx context.Context, l Lease, left time.Duration, operationID string) (held, fenced bool, err error) {
	err = s.pool.QueryRow(ctx, `SELECT
		EXISTS (SELECT FROM bmc_leases WHERE node_id = $1 AND slot = $2 AND token = $3 AND holder IS NOT NULL AND expires_at > clock_timestamp() + $4),
		$5 = '' OR EXISTS (SELECT FROM nodes WHERE id = $1 AND provision_op = $5 AND deleted_at IS NULL)`,
		l.NodeID, l.Slot, l.Token, left, operationID).Scan(&held, &fenced)
	if err != nil {
		return false, false, fmt.Errorf("check the lease of the BMC of node %s: %w", l.NodeID, err)
	}
	return held, fenced, nil
}

// RenewLease extends a lease that is still the holder's; false when it is not.
func (s *Store) RenewLease(ctx context.Context, l Lease, life time.Duration) (bool, error) {
	tag, err := s.pool.Exec(ctx, `UPDATE bmc_leases SET expires_at = clock_timestamp() + $4
		WHERE node_id = $1 AND slot = $2 AND token = $3 AND holder IS NOT NULL AND expires_at > clock_timestamp()`,
		l.NodeID, l.Slot, l.Token, life)
	if err != nil {
		return false, fmt.Errorf("renew the lease of the BMC of node %s: %w", l.NodeID, err)
	}
	return tag.RowsAffected() > 0, nil
}

// OthersTalk says whether anybody but the lease's holder may be talking to the
// BMC now.
func (s *Store) OthersTalk(ctx context.Context, l Lease) (bool, error) {
	var others bool
	err := s.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM bmc_leases WHERE node_id = $1 AND slot <> $2 AND slot <> $3 AND holder IS NOT NULL AND expires_at > clock_timestamp())`,
		l.NodeID, l.Slot, LoginSlot).Scan(&others)
	return others, wrapDoing(err, "see who talks to the BMC of node "+l.NodeID)
}

// ReleaseLease gives a lease back, if it is still the holder's.
func (s *Store) ReleaseLease(ctx context.Context, l Lease) error {
	_, err := s.pool.Exec(ctx, `UPDATE bmc_leases SET holder = NULL, expires_at = clock_timestamp() WHERE node_id = $1 AND slot = $2 AND token = $3`,
		l.NodeID, l.Slot, l.Token)
	if err != nil {
		return fmt.Errorf("give back the lease of the BMC of node %s: %w", l.NodeID, err)
	}
	return nil
}
