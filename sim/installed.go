package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/fleet"
)

// joinFile is what the installed system's vendor or user data tells its agent to
// join by; empty = nothing. As cloud-init does, what is asked for is written once
// for an instance.
func joinFile(d *Disk) (content, instanceID string) {
	if d == nil || d.Image == nil || d.Image.ConfigDrive == nil {
		return "", ""
	}
	var inst instance
	// Meta data that cannot be read leaves a system without a name.
	_ = yaml.Unmarshal([]byte(d.Image.ConfigDrive.MetaData), &inst)
	for _, doc := range []string{d.Image.ConfigDrive.UserData, d.Image.ConfigDrive.VendorData} {
		var c struct {
			WriteFiles []struct {
				Path    string `yaml:"path"`
				Content string `yaml:"content"`
			} `yaml:"write_files"`
		}
		if yaml.Unmarshal([]byte(doc), &c) != nil {
			continue
		}
		for _, f := range c.WriteFiles {
			if f.Path == fleet.JoinFilePath {
				return f.Content, inst.ID
			}
		}
	}
	return "", ""
}

// startInstalled runs the agent of the system installed on a disk, if that
// system has one: until the machine is reset or switched off. The caller holds
// the machine's lock.
func (m *Machine) startInstalled(i int, boots time.Duration) {
	s := &m.st.Systems[i]
	d := s.bootDisk()
	content, instanceID := joinFile(d)
	if content == "" || m.rack.opts.NoAgents || m.rack.ctx.Err() != nil {
		return
	}
	if stop := m.boots[i]; stop != nil {
		stop()
	}
	ctx, cancel := context.WithCancel(m.rack.ctx)
	m.boots[i] = cancel
	h := &BootedMachine{m: m, system: i}
	folder := m.agentFolder(i, d)
	m.rack.running.Go(func() {
		defer cancel()
		if !m.rack.clock.sleep(ctx, boots) {
			return
		}
		if err := writeOnce(folder, content, instanceID); err != nil {
			m.rack.log.Warn("the installed system's agent has no folder", "machine", m.id, "error", err)
			return
		}
		log := slog.New(slog.DiscardHandler)
		if m.rack.log.Enabled(ctx, slog.LevelDebug) {
			log = m.rack.log.With("machine", m.id)
		}
		err := agent.Keep(ctx, agent.ServeConfig{State: agent.State{Dir: folder}, Host: installedHost{h}, Log: log,
			RetryPause: max(100*time.Millisecond, m.rack.clock.wall(time.Second))})
		log.Info("the installed system's agent ended", "error", err)
	})
}

// agentFolder is where the system on a disk keeps its agent's identity: another
// one for each image that is written.
func (m *Machine) agentFolder(i int, d *Disk) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %s", d.Serial, d.Image.At.UTC().Format(time.RFC3339Nano))
	return filepath.Join(m.rack.agents, m.id, m.st.Systems[i].ID, fmt.Sprintf("%016x", h.Sum64()))
}

// writeOnce gives the agent the join file, unless this instance had it before,
// and removes what other instances of the machine left.
func writeOnce(folder, content, instanceID string) error {
	entries, err := os.ReadDir(filepath.Dir(folder))
	if err == nil {
		for _, e := range entries {
			if e.Name() != filepath.Base(folder) {
				if err := os.RemoveAll(filepath.Join(filepath.Dir(folder), e.Name())); err != nil {
					return err
				}
			}
		}
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	marker := filepath.Join(folder, "instance")
	if had, err := os.ReadFile(marker); err == nil && string(had) == instanceID {
		return nil
	}
	if err := os.WriteFile(filepath.Join(folder, filepath.Base(fleet.JoinFilePath)), []byte(content), 0o600); err != nil {
		return err
	}
	return os.WriteFile(marker, []byte(instanceID), 0o600)
}

// installedHost is a simulated machine as the host of the agent of its installed
// system.
type installedHost struct{ *BootedMachine }

// Hardware is who the machine is.
func (h installedHost) Hardware(context.Context) (fleet.Hardware, error) {
	return h.BootedMachine.Hardware(), nil
}

// Inventory is all of the hardware.
func (h installedHost) Inventory(context.Context) (fleet.Inventory, error) {
	return h.BootedMachine.Inventory(), nil
}

// Acceptance is that of a host that is well.
func (h installedHost) Acceptance(context.Context) (fleet.AcceptanceFacts, error) {
	inv := h.BootedMachine.Inventory()
	f := fleet.AcceptanceFacts{Inventory: inv, Drivers: map[string]string{}, DiskFreeBytes: 100 << 30, Kernel: "6.12.0-simulated"}
	for _, vendor := range slices.Compact(gpuVendors(inv)) {
		f.Drivers[vendor] = "simulated"
	}
	return f, nil
}

func gpuVendors(inv fleet.Inventory) []string {
	out := make([]string, len(inv.GPUs))
	for i, g := range inv.GPUs {
		out[i] = g.Vendor
	}
	return out
}

// ApplySpec has nothing to bring about: nobody logs in to a simulated system.
func (h installedHost) ApplySpec(context.Context, fleet.NodeSpec) (string, error) { return "", nil }

// RemoveSpec has nothing to take back.
func (h installedHost) RemoveSpec(context.Context) error { return nil }
