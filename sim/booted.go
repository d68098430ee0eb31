package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// imageLoadTime is from the firmware's hand-over to an agent that runs.
const imageLoadTime = 20 * time.Second

// bootConfigMax bounds the configuration that a boot server hands out.
const bootConfigMax = 1 << 20

// startImage runs our image on a system: fetch the configuration of this boot,
// then whatever the rack was told to run. The caller holds the machine's lock.
func (m *Machine) startImage(i int, base, id string) {
	if stop := m.boots[i]; stop != nil {
		stop()
	}
	if m.rack.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(m.rack.ctx)
	m.boots[i] = cancel
	h := &BootedMachine{m: m, system: i, BootID: id, BootURL: base}
	m.rack.running.Go(func() {
		defer cancel()
		if !m.rack.clock.sleep(ctx, imageLoadTime) {
			return
		}
		config, err := h.fetchConfig(ctx)
		if err != nil {
			if ctx.Err() == nil {
				m.rack.log.Info("boot image has no configuration", "machine", m.id, "error", err)
				m.bootFailed(i, id, err)
			}
			return
		}
		h.Config = config
		m.rack.opts.Booted(ctx, h)
	})
}

// bootFailed notes on the boot log why a boot image did not come up.
func (m *Machine) bootFailed(i int, id string, cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &m.st.Systems[i]
	if s.Running == nil || s.Running.BootID != id {
		return
	}
	s.Running.BootID = ""
	m.logBoot(Boot{At: m.rack.clock.now(), System: s.ID, Cause: s.Cause, Source: sourceNone, URL: s.Running.URL,
		Mode: s.Override.Mode, Error: cause.Error()})
	m.record()
}

// BootedMachine is a machine as our boot image sees it from inside.
type BootedMachine struct {
	m      *Machine
	system int
	// BootID is the id in the URL that was booted.
	BootID string
	// BootURL is the boot server's base URL.
	BootURL string
	// Config is the boot configuration as the server answered it.
	Config []byte
}

// fetchConfig gets the configuration of this boot. A server that cannot be
// reached is tried again until the machine is reset; one that knows no such
// boot has spoken.
func (h *BootedMachine) fetchConfig(ctx context.Context) ([]byte, error) {
	url := h.BootURL + "/boot/" + h.BootID + "/config"
	for {
		b, final, err := h.m.rack.fetch(ctx, url)
		if err == nil || final {
			return b, err
		}
		pause := max(5*time.Second, h.m.rack.clock.simulated(500*time.Millisecond))
		if !h.m.rack.clock.sleep(ctx, pause) {
			return nil, ctx.Err()
		}
	}
}

// fetch says, with an error, whether another try would be the same.
func (r *Rack) fetch(ctx context.Context, url string) (body []byte, final bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, true, err
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return nil, false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, resp.StatusCode < http.StatusInternalServerError, fmt.Errorf("boot server answered %s", resp.Status)
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, bootConfigMax))
	return body, false, err
}

// ErrDisk is wrapped by errors about a disk that is not there or does not answer.
var ErrDisk = errors.New("disk failure")
