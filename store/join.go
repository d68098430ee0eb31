package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// RenewGrace is how long after its end a certificate may still be renewed: an
// outage of days must not expel a fleet.
const RenewGrace = 30 * 24 * time.Hour

// certLife is how long a node's certificate is good for, by the database's
// clock.
const certLife = 24 * time.Hour

// JoinIn is a machine that asks to be a node. Its key was proved by its
// certificate request.
type JoinIn struct {
	// Token is a join token's secret or a deploy token.
	Token   string
	KeyHash []byte
	// Serial is that of the certificate to be, in hex.
	Serial    string
	Hardware  fleet.Hardware
	Inventory *fleet.Inventory
	// Proof is the secret of a challenge that the machine's TPM answered; empty
	// without one.
	Proof []byte
	// ek names the TPM that gave the proof.
	ek string
}

// Granted is a certificate to sign: the database decided whose it is and how
// long it holds.
type Granted struct {
	// Outcome is one of fleet's outcomes of a join.
	Outcome      string
	NodeID       string
	Generation   int64
	At, NotAfter time.Time
}

// ReasonBadJoinToken is the reason of a token that lets nobody join.
const ReasonBadJoinToken = "bad-join-token"

// joinToken is the token of a join, of either kind.
type joinToken struct {
	ID, TenantID, SiteID string
	PoolID               *string
	Labels               map[string]string
	// DeployNode is the node of a deploy token.
	DeployNode string
	// DeployBare is fleet.JoinAsk's.
	DeployBare bool
	TokenOnly  bool
	// Spent says that it is used up, which a machine that joined with it before
	// may disregard.
	Spent bool
}

// Join decides and records a join in one transaction. Who joins at the same
// moment as the same machine waits; the claims' primary keys are the last word.
func (s *Store) Join(ctx context.Context, in JoinIn) (Granted, error) {
	var out Granted
	var ambiguous []fleet.JoinMatch
	err := s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		out, ambiguous = Granted{}, nil
		var err error
		if in.ek, err = useChallenge(ctx, tx, in.Proof, in.KeyHash, askedByToken(in.Token)); err != nil {
			return err
		}
		if err := lockMachine(ctx, tx, in); err != nil {
			return err
		}
		token, err := findJoinToken(ctx, tx, in.Token)
		if err != nil {
			return err
		}
		matches, err := findMatches(ctx, tx, in)
		if err != nil {
			return err
		}
		outcome, nodeID, err := fleet.DecideJoin(token.ask(in, matches))
		if fleet.ReasonOf(err) == fleet.ReasonAmbiguous {
			ambiguous = matches
		}
		if err != nil {
			return err
		}
		if nodeID != "" {
			// The node's row is the first that is locked; what was read before can
			// have changed meanwhile.
			if _, _, err := lockNode(ctx, tx, nodeID); err != nil {
				return err
			}
			if matches, err = findMatches(ctx, tx, in); err != nil {
				return err
			}
			if outcome, nodeID, err = fleet.DecideJoin(token.ask(in, matches)); err != nil {
				return err
			}
		}
		out, err = s.admit(ctx, tx, in, token, outcome, nodeID)
		return err
	})
	if ambiguous != nil {
		err = errors.Join(err, s.tellAmbiguous(ctx, ambiguous))
	}
	if err != nil {
		return Granted{}, err
	}
	s.Notify()
	return out, nil
}

