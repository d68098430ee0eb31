package store

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// sshSerialBits are the random bits of a serial. Above them it holds the second
// in which the certificate ends, so that "all that has ended by now" is one range
// of serials: a host whose clock is behind refuses them by its revocation list.
const sshSerialBits = 30

// newSSHSerial makes the serial of a certificate that ends at a time.
func newSSHSerial(end time.Time) (uint64, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("make a serial number: %w", err)
	}
	return uint64(end.Unix())<<sshSerialBits | binary.BigEndian.Uint64(b[:])>>(64-sshSerialBits), nil
}

// SSHExpiredThrough is the greatest serial that a certificate which has ended by
// a time can have.
func SSHExpiredThrough(now time.Time) uint64 {
	return uint64(now.Unix()+1)<<sshSerialBits - 1
}

// NewSSHCert is a certificate to be recorded.
type NewSSHCert struct {
	NodeID, TenantID, Principal, IssuedBy string
	// KeyHash is the fingerprint of the certified key.
	KeyHash                 string
	ValidAfter, ValidBefore time.Time
}

const sshCertColumns = `serial::text, principal, issued_by, valid_after, valid_before, revoked_at, revoked_by, revoke_reason, valid_before <= clock_timestamp(), created_at`

// sshCertRow reads sshCertColumns.
type sshCertRow struct {
	fleet.SSHCert
	createdAt time.Time
}

func scanSSHCert(row pgx.CollectableRow) (sshCertRow, error) {
	var (
		r             sshCertRow
		after, before time.Time
		revokedAt     *time.Time
		by, why       *string
		expired       bool
	)
	err := row.Scan(&r.Serial, &r.Principal, &r.IssuedBy, &after, &before, &revokedAt, &by, &why, &expired, &r.createdAt)
	r.ValidAfter, r.ValidBefore, r.RevokedAt = fleet.At(after), fleet.At(before), fleet.AtPtr(revokedAt)
	r.RevokedBy, r.RevokeReason = orEmpty(by), orEmpty(why)
	switch {
	case revokedAt != nil:
		r.State = fleet.SSHCertRevoked
	case expired:
		r.State = fleet.SSHCertExpired
	default:
		r.State = fleet.SSHCertActive
	}
	return r, err
}

func oneSSHCert(ctx context.Context, q Reader, doing, sql string, args ...any) (fleet.SSHCert, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return fleet.SSHCert{}, fmt.Errorf("%s: %w", doing, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, scanSSHCert)
	if err != nil {
		return fleet.SSHCert{}, noRows(err, "certificate", doing)
	}
	return r.SSHCert, nil
}

// SSHReach is what is known of logging in to a node by certificate.
type SSHReach struct {
	// Address is the host's own as its agent says it, "" for none that is known.
	Address string
	// Doubt is why the host may not take a certificate, "" for no reason.
	Doubt string
}

// LoadSSHReach reads what is known of logging in to a node.
func LoadSSHReach(ctx context.Context, q Reader, nodeID string) (SSHReach, error) {
	var r SSHReach
	var joined, applied bool
	var conflict string
	err := q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM node_keys k WHERE k.node_id = n.id), coalesce(s.applied > 0, false), coalesce(s.address, ''),
		coalesce((SELECT message FROM conditions c WHERE c.node_id = n.id AND c.type = 'SshConflict' AND c.status = 'True'), '')
		FROM nodes n LEFT JOIN node_specs s ON s.node_id = n.id WHERE n.id = $1`, nodeID).Scan(&joined, &applied, &r.Address, &conflict)
	if err != nil {
		return r, noRows(err, "node", "read how node "+nodeID+" is reached")
	}
	switch {
	case !joined:
		r.Doubt = "no agent of this node has joined, so that nothing has told its sshd to take certificates: nodeagent join, or a deploy that installs the agent"
	case conflict != "":
		r.Doubt = "the node's sshd may take no certificate (condition SshConflict): " + conflict
	case !applied:
		r.Doubt = "the node's agent has not said yet that its sshd takes certificates"
	}
	return r, nil
}

// Now is the database's clock, which all processes share.
func Now(ctx context.Context, q Reader) (time.Time, error) {
	var now time.Time
	if err := q.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return now, fmt.Errorf("read the database's clock: %w", err)
	}
	return now, nil
}

// LockSSHIssuer keeps the issuing of certificates to one identity in order over
// all API processes. It is an advisory lock, to be taken before the node's row.
func LockSSHIssuer(ctx context.Context, tx pgx.Tx, identity string) error {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 43))`, identity); err != nil {
		return fmt.Errorf("wait for the other certificates of %s: %w", identity, err)
	}
	return nil
}

