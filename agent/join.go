package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/identity"
)

// JoinConfig is what a machine needs to join.
type JoinConfig struct {
	GatewayURL, CAFingerprint string
	// Token is a join token's secret or a deploy token.
	Token string
	State State
	// TPM is the machine's, nil without one.
	TPM TPM
	Log *slog.Logger
	// RetryPause is as in Config.
	RetryPause time.Duration
}

// Identified is a host as far as a join needs it.
type Identified interface {
	Hardware(ctx context.Context) (fleet.Hardware, error)
	Inventory(ctx context.Context) (fleet.Inventory, error)
}

// ErrJoinRefused says that the control plane does not take the machine; its
// words follow.
var ErrJoinRefused = errors.New("the control plane refused the join")

// certificateAnswer is a certificate as the gateway answers it.
type certificateAnswer struct {
	NodeID      string `json:"nodeId"`
	Generation  int64  `json:"generation"`
	Certificate string `json:"certificate"`
}

// Join makes the machine a node: a key is made here, and never leaves; the
// control plane says who the machine is. Tried again after a lost answer it is
// the same join.
func Join(ctx context.Context, cfg JoinConfig, host Identified) (Identity, error) {
	if cfg.RetryPause == 0 {
		cfg.RetryPause = time.Second
	}
	if err := identity.CheckFingerprint(cfg.CAFingerprint); err != nil {
		return Identity{}, err
	}
	key, err := cfg.State.makeKey()
	if err != nil {
		return Identity{}, err
	}
	csr, err := identity.NewCSR(key)
	if err != nil {
		return Identity{}, err
	}
	hw, err := host.Hardware(ctx)
	if err != nil {
		cfg.Log.Warn("hardware identity is incomplete", "error", err)
	}
	inv, err := host.Inventory(ctx)
	if err != nil {
		return Identity{}, fmt.Errorf("read the inventory: %w", err)
	}
	c, err := dial(cfg.GatewayURL, cfg.CAFingerprint, nil, cfg.RetryPause, cfg.Log.Warn)
	if err != nil {
		return Identity{}, err
	}
	var out certificateAnswer
	err = proved(func() error {
		body := map[string]any{"token": cfg.Token, "csr": string(csr), "hardware": hw, "inventory": inv}
		proof, err := prove(cfg.TPM, cfg.Log, func(ask map[string]any, credential any) error {
			ask["token"], ask["csr"] = cfg.Token, string(csr)
			_, err := c.persist(ctx, "/node/v1/challenge", ask, credential)
			return err
		})
		if err != nil {
			return err
		}
		if proof != nil {
			body["tpmProof"] = proof
		}
		_, err = c.persist(ctx, "/node/v1/join", body, &out)
		return err
	})
	var status *statusError
	if errors.As(err, &status) {
		ways := ""
		if len(status.YouCan) > 0 {
			ways = "; you can: " + strings.Join(status.YouCan, ", ")
		}
		return Identity{}, fmt.Errorf("%w: %s (%s)%s", ErrJoinRefused, status.Detail, status.Reason, ways)
	}
	if err != nil {
		return Identity{}, fmt.Errorf("join: %w", err)
	}
	id := Identity{GatewayURL: cfg.GatewayURL, CAFingerprint: cfg.CAFingerprint, NodeID: out.NodeID, Generation: out.Generation, JoinedAt: time.Now()}
	// The certificate first: an identity without one would be taken for joined.
	if err := cfg.State.write([]byte(out.Certificate), fileCert); err != nil {
		return Identity{}, err
	}
	if err := cfg.State.writeJSON(id, fileIdentity); err != nil {
		return Identity{}, err
	}
	return id, cfg.State.remove(fileJoin, fileLeaving)
}

// Leave ends the session and removes key, certificate and what the agent set up
// from the host. The node stays in the control plane. It leaves also when the
// control plane cannot be reached, or is not known any more.
func Leave(ctx context.Context, state State, host Member, log *slog.Logger) error {
	id, err := state.leaving()
	if errors.Is(err, ErrDamaged) {
		log.Warn("the session cannot be ended", "error", err)
	} else if err != nil {
		return err
	}
	m := &membership{cfg: ServeConfig{State: state, Host: host, Log: log}.withDefaults(), id: id}
	if err := m.connect(); err == nil {
		tried, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		if err := m.open(tried); err != nil {
			log.Warn("the session could not be ended", "error", err)
		} else if _, err := m.client.post(tried, "/node/v1/session/leave", struct{}{}, nil); err != nil {
			log.Warn("the session could not be ended", "error", err)
		}
	}
	return state.alone(func() error {
		if err := host.RemoveSpec(ctx); err != nil {
			return fmt.Errorf("remove what the agent set up: %w", err)
		}
		return state.forget()
	})
}

// notHere says whether an answer means that the session is not at the gateway.
func notHere(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.Status == http.StatusConflict
}

// unauthenticated says whether the gateway does not take the certificate.
func unauthenticated(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.Status == http.StatusUnauthorized
}
