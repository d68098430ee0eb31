package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/identity"
)

// Member is a joined machine as the agent's host.
type Member interface {
	Identified
	// Acceptance finds what the control plane judges an adopted host by. What
	// concerns the gateway is added by the agent.
	Acceptance(ctx context.Context) (fleet.AcceptanceFacts, error)
	// ApplySpec brings a NodeSpec about, as a whole or not at all. conflict says
	// what of the host's own configuration stands in the way.
	ApplySpec(ctx context.Context, spec fleet.NodeSpec) (conflict string, err error)
	// RemoveSpec takes back all that ApplySpec set up.
	RemoveSpec(ctx context.Context) error
}

// ServeConfig is what a joined machine's agent needs.
type ServeConfig struct {
	State State
	Host  Member
	// TPM is the machine's, nil without one.
	TPM TPM
	Log *slog.Logger
	// Heartbeat, ProgressEvery and RetryPause are as in Config.
	Heartbeat, ProgressEvery, RetryPause time.Duration
	// RenewAt says when a certificate is renewed; nil is at two thirds of its
	// life, up to a tenth sooner.
	RenewAt func(notBefore, notAfter time.Time) time.Time
	// SpecRetry is how long after a NodeSpec that could not be brought about, or
	// not beside the host's own configuration, it is tried again; 0 is a minute.
	// SpecCheck is about how often one that could is looked after, in case somebody
	// changed the host; 0 is five minutes.
	SpecRetry, SpecCheck time.Duration
}

func (c ServeConfig) withDefaults() ServeConfig {
	for _, d := range []struct {
		d *time.Duration
		v time.Duration
	}{{&c.Heartbeat, 10 * time.Second}, {&c.ProgressEvery, 2 * time.Second}, {&c.RetryPause, time.Second}, {&c.SpecRetry, time.Minute}, {&c.SpecCheck, 5 * time.Minute}} {
		if *d.d == 0 {
			*d.d = d.v
		}
	}
	if c.RenewAt == nil {
		c.RenewAt = renewAt
	}
	return c
}

// renewAt is at two thirds of a certificate's life, up to a tenth of it sooner:
// certificates that were issued together are not renewed together.
func renewAt(from, to time.Time) time.Time {
	life := to.Sub(from)
	return from.Add(life*2/3 - rand.N(life/10+1))
}

// ErrRevoked says that the control plane does not take the machine's
// certificate any more: it has to join again.
var ErrRevoked = errors.New("the control plane does not take this machine's certificate; it has to join again")

// errRejoined says that the machine joined anew while the agent ran.
var errRejoined = errors.New("this machine has joined anew")

// Status is what the running agent last said of its session.
type Status struct {
	// InSession says that the session was opened, Epoch which one.
	InSession bool      `json:"inSession"`
	Epoch     int64     `json:"epoch,omitempty"`
	At        time.Time `json:"at"`
	// Error is why there is no session.
	Error string `json:"error,omitempty"`
}

// told writes what the running agent says of its session; that it cannot is no
// reason to serve no session.
func (m *membership) told(s Status) {
	s.At = time.Now()
	if err := m.cfg.State.writeJSON(s, fileStatus); err != nil {
		m.cfg.Log.Warn("the status could not be written", "error", err)
	}
}

func sessionFault(err error) string {
	if err == nil {
		return "a new session is opened"
	}
	return err.Error()
}

// membership is a joined machine while its agent runs.
type membership struct {
	cfg    ServeConfig
	id     Identity
	client *client
	back   Backoff

	mu      sync.Mutex
	cert    *tls.Certificate
	renewAt time.Time
	spec    specState
}

// Serve keeps a joined machine's session, runs its commands and applies its
// NodeSpec until the context ends, the machine leaves (ErrNotJoined) or its
// identity is revoked (ErrRevoked). While the control plane is away the last
// good NodeSpec stays.
func Serve(ctx context.Context, cfg ServeConfig) error {
	cfg = cfg.withDefaults()
	id, err := cfg.State.Identity()
	if err != nil {
		return err
	}
	m := &membership{cfg: cfg, id: id, back: Backoff{Pause: cfg.RetryPause}}
	if err := m.connect(); err != nil {
		return err
	}
	if err := m.restore(ctx); err != nil {
		cfg.Log.Warn("the last good NodeSpec could not be brought about", "error", err)
	}
	for refused := 0; ; {
		if now, err := cfg.State.Identity(); err != nil {
			return errors.Join(err, cfg.State.remove(fileStatus))
		} else if !now.JoinedAt.Equal(id.JoinedAt) {
			return errRejoined
		}
		err := m.session(ctx)
		m.told(Status{Error: sessionFault(err)})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, ErrNotJoined):
			return err
		case unauthenticated(err):
			// A certificate that has just been replaced, or a clock that jumped, is
			// no revocation: renewal decides.
			if refused++; refused > 2 {
				return ErrRevoked
			}
			if err := m.renew(ctx); unauthenticated(err) {
				return ErrRevoked
			}
		case err == nil || notHere(err):
			refused = 0
		default:
			refused = 0
			cfg.Log.Warn("the session broke", "error", err)
		}
		if retryable(err) {
			// What broke may be the connection, or the one gateway at its other end.
			m.client.http.CloseIdleConnections()
		}
		if !sleep(ctx, m.back.Next(askedPause(err))) {
			return ctx.Err()
		}
	}
}