// SSHIssueWait says how long an identity has to wait for its next certificate
// when it may have so many in a window of time; 0 is not at all. It is asked
// under LockSSHIssuer.
func SSHIssueWait(ctx context.Context, tx pgx.Tx, identity string, most int, window time.Duration) (time.Duration, error) {
	var wait time.Duration
	err := tx.QueryRow(ctx, `SELECT created_at + $3::interval - clock_timestamp() FROM ssh_certs
		WHERE issued_by = $1 AND created_at > clock_timestamp() - $3::interval ORDER BY created_at DESC OFFSET $2 - 1 LIMIT 1`, identity, most, window).Scan(&wait)
	if isNoRows(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("count the certificates of %s: %w", identity, err)
	}
	return max(wait, time.Second), nil
}

// InsertSSHCert records a certificate that is about to be signed, for a node
// whose row is locked, with its event, and returns the record with its serial.
func InsertSSHCert(ctx context.Context, tx pgx.Tx, n NewSSHCert) (fleet.SSHCert, error) {
	c, err := insertSSHCert(ctx, tx, n)
	if err != nil {
		return c, err
	}
	return c, sshEvent(ctx, tx, n.NodeID, n.TenantID, n.IssuedBy, "node.ssh-cert.issued", map[string]any{"serial": c.Serial, "principal": c.Principal,
		"issuedBy": c.IssuedBy, "tenantId": n.TenantID, "keyFingerprint": n.KeyHash, "validAfter": c.ValidAfter, "validBefore": c.ValidBefore})
}

func insertSSHCert(ctx context.Context, tx pgx.Tx, n NewSSHCert) (fleet.SSHCert, error) {
	for {
		serial, err := newSSHSerial(n.ValidBefore)
		if err != nil {
			return fleet.SSHCert{}, err
		}
		c, err := oneSSHCert(ctx, tx, "record an SSH certificate for node "+n.NodeID, `INSERT INTO ssh_certs
			(serial, node_id, tenant_id, principal, issued_by, key_hash, valid_after, valid_before, created_at)
			VALUES ($1::text::numeric, $2, $3, $4, $5, $6, $7, $8, clock_timestamp()) ON CONFLICT (serial) DO NOTHING RETURNING `+sshCertColumns,
			strconv.FormatUint(serial, 10), n.NodeID, n.TenantID, n.Principal, n.IssuedBy, n.KeyHash, n.ValidAfter, n.ValidBefore)
		if fleet.CodeOf(err) != fleet.CodeNotFound { // else the serial is taken
			return c, err
		}
	}
}

// sshEvent writes an event of a certificate. The node's own tenant gets it whole,
// and so does the tenant that issued the certificate; nobody else gets it.
func sshEvent(ctx context.Context, tx pgx.Tx, nodeID, issuer, actor, typ string, data map[string]any) error {
	e := EventIn{Type: typ, NodeID: nodeID, Actor: actor, Data: data}
	if err := tx.QueryRow(ctx, `SELECT tenant_id, version FROM nodes WHERE id = $1`, nodeID).Scan(&e.TenantID, &e.Version); err != nil {
		return fmt.Errorf("read node %s for an event: %w", nodeID, err)
	}
	e.Audience = []string{e.TenantID}
	if issuer != e.TenantID {
		e.Audience = append(e.Audience, issuer)
	}
	return AddEvents(ctx, tx, e)
}

// SSHCertRef names a certificate of a node: by its serial, among those that a
// tenant issued, or among all with AnyTenant.
type SSHCertRef struct {
	NodeID, TenantID string
	AnyTenant        bool
	Serial           uint64
}

const sshCertOf = `node_id = $1 AND serial = $2::text::numeric AND (tenant_id = $3 OR $4)`

func (r SSHCertRef) args() []any {
	return []any{r.NodeID, strconv.FormatUint(r.Serial, 10), r.TenantID, r.AnyTenant}
}

