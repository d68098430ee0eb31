package api

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/crypto/ssh"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// What sshd does not do, said with each answer that could be taken for it.
const (
	sshIssuedNote  = "sshd ends no session when the certificate expires: it bounds when a session can begin"
	sshRevokedNote = "the node refuses the certificate once it has the next NodeSpec; sshd ends no session that is open"
)

func (i *sshIssuer) register(r *Registry) {
	Handle(r, "nodes", "issueSshCert", nodesIssueSSHCert, i.checkAccount)
	Handle(r, "nodes", "revokeSshCert", nodesRevokeSSHCert)
	Handle(r, "nodes", "listSshCerts", nodesListSSHCerts, paged(sshCertsPage))
}

// checkAccount checks that the account is one that is configured.
func (i *sshIssuer) checkAccount(in fleet.NodesIssueSSHCertIn) error {
	if !slices.Contains(i.accounts, in.Principal) {
		return invalidInput([]fleet.FieldError{{Field: "principal", Constraint: "one of " + strings.Join(i.accounts, ", ")}})
	}
	return nil
}

func nodesIssueSSHCert(ctx context.Context, c *Call, in fleet.NodesIssueSSHCertIn) (fleet.IssuedSSHCertOut, error) {
	i := c.srv.ssh
	ca, err := i.ready(ctx, c.Store())
	if err != nil {
		return fleet.IssuedSSHCertOut{}, err
	}
	key, err := parseSSHKey(in.PublicKey)
	if err != nil {
		return fleet.IssuedSSHCertOut{}, fleet.Invalid("publicKey", err.Error())
	}
	// A certificate is of no use without the private key, so the answer is kept for
	// repeats like any other: a lost answer costs no second certificate.
	return Mutate(ctx, c, Mutation[fleet.IssuedSSHCertOut]{
		NodeID: in.NodeID, Find: c.OnNode(in.NodeID), Lock: LockNode(in.NodeID),
		Session: func(ctx context.Context, tx pgx.Tx) error {
			now, err := store.Now(ctx, tx)
			if err != nil {
				return err
			}
			return i.checkSession(c.Caller, now)
		},
		Before: func(ctx context.Context, tx pgx.Tx) error { return store.LockSSHIssuer(ctx, tx, c.Identity) },
		Judge: func(ctx context.Context, tx pgx.Tx) error {
			wait, err := store.SSHIssueWait(ctx, tx, c.Identity, i.perHour, sshRateWindow)
			if err != nil || wait == 0 {
				return err
			}
			e := fleet.Errorf(fleet.CodeRateLimited, "ssh-certs-per-hour", "%s has had %d SSH certificates within the hour, which is the most; the next can be issued in %s",
				c.Identity, i.perHour, wait.Round(time.Second))
			e.RetryAfter = wait
			return e
		},
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.IssuedSSHCertOut, error) {
			return c.issueSSH(ctx, tx, in, ca, key)
		},
		Made: func(o fleet.IssuedSSHCertOut) string { return o.SSHCert.Serial },
	})
}

// issueSSH records a certificate and signs it.
func (c *Call) issueSSH(ctx context.Context, tx pgx.Tx, in fleet.NodesIssueSSHCertIn, ca ssh.Signer, key ssh.PublicKey) (fleet.IssuedSSHCertOut, error) {
	var out fleet.IssuedSSHCertOut
	i := c.srv.ssh
	now, err := store.Now(ctx, tx)
	if err != nil {
		return out, err
	}
	from, to := i.life(now, c.SessionEnd, time.Duration(in.TTLSeconds)*time.Second)
	cert, err := store.InsertSSHCert(ctx, tx, store.NewSSHCert{NodeID: in.NodeID, TenantID: c.TenantID, Principal: fleet.SSHPrincipal(in.Principal, in.NodeID),
		IssuedBy: c.Identity, KeyHash: ssh.FingerprintSHA256(key), ValidAfter: from, ValidBefore: to})
	if err != nil {
		return out, err
	}
	reach, err := store.LoadSSHReach(ctx, tx, in.NodeID)
	if err != nil {
		return out, err
	}
	out.SSHCert, out.Address, out.Warning, out.Note = cert, reach.Address, reach.Doubt, sshIssuedNote
	// sshd logs the key id with each login: it leads to the call's audit row.
	if out.Certificate, err = i.sign(ca, key, cert, c.Identity+" "+c.RequestID); err != nil {
		return out, err
	}
	c.Resource = "ssh-cert/" + cert.Serial
	return out, nil
}

func nodesRevokeSSHCert(ctx context.Context, c *Call, in fleet.NodesRevokeSSHCertIn) (fleet.RevokedSSHCertOut, error) {
	return Mutate(ctx, c, Mutation[fleet.RevokedSSHCertOut]{
		NodeID: in.NodeID, Find: c.OnNode(in.NodeID), Lock: LockNode(in.NodeID),
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.RevokedSSHCertOut, error) {
			out := fleet.RevokedSSHCertOut{Note: sshRevokedNote}
			serial, err := strconv.ParseUint(in.Serial, 10, 64)
			if err != nil {
				return out, fleet.NotFound("certificate") // past 64 bits: no certificate has it
			}
			p, err := store.LoadNodeParents(ctx, tx, c.TenantID, in.NodeID)
			if err != nil {
				return out, err
			}
			c.Resource = "ssh-cert/" + strconv.FormatUint(serial, 10)
			// The node's own tenant may end what others were let issue for it.
			ref := store.SSHCertRef{NodeID: in.NodeID, TenantID: c.TenantID, AnyTenant: p.TenantID == c.TenantID, Serial: serial}
			out.SSHCert, err = store.RevokeSSHCert(ctx, tx, ref, c.Identity, in.Reason)
			return out, err
		},
	})
}

// sshCertsPage reads the page of nodes/listSshCerts. The cursor is when the last
// certificate was recorded, in microseconds, and its serial.
func sshCertsPage(in fleet.NodesListSSHCertsIn) (pager, error) {
	filters := in
	filters.Limit, filters.Cursor = nil, nil
	return newPager("nodes/listSshCerts", fleet.PageIn{Limit: in.Limit, Cursor: in.Cursor}, filters, func(key string) bool {
		micros, _, err := splitCursor(key)
		return err == nil && micros > 0
	})
}

func nodesListSSHCerts(ctx context.Context, c *Call, in fleet.NodesListSSHCertsIn) (fleet.SSHCertsPage, error) {
	pg, err := sshCertsPage(in)
	if err != nil {
		return fleet.SSHCertsPage{}, err
	}
	f := store.SSHCertFilter{NodeID: in.NodeID, TenantID: c.TenantID, Expired: in.IncludeExpired, Limit: pg.limit}
	if pg.after != "" {
		if f.BeforeMicros, f.BeforeSerial, err = splitCursor(pg.after); err != nil {
			return fleet.SSHCertsPage{}, err
		}
	}
	return ReadNode(ctx, c, in.NodeID, func(ctx context.Context, q store.Reader, _ Target) (fleet.SSHCertsPage, error) {
		list, err := store.ListSSHCerts(ctx, q, f)
		if err != nil {
			return fleet.SSHCertsPage{}, err
		}
		items, next := cut(pg, list, func(l store.ListedSSHCert) string { return strconv.FormatInt(l.Micros, 10) + ":" + l.Cert.Serial })
		out := fleet.SSHCertsPage{Items: make([]fleet.SSHCert, len(items)), NextCursor: next}
		for i, l := range items {
			out.Items[i] = l.Cert
		}
		return out, nil
	})
}