// connect reads the certificate and makes the client.
func (m *membership) connect() error {
	cert, err := m.cfg.State.certificate()
	if err != nil {
		return err
	}
	m.take(cert, false)
	m.client, err = dial(m.id.GatewayURL, m.id.CAFingerprint, func() (*tls.Certificate, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.cert, nil
	}, m.cfg.RetryPause, m.cfg.Log.Warn)
	return err
}

// take shows a certificate from now on. When one that was just issued is due
// follows from its life alone and is measured from now, by a clock that does not
// jump: the host's may be days off, and would have it renewed again and again,
// or never.
func (m *membership) take(cert *tls.Certificate, issued bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cert, m.renewAt = cert, m.cfg.RenewAt(cert.Leaf.NotBefore, cert.Leaf.NotAfter)
	if issued {
		m.renewAt = time.Now().Add(m.renewAt.Sub(cert.Leaf.NotBefore))
	}
}

func (m *membership) due() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !time.Now().Before(m.renewAt)
}

// renew gets the next certificate of the same key.
func (m *membership) renew(ctx context.Context) error {
	key, err := m.cfg.State.key()
	if err != nil {
		return err
	}
	csr, err := identity.NewCSR(key)
	if err != nil {
		return err
	}
	var out certificateAnswer
	body := map[string]any{"csr": string(csr)}
	proof, err := prove(m.cfg.TPM, m.cfg.Log, func(ask map[string]any, credential any) error {
		ask["csr"] = string(csr)
		_, err := m.client.post(ctx, "/node/v1/challenge", ask, credential)
		return err
	})
	if err != nil {
		return fmt.Errorf("renew the certificate: %w", err)
	}
	if proof != nil {
		body["tpmProof"] = proof
	}
	if _, err := m.client.post(ctx, "/node/v1/renew", body, &out); err != nil {
		return fmt.Errorf("renew the certificate: %w", err)
	}
	cert, err := readCertificate([]byte(out.Certificate), key)
	if err != nil {
		return fmt.Errorf("read the renewed certificate: %w", err)
	}
	// One that cannot be kept serves all the same: after a restart the former one
	// is renewed.
	if err := m.cfg.State.write([]byte(out.Certificate), fileCert); err != nil {
		m.cfg.Log.Warn("the renewed certificate could not be kept", "error", err)
	}
	m.take(cert, true)
	// The next connection shows the new one.
	m.client.http.CloseIdleConnections()
	m.cfg.Log.Info("certificate renewed", "notAfter", cert.Leaf.NotAfter)
	return nil
}

// open begins a session.
func (m *membership) open(ctx context.Context) error {
	m.client.header.Del(epochHeader)
	var out struct{ Epoch int64 }
	if _, err := m.client.post(ctx, "/node/v1/session", struct{}{}, &out); err != nil {
		return fmt.Errorf("open a session: %w", err)
	}
	m.client.header.Set(epochHeader, strconv.FormatInt(out.Epoch, 10))
	m.back.Reset()
	m.cfg.Log.Info("session opened", "node", m.id.NodeID, "epoch", out.Epoch)
	m.told(Status{InSession: true, Epoch: out.Epoch})
	return nil
}

// epochHeader names the session of a request.
const epochHeader = "Compute-Session-Epoch"

// session opens a session and serves it until it breaks.
func (m *membership) session(ctx context.Context) error {
	if m.due() {
		if err := m.renew(ctx); err != nil {
			return err
		}
	}
	if err := m.open(ctx); err != nil {
		return err
	}
	m.spec.told = specReport{} // this session has not been told
	m.cfg.State.forgetCommands()
	for !m.due() {
		if err := m.step(ctx); err != nil {
			return err
		}
	}
	return nil // a new certificate, and with it a new session
}

// step waits for a command or a NodeSpec and does what it says.
func (m *membership) step(ctx context.Context) error {
	wait := longPoll
	known := fleet.NodeSpec{}
	if m.spec.tried != nil {
		known = *m.spec.tried
		left := time.Until(m.spec.look)
		if left <= 0 {
			return m.apply(ctx, known)
		}
		wait = min(wait, left+time.Second)
	}
	var out struct {
		Command *command
		Spec    *fleet.NodeSpec
	}
	_, err := m.client.post(ctx, "/node/v1/session/next", map[string]any{"waitSeconds": int(wait / time.Second), "spec": known.Version, "specTag": known.Tag}, &out)
	switch {
	case err != nil:
		return err
	case out.Spec != nil:
		return m.apply(ctx, *out.Spec)
	case out.Command != nil:
		return m.run(ctx, *out.Command)
	}
	return nil
}
