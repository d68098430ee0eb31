package api

import (
	"context"
	"crypto"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// SSHOptions are the break-glass SSH's. Every zero value but CA's is the default.
type SSHOptions struct {
	// CA signs user certificates: an Ed25519 or ECDSA key. It signs while the node's
	// row is locked, so it has to answer within a few seconds. Nil is no SSH CA. One
	// that can be away, in a token or a key service, has a method Ready(ctx) error
	// too, which is asked first, and knows its public key only then.
	CA crypto.Signer
	// Accounts are those that certificates are issued for; empty is root.
	Accounts []string
	// WithoutMFA lets sessions without a second factor have certificates.
	WithoutMFA bool
	// Backdate is how far certificates begin in the past, for hosts whose clocks
	// are behind; 0 is five minutes.
	Backdate time.Duration
	// PerHour bounds the certificates of an identity; 0 is 20.
	PerHour int
}

// The bounds of SSHOptions.
const (
	sshBackdate    = 5 * time.Minute
	sshBackdateMax = time.Hour
	sshPerHour     = 20
	sshRateWindow  = time.Hour
	// sshSessionLeast is what must be left of the caller's session.
	sshSessionLeast = time.Minute
)

// sshIssuer issues certificates.
type sshIssuer struct {
	// ca is nil without one.
	ca         crypto.Signer
	accounts   []string
	requireMFA bool
	backdate   time.Duration
	perHour    int

	mu  sync.Mutex
	key *sshCAKey
}

// sshCAKey is the CA's key, once it is known.
type sshCAKey struct {
	ssh.Signer
	// line is the public key as nodes are told it.
	line string
}

func newSSHIssuer(o SSHOptions) (*sshIssuer, error) {
	i := &sshIssuer{accounts: o.Accounts, requireMFA: !o.WithoutMFA, backdate: o.Backdate, perHour: o.PerHour}
	if len(i.accounts) == 0 {
		i.accounts = []string{"root"}
	}
	for _, a := range i.accounts {
		if !fleet.MatchPattern("principal", a) {
			return nil, fmt.Errorf("SSH account %q: it has to match %s", a, fleet.Patterns["principal"])
		}
	}
	if i.backdate == 0 {
		i.backdate = sshBackdate
	}
	if i.backdate < 0 || i.backdate > sshBackdateMax {
		return nil, fmt.Errorf("SSH back-date %s: it has to be between 0 and %s", i.backdate, sshBackdateMax)
	}
	if i.perHour == 0 {
		i.perHour = sshPerHour
	}
	if o.CA == nil {
		return i, nil
	}
	i.ca = o.CA
	// A token that is away now comes back; a key that cannot be used does not.
	if _, err := i.usable(context.Background()); err != nil && fleet.CodeOf(err) != fleet.CodeUnavailable {
		return nil, err
	}
	return i, nil
}

// usable is the CA's key when it can sign now.
func (i *sshIssuer) usable(ctx context.Context) (*sshCAKey, error) {
	if i.ca == nil {
		return nil, fleet.Errorf(fleet.CodeUnsupported, "no-ssh-ca", "no SSH CA is configured: give the API COMPUTE_SSH_CA_KEY (compute keys init makes one)")
	}
	if remote, ok := i.ca.(interface {
		Ready(ctx context.Context) error
	}); ok {
		if err := remote.Ready(ctx); err != nil {
			return nil, err
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.key != nil {
		return i.key, nil
	}
	signer, err := ssh.NewSignerFromSigner(i.ca)
	if err != nil {
		return nil, fmt.Errorf("use the SSH CA: %w", err)
	}
	switch signer.PublicKey().Type() {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521:
	default:
		return nil, errors.New("the SSH CA has to be an Ed25519 or ECDSA key")
	}
	i.key = &sshCAKey{Signer: signer, line: oneLine(signer.PublicKey())}
	return i.key, nil
}

// oneLine is a key or certificate as OpenSSH writes it, without a comment.
func oneLine(k ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k))) }

// publish makes the nodes trust this CA and let in to these accounts. Where it was
// distrusted it is no CA any more.
func (i *sshIssuer) publish(ctx context.Context, s *store.Store) error {
	key, err := i.usable(ctx)
	if err != nil {
		return err
	}
	trusted, err := s.PublishSSH(ctx, key.line, i.accounts)
	if err == nil && !trusted {
		err = fleet.Errorf(fleet.CodeUnsupported, "ssh-ca-distrusted", "the SSH CA of this process was distrusted (compute keys ssh): configure the new one")
	}
	return err
}

// ready is the CA's key to sign with, which the nodes trust.
func (i *sshIssuer) ready(ctx context.Context, s *store.Store) (*sshCAKey, error) {
	key, err := i.usable(ctx)
	if err != nil {
		return nil, err
	}
	if trusted, err := store.SSHTrusted(ctx, s.Pool(), key.line); err != nil || trusted {
		return key, err
	}
	return key, i.publish(ctx, s)
}

// checkSession is what issuing asks of the caller's session.
func (i *sshIssuer) checkSession(c Caller, now time.Time) error {
	if i.requireMFA && !c.MFA {
		return fleet.Errorf(fleet.CodeAccessDenied, "mfa-required", "this needs a session with a second factor: log in again with one (the token's amr has to hold mfa)")
	}
	if c.SessionEnd.Sub(now) < sshSessionLeast {
		return fleet.Errorf(fleet.CodeAccessDenied, "session-ending", "the session ends within a minute, and the certificate may not outlive it: log in again")
	}
	return nil
}

// life is when a certificate begins and ends, in whole seconds, as sshd reads
// them: it begins in the past, and ends with the session at the latest.
func (i *sshIssuer) life(now, sessionEnd time.Time, ttl time.Duration) (from, to time.Time) {
	end := now.Add(ttl)
	if sessionEnd.Before(end) {
		end = sessionEnd
	}
	return now.Add(-i.backdate).Truncate(time.Second), end.Truncate(time.Second)
}

// sign makes the certificate of a record.
func (i *sshIssuer) sign(ca ssh.Signer, key ssh.PublicKey, c fleet.SSHCert, keyID string) (string, error) {
	account, nodeID, ok := strings.Cut(c.Principal, "@")
	if !ok || !fleet.MatchPattern("principal", account) || !fleet.MatchPattern("sshNodeId", nodeID) || !slices.Contains(i.accounts, account) {
		// sshd takes a certificate without a principal for one of every principal.
		return "", fmt.Errorf("principal %q is not that of a configured account on a node", c.Principal)
	}
	serial, err := strconv.ParseUint(c.Serial, 10, 64)
	if err != nil {
		return "", fmt.Errorf("serial %q: %w", c.Serial, err)
	}
	cert := &ssh.Certificate{Key: key, Serial: serial, CertType: ssh.UserCert, KeyId: keyID, ValidPrincipals: []string{c.Principal},
		ValidAfter: uint64(c.ValidAfter.Unix()), ValidBefore: uint64(c.ValidBefore.Unix()),
		Permissions: ssh.Permissions{Extensions: map[string]string{"permit-pty": ""}}}
	if err := cert.SignCert(rand.Reader, ca); err != nil {
		return "", fmt.Errorf("sign an SSH certificate: %w", err)
	}
	return oneLine(cert), nil
}
