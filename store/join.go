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
}

// Join decides and records a join in one transaction. Who joins at the same
// moment as the same machine, or finds it by its BMC, waits; the claims' primary
// keys are the last word.
func (s *Store) Join(ctx context.Context, in JoinIn) (Granted, error) {
	var out Granted
	var ambiguous []fleet.JoinMatch
	err := s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		out, ambiguous = Granted{}, nil
		var err error
		if in.ek, err = useChallenge(ctx, tx, in.Proof, in.KeyHash, askedByToken(in.Token)); err != nil {
			return err
		}
		if err := lockMachine(ctx, tx, in.names()); err != nil {
			return err
		}
		token, err := findJoinToken(ctx, tx, in.Token)
		if err != nil {
			return err
		}
		outcome, nodeID, matches, err := decideJoin(ctx, tx, in, token)
		if fleet.ReasonOf(err) == fleet.ReasonAmbiguous {
			ambiguous = matches
		}
		if err != nil {
			return err
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

// decideJoin decides a join and locks the row of the node that the machine
// becomes. Who waited for it decides anew: meanwhile the node can have been
// deleted, or have changed.
func decideJoin(ctx context.Context, tx pgx.Tx, in JoinIn, token joinToken) (outcome, nodeID string, matches []fleet.JoinMatch, err error) {
	for locked := ""; ; {
		if matches, err = findMatches(ctx, tx, in); err != nil {
			return "", "", nil, err
		}
		outcome, nodeID, err = fleet.DecideJoin(token.ask(in, matches))
		if err != nil || nodeID == "" || nodeID == locked {
			return outcome, nodeID, matches, err
		}
		switch _, _, err = lockNode(ctx, tx, nodeID); {
		case fleet.CodeOf(err) == fleet.CodeNotFound && token.DeployNode != "":
			return "", "", nil, badJoinToken()
		case fleet.CodeOf(err) == fleet.CodeNotFound:
		case err != nil:
			return "", "", nil, err
		default:
			locked = nodeID
		}
	}
}

// names are those by which a machine is known: whoever makes it a node holds
// them all.
func (in JoinIn) names() []string {
	names := append(machineNames(in.Hardware), "key:"+string(in.KeyHash))
	if in.ek != "" {
		names = append(names, "ek:"+in.ek)
	}
	return names
}

// machineNames are those of the machine itself, however it is taken in.
func machineNames(hw fleet.Hardware) []string {
	var names []string
	for _, u := range machineUUIDs(hw.UUID) {
		names = append(names, "uuid:"+u)
	}
	for _, m := range fleet.UniversalMACs(hw.MACs) {
		names = append(names, "mac:"+m)
	}
	return names
}

// lockMachine makes those wait for each other that make one machine a node: by
// a join, or by its BMC. It comes before the lock of a node.
func lockMachine(ctx context.Context, tx pgx.Tx, names []string) error {
	slices.Sort(names)
	batch := &pgx.Batch{}
	for _, name := range names {
		batch.Queue(`SELECT pg_advisory_xact_lock(hashtextextended($1, 7301))`, fmt.Sprintf("%x", name))
	}
	return wrapDoing(tx.SendBatch(ctx, batch).Close(), "wait for others who take the machine in")
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
	err := tx.QueryRow(ctx, `SELECT t.id, t.tenant_id, t.site_id, t.pool_id, t.labels, coalesce((s.spec->>'tokenOnlyJoin')::boolean, false)
		FROM join_tokens t JOIN sites s ON s.id = t.site_id
		WHERE t.hash = $1 AND t.revoked_at IS NULL AND t.expires_at > now()`, hashSecret(secret)).
		Scan(&t.ID, &t.TenantID, &t.SiteID, &t.PoolID, &t.Labels, &t.TokenOnly)
	if err == nil || !isNoRows(err) {
		return t, wrapDoing(err, "look up a join token")
	}
	var uuid string
	var macs []string
	var joined bool
	err = tx.QueryRow(ctx, `SELECT 'deploy ' || d.operation_id, n.tenant_id, n.site_id, n.id,
			coalesce(b.identity->>'uuid', ''), coalesce(i.macs, '{}'), EXISTS (SELECT FROM joined_hardware h WHERE h.node_id = n.id)
		FROM deploy_tokens d JOIN nodes n ON n.id = d.node_id LEFT JOIN bmcs b ON b.node_id = n.id LEFT JOIN inventories i ON i.node_id = n.id
		WHERE d.hash = $1 AND d.expires_at > now() AND n.deleted_at IS NULL`, hashSecret(secret)).
		Scan(&t.ID, &t.TenantID, &t.SiteID, &t.DeployNode, &uuid, &macs, &joined)
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
	coalesce((s.spec->>'joinBindsEnrolled')::boolean, false)
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
		err := r.Scan(&m.NodeID, &m.TenantID, &m.SiteID, &m.State, &m.Key, &m.KeyBound, &m.UUID, &joined, &inventory, &m.EK, &m.EKBound, &m.CertValid, &m.BindsEnrolled)
		m.MACs = fleet.SameMACs(macs, joined) || fleet.SameMACs(macs, inventory)
		return m, err
	})
	if err != nil {
		return nil, fmt.Errorf("look for the joining machine: %w", err)
	}
	return slices.DeleteFunc(all, func(m fleet.JoinMatch) bool { return !m.Key && !m.UUID && !m.MACs && !m.EK }), nil
}
