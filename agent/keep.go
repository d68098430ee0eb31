package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// How long an agent waits before it looks whether the machine has joined, and
// before it asks again after a refusal that a person may have mended.
const (
	lookForJoin  = 2 * time.Second
	refusedPause = time.Minute
)

// Keep keeps a machine a member: it joins by the join file that lies in its
// folder, serves the session, and after a revocation or a leave waits until the
// machine has joined again. It returns when the context ends, or what another
// start would not mend.
func Keep(ctx context.Context, cfg ServeConfig) error {
	cfg = cfg.withDefaults()
	said := ""
	say := func(what string) {
		if what != said {
			cfg.Log.Warn(what)
			said = what
		}
	}
	for {
		if refused, err := joinByFile(ctx, cfg); err != nil {
			return err
		} else if refused != nil {
			cfg.Log.Error("not joined", "error", refused)
			if _, err := cfg.State.Identity(); err != nil {
				if !sleep(ctx, refusedPause) {
					return ctx.Err()
				}
				continue
			}
		}
		id, err := cfg.State.Identity()
		if err == nil {
			err = Serve(ctx, cfg)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errRejoined):
			continue
		case errors.Is(err, ErrNotJoined):
			say("this machine has not joined, or has left: waiting for nodeagent join")
		case errors.Is(err, ErrRevoked):
			say("the control plane does not take this machine's certificate any more: waiting for nodeagent join")
		default:
			return err
		}
		for {
			if !sleep(ctx, lookForJoin) {
				return ctx.Err()
			}
			if now, err := cfg.State.Identity(); err == nil && !now.JoinedAt.Equal(id.JoinedAt) {
				break
			}
			if _, err := os.Stat(cfg.State.path(fileJoin)); err == nil {
				break
			}
		}
		said = ""
	}
}

// joinByFile joins by the join file, when there is one. refused is the control
// plane's no.
func joinByFile(ctx context.Context, cfg ServeConfig) (refused, err error) {
	var f fleet.JoinFile
	err = cfg.State.readJSON(&f, fileJoin)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the join file %s cannot be read", cfg.State.path(fileJoin)) // the cause could quote the token
	}
	id, err := Join(ctx, JoinConfig{GatewayURL: f.GatewayURL, CAFingerprint: f.CAFingerprint, Token: f.Token, State: cfg.State, TPM: cfg.TPM, Log: cfg.Log, RetryPause: cfg.RetryPause}, cfg.Host)
	if errors.Is(err, ErrJoinRefused) {
		return err, nil
	}
	if err != nil {
		return nil, err
	}
	cfg.Log.Info("joined", "node", id.NodeID, "generation", id.Generation)
	return nil, nil
}

// Status is what the running agent last said of its session, and when the
// certificate ends.
func (s State) Status() (last Status, notAfter time.Time, err error) {
	cert, err := s.certificate()
	if err != nil {
		return last, notAfter, err
	}
	if err := s.readJSON(&last, fileStatus); err != nil && !errors.Is(err, os.ErrNotExist) {
		return last, notAfter, err
	}
	return last, cert.Leaf.NotAfter, nil
}