// RevokeSSHCert revokes a certificate of a node whose row is locked, with its
// event, and asks for the NodeSpec that says so. One that is revoked already is
// returned as it is.
func RevokeSSHCert(ctx context.Context, tx pgx.Tx, ref SSHCertRef, by string, reason *string) (fleet.SSHCert, error) {
	const doing = "revoke an SSH certificate"
	var issuer string
	var revoked bool
	err := tx.QueryRow(ctx, `SELECT tenant_id, revoked_at IS NOT NULL FROM ssh_certs WHERE `+sshCertOf, ref.args()...).Scan(&issuer, &revoked)
	if err != nil {
		return fleet.SSHCert{}, noRows(err, "certificate", doing)
	}
	if revoked {
		return oneSSHCert(ctx, tx, doing, `SELECT `+sshCertColumns+` FROM ssh_certs WHERE `+sshCertOf, ref.args()...)
	}
	c, err := oneSSHCert(ctx, tx, doing, `UPDATE ssh_certs SET revoked_at = clock_timestamp(), revoked_by = $5, revoke_reason = nullif($6, '')
		WHERE `+sshCertOf+` RETURNING `+sshCertColumns, append(ref.args(), by, orEmpty(reason))...)
	if err != nil {
		return c, err
	}
	data := map[string]any{"serial": c.Serial, "principal": c.Principal, "issuedBy": c.IssuedBy, "tenantId": issuer, "validBefore": c.ValidBefore}
	if c.RevokeReason != "" {
		data["reason"] = c.RevokeReason
	}
	if err := sshEvent(ctx, tx, ref.NodeID, issuer, by, "node.ssh-cert.revoked", data); err != nil {
		return c, err
	}
	return c, WantReconcile(ctx, tx, ref.NodeID)
}

// SSHCertFilter selects the certificates that a tenant issued for a node.
type SSHCertFilter struct {
	NodeID, TenantID string
	Expired          bool
	// BeforeMicros and BeforeSerial are the key of the last certificate of the page
	// before, 0 for the first page.
	BeforeMicros, BeforeSerial uint64
	Limit                      int
}

// ListedSSHCert is a certificate with its place in the list.
type ListedSSHCert struct {
	Cert fleet.SSHCert
	// Micros is when it was recorded, in microseconds since 1970.
	Micros int64
}

// ListSSHCerts returns up to f.Limit+1 certificates, newest first.
func ListSSHCerts(ctx context.Context, q Reader, f SSHCertFilter) ([]ListedSSHCert, error) {
	var c clauses
	c.add("node_id = %s", f.NodeID)
	c.add("tenant_id = %s", f.TenantID)
	if !f.Expired {
		c.sql = append(c.sql, "valid_before > clock_timestamp()")
	}
	if f.BeforeMicros != 0 {
		at, serial := c.arg(time.UnixMicro(cursorPart(f.BeforeMicros))), c.arg(strconv.FormatUint(f.BeforeSerial, 10))
		c.sql = append(c.sql, "(created_at, serial) < ("+at+", "+serial+"::text::numeric)")
	}
	rows, err := q.Query(ctx, `SELECT `+sshCertColumns+` FROM ssh_certs WHERE `+c.where()+` ORDER BY created_at DESC, serial DESC LIMIT `+c.arg(f.Limit+1), c.args...)
	if err != nil {
		return nil, fmt.Errorf("list the SSH certificates of node %s: %w", f.NodeID, err)
	}
	list, err := pgx.CollectRows(rows, scanSSHCert)
	if err != nil {
		return nil, fmt.Errorf("list the SSH certificates of node %s: %w", f.NodeID, err)
	}
	out := make([]ListedSSHCert, len(list))
	for i, r := range list {
		out[i] = ListedSSHCert{Cert: r.SSHCert, Micros: r.createdAt.UnixMicro()}
	}
	return out, nil
}

// LiveSSHCert is a certificate that sshd would take now.
type LiveSSHCert struct {
	NodeID, TenantID, IssuedBy string
	Serial                     uint64
	// TokenRevoked says that the service token that it was issued to was revoked.
	TokenRevoked bool
}

// LiveSSHCerts lists the certificates that have neither ended nor been revoked.
func LiveSSHCerts(ctx context.Context, q Reader) ([]LiveSSHCert, error) {
	rows, err := q.Query(ctx, `SELECT c.node_id, c.tenant_id, c.issued_by, c.serial::text, coalesce(t.revoked_at IS NOT NULL, false)
		FROM ssh_certs c JOIN nodes n ON n.id = c.node_id AND n.deleted_at IS NULL LEFT JOIN service_tokens t ON starts_with(c.issued_by, 'svc:') AND t.id = substr(c.issued_by, 5)
		WHERE c.valid_before > clock_timestamp() AND c.revoked_at IS NULL ORDER BY c.node_id, c.serial`)
	if err != nil {
		return nil, fmt.Errorf("list the live SSH certificates: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (LiveSSHCert, error) {
		var l LiveSSHCert
		var serial string
		if err := row.Scan(&l.NodeID, &l.TenantID, &l.IssuedBy, &serial, &l.TokenRevoked); err != nil {
			return l, err
		}
		var err error
		l.Serial, err = strconv.ParseUint(serial, 10, 64)
		return l, err
	})
	return list, wrapDoing(err, "list the live SSH certificates")
}
