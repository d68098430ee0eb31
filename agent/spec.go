package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// specState is where a session stands with the node's NodeSpec.
type specState struct {
	// tried is the one that was tried last, nil for none, and look when the host is
	// looked at again: nobody tells when what stood in the way is gone, or when
	// somebody changed what was brought about.
	tried *fleet.NodeSpec
	look  time.Time
	// told is what the session was told of it.
	told specReport
}

// specReport is what the control plane is told of a NodeSpec.
type specReport struct {
	Version int64 `json:"version"`
	// Applied is the version that the host runs: Version, or the last good one.
	Applied     int64  `json:"applied"`
	Error       string `json:"error,omitempty"`
	SSHConflict string `json:"sshConflict,omitempty"`
	// Address is the host's own on the way to the gateway.
	Address string `json:"address,omitempty"`
}

// restore brings the last good NodeSpec about again, in case the host lost it.
func (m *membership) restore(ctx context.Context) error {
	spec, err := m.cfg.State.spec()
	if err != nil || spec == nil {
		return err
	}
	// The session begins with it: what was told of it last may not be so any more.
	m.spec.tried = spec
	return m.cfg.State.alone(func() error {
		_, err := m.cfg.Host.ApplySpec(ctx, *spec)
		return err
	})
}

// apply brings a NodeSpec about and tells of it, unless that was told already. One
// that cannot be applied leaves the last good one in place.
func (m *membership) apply(ctx context.Context, spec fleet.NodeSpec) error {
	report := specReport{Version: spec.Version, Applied: spec.Version, Address: m.client.localAddress()}
	err := m.cfg.State.alone(func() error {
		if _, err := m.cfg.State.Identity(); err != nil {
			return err // it has left meanwhile
		}
		if spec.NodeID != m.id.NodeID {
			return fmt.Errorf("it is the NodeSpec of %s, and this is %s", spec.NodeID, m.id.NodeID)
		}
		good, err := m.cfg.State.spec()
		if err != nil {
			m.cfg.Log.Warn("the last good NodeSpec cannot be read", "error", err)
		}
		spec = stillRevoked(spec, good)
		if report.SSHConflict, err = m.cfg.Host.ApplySpec(ctx, spec); err != nil {
			return err
		}
		return m.cfg.State.writeJSON(spec, fileSpec)
	})
	if errors.Is(err, ErrNotJoined) {
		return err
	}
	if err != nil {
		report.Error, report.Applied = err.Error(), 0
		if good, err := m.cfg.State.spec(); err == nil && good != nil {
			report.Applied = good.Version
		}
	}
	m.spec.tried, m.spec.look = &spec, time.Now().Add(m.cfg.SpecCheck/2+rand.N(m.cfg.SpecCheck))
	if err != nil || report.SSHConflict != "" {
		m.spec.look = time.Now().Add(m.cfg.SpecRetry)
	}
	if report == m.spec.told {
		return nil
	}
	if err != nil {
		m.cfg.Log.Warn("NodeSpec not applied", "version", spec.Version, "error", err)
	} else {
		m.cfg.Log.Info("NodeSpec applied", "version", spec.Version, "conflict", report.SSHConflict)
	}
	if _, err := m.client.post(ctx, "/node/v1/session/spec", report, nil); err != nil {
		m.spec.look = time.Time{} // to be told by the next session
		return err
	}
	m.spec.told = report
	return nil
}

// stillRevoked is a NodeSpec that refuses also the certificates that the one before
// it refused and that have not ended: nothing that was revoked is let in again by
// a control plane that was restored from a backup and does not know of it.
func stillRevoked(spec fleet.NodeSpec, before *fleet.NodeSpec) fleet.NodeSpec {
	if spec.SSH == nil || before == nil || before.SSH == nil {
		return spec
	}
	ended, err := strconv.ParseUint(spec.SSH.ExpiredThrough, 10, 64)
	if err != nil {
		return spec // the host refuses it, and says why
	}
	ssh := *spec.SSH
	ssh.RevokedSerials = slices.Clone(ssh.RevokedSerials)
	for _, serial := range before.SSH.RevokedSerials {
		n, err := strconv.ParseUint(serial, 10, 64)
		if err == nil && n > ended && !slices.Contains(ssh.RevokedSerials, serial) {
			ssh.RevokedSerials = append(ssh.RevokedSerials, serial)
		}
	}
	spec.SSH = &ssh
	return spec
}
