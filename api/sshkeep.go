package api

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// sshKeepEvery bounds how long a certificate outlives the right to it.
const sshKeepEvery = 5 * time.Second

// KeepSSH makes the nodes trust this process's SSH CA, and revokes the
// certificates of those who lost the right to them, until the context ends. Any
// number of processes do so side by side.
func (s *Server) KeepSSH(ctx context.Context) {
	published := s.ssh.ca == nil
	tick := time.NewTicker(sshKeepEvery)
	defer tick.Stop()
	for {
		if !published {
			err := s.ssh.publish(ctx, s.store)
			if published = err == nil || fleet.CodeOf(err) == fleet.CodeUnsupported; err != nil && ctx.Err() == nil {
				s.log.WarnContext(ctx, "publish the SSH CA", "error", err)
			}
		}
		if _, err := s.ReauthorizeSSH(ctx); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "authorize SSH certificates again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// ReauthorizeSSH judges every live certificate again, as its issuing was, and
// revokes those whose issuer may not have it any more: a role was taken back, a
// pool's offer ended, a service token was revoked. It returns how many.
func (s *Server) ReauthorizeSSH(ctx context.Context) (int, error) {
	live, err := store.LiveSSHCerts(ctx, s.store.Pool())
	if err != nil {
		return 0, err
	}
	revoked := 0
	for _, l := range live {
		may, err := s.maySSH(ctx, s.store.Pool(), l)
		if err != nil {
			return revoked, err
		}
		if may {
			continue
		}
		done := false
		err = s.store.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			done = false
			if err := store.LockNode(ctx, tx, l.NodeID); err != nil {
				return err
			}
			// It may have been given back while the row was waited for.
			if may, err := s.maySSH(ctx, tx, l); err != nil || may {
				return err
			}
			reason := "the right to it was taken back"
			c, err := store.RevokeSSHCert(ctx, tx, store.SSHCertRef{NodeID: l.NodeID, TenantID: l.TenantID, Serial: l.Serial}, fleet.ByReauthorization, &reason)
			if err != nil {
				return err
			}
			done = c.RevokedBy == fleet.ByReauthorization
			return store.AddAudit(ctx, tx, store.AuditIn{TenantID: l.TenantID, Identity: fleet.ByReauthorization, Method: "nodes/revokeSshCert", NodeID: l.NodeID,
				Resource: "ssh-cert/" + c.Serial, Outcome: "OK", Reason: "right-lost"})
		})
		if err != nil && fleet.CodeOf(err) != fleet.CodeNotFound { // not found: the node was deleted
			return revoked, err
		}
		if done {
			revoked++
			s.log.InfoContext(ctx, "SSH certificate revoked: its issuer lost the right to it", "node", l.NodeID, "identity", l.IssuedBy)
		}
	}
	return revoked, nil
}

// maySSH says whether the issuer of a certificate may have one for the node now.
func (s *Server) maySSH(ctx context.Context, q store.Reader, l store.LiveSSHCert) (bool, error) {
	if l.TokenRevoked {
		return false, nil
	}
	roles, err := store.LoadRoles(ctx, q, l.IssuedBy)
	if err != nil {
		return false, err
	}
	c := &Call{Caller: Caller{Identity: l.IssuedBy}, TenantID: l.TenantID, Roles: roles, srv: s}
	target, err := c.findNode(ctx, q, l.NodeID)
	if fleet.CodeOf(err) == fleet.CodeNotFound {
		return false, nil
	}
	return err == nil && c.May(fleet.PermNodesSSHRoot, target), err
}