// lockMachine makes joins of one machine wait for each other.
func lockMachine(ctx context.Context, tx pgx.Tx, in JoinIn) error {
	names := []string{"key:" + string(in.KeyHash)}
	if in.ek != "" {
		names = append(names, "ek:"+in.ek)
	}
	for _, u := range machineUUIDs(in.Hardware.UUID) {
		names = append(names, "uuid:"+u)
	}
	for _, m := range fleet.UniversalMACs(in.Hardware.MACs) {
		names = append(names, "mac:"+m)
	}
	slices.Sort(names)
	for _, name := range names {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 7301))`, fmt.Sprintf("%x", name)); err != nil {
			return fmt.Errorf("wait for other joins of the machine: %w", err)
		}
	}
	return nil
}

// machineUUIDs are a UUID's two readings, nil when it proves nothing.
func machineUUIDs(uuid string) []string {
	u, ok := fleet.ProvingUUID(uuid)
	if !ok {
		return nil
	}
	both := []string{u, fleet.SwapUUID(u)}
	slices.Sort(both)
	return slices.Compact(both)
}

func findJoinToken(ctx context.Context, tx pgx.Tx, secret string) (joinToken, error) {
	var t joinToken
	err := tx.QueryRow(ctx, `SELECT t.id, t.tenant_id, t.site_id, t.pool_id, t.labels, t.uses >= t.max_uses, coalesce((s.spec->>'tokenOnlyJoin')::boolean, false)
		FROM join_tokens t JOIN sites s ON s.id = t.site_id
		WHERE t.hash = $1 AND t.revoked_at IS NULL AND t.expires_at > now()`, hashSecret(secret)).
		Scan(&t.ID, &t.TenantID, &t.SiteID, &t.PoolID, &t.Labels, &t.Spent, &t.TokenOnly)
	if err == nil || !isNoRows(err) {
		return t, wrapDoing(err, "look up a join token")
	}
	var uuid string
	var macs []string
	var joined bool
	err = tx.QueryRow(ctx, `SELECT 'deploy ' || d.operation_id, n.tenant_id, n.site_id, n.id, d.used_at IS NOT NULL,
			coalesce(b.identity->>'uuid', ''), coalesce(i.macs, '{}'), EXISTS (SELECT FROM joined_hardware h WHERE h.node_id = n.id)
		FROM deploy_tokens d JOIN nodes n ON n.id = d.node_id LEFT JOIN bmcs b ON b.node_id = n.id LEFT JOIN inventories i ON i.node_id = n.id
		WHERE d.hash = $1 AND d.expires_at > now() AND n.deleted_at IS NULL`, hashSecret(secret)).
		Scan(&t.ID, &t.TenantID, &t.SiteID, &t.DeployNode, &t.Spent, &uuid, &macs, &joined)
	if isNoRows(err) {
		return t, badJoinToken()
	}
	_, proves := fleet.ProvingUUID(uuid)
	t.DeployBare = !proves && !joined && len(fleet.UniversalMACs(macs)) == 0
	return t, wrapDoing(err, "look up a deploy token")
}

func badJoinToken() error {
	return fleet.Errorf(fleet.CodeAccessDenied, ReasonBadJoinToken, "the token is none, has ended, was revoked or is used up")
}

func (t joinToken) ask(in JoinIn, matches []fleet.JoinMatch) fleet.JoinAsk {
	return fleet.JoinAsk{TenantID: t.TenantID, SiteID: t.SiteID, DeployNode: t.DeployNode, DeployBare: t.DeployBare, TPM: in.ek != "", TokenOnly: t.TokenOnly, Matches: matches}
}

// matchSQL finds every node that the machine could be, whoever's it is.
const matchSQL = `
SELECT n.id, n.tenant_id, n.site_id, n.provision_state, coalesce(k.hash = $1, false), k.node_id IS NOT NULL,
	coalesce(h.uuid = ANY ($2), false) OR coalesce(lower(b.identity->>'uuid') = ANY ($2), false),
	coalesce(h.macs, '{}'), coalesce(i.macs, '{}'),
	EXISTS (SELECT FROM machine_claims c WHERE c.kind = 'ek' AND c.value = $4 AND c.node_id = n.id),
	EXISTS (SELECT FROM machine_claims c WHERE c.kind = 'ek' AND c.node_id = n.id),
	EXISTS (SELECT FROM certificates c WHERE c.node_id = n.id AND c.generation = n.identity_generation AND c.revoked_at IS NULL
	        AND c.used_at IS NOT NULL AND c.not_after > now() - $5::interval),
	b.node_id IS NOT NULL, coalesce((s.spec->>'joinBindsEnrolled')::boolean, false)
FROM nodes n
JOIN sites s ON s.id = n.site_id
LEFT JOIN node_keys k ON k.node_id = n.id
LEFT JOIN joined_hardware h ON h.node_id = n.id
LEFT JOIN bmcs b ON b.node_id = n.id
LEFT JOIN inventories i ON i.node_id = n.id
WHERE n.deleted_at IS NULL AND n.id IN (
	SELECT node_id FROM node_keys WHERE hash = $1
	UNION SELECT node_id FROM joined_hardware WHERE uuid = ANY ($2) OR macs && $3
	UNION SELECT node_id FROM bmcs WHERE lower(identity->>'uuid') = ANY ($2)
	UNION SELECT node_id FROM inventories WHERE macs && $3
	UNION SELECT node_id FROM machine_claims WHERE kind = 'ek' AND value = $4)
ORDER BY n.id`

func findMatches(ctx context.Context, tx pgx.Tx, in JoinIn) ([]fleet.JoinMatch, error) {
	macs := fleet.UniversalMACs(in.Hardware.MACs)
	rows, err := tx.Query(ctx, matchSQL, in.KeyHash, machineUUIDs(in.Hardware.UUID), macs, in.ek, RenewGrace)
	if err != nil {
		return nil, fmt.Errorf("look for the joining machine: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (fleet.JoinMatch, error) {
		var m fleet.JoinMatch
		var joined, inventory []string
		err := r.Scan(&m.NodeID, &m.TenantID, &m.SiteID, &m.State, &m.Key, &m.KeyBound, &m.UUID, &joined, &inventory, &m.EK, &m.EKBound, &m.CertValid, &m.Enrolled, &m.BindsEnrolled)
		m.MACs = fleet.SameMACs(macs, joined) || fleet.SameMACs(macs, inventory)
		return m, err
	})
	if err != nil {
		return nil, fmt.Errorf("look for the joining machine: %w", err)
	}
	return slices.DeleteFunc(all, func(m fleet.JoinMatch) bool { return !m.Key && !m.UUID && !m.MACs && !m.EK }), nil
}

// tellAmbiguous marks the nodes that one machine matches by different
// attributes. They are the token's own tenant's and site's: a token cannot make
// another tenant's nodes unfit.
func (s *Store) tellAmbiguous(ctx context.Context, matches []fleet.JoinMatch) error {
	for i, m := range matches {
		other := matches[(i+1)%len(matches)].NodeID
		err := s.SetCondition(ctx, m.NodeID, fleet.Condition{Type: "IdentityAmbiguous", Status: fleet.ConditionTrue, Reason: "join",
			Message: "a machine that joined matches this node and " + other + " by different attributes; delete the one that it is not"})
		if err != nil {
			return err
		}
		err = s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			if _, _, err := lockNode(ctx, tx, m.NodeID); err != nil {
				return err
			}
			return nodeEvent(ctx, tx, m.NodeID, "system", "security.node.identity-ambiguous", map[string]any{"otherNodeId": other})
		})
		if err != nil {
			return err
		}
	}
	return nil
}
