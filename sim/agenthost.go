package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/fleet"
)

// How long the agent's tests take on a machine, one each.
const testTime = 10 * time.Second

// runAgent runs the agent of our boot image on a machine.
func runAgent(ctx context.Context, h *BootedMachine) {
	log := slog.New(slog.DiscardHandler)
	if h.m.rack.log.Enabled(ctx, slog.LevelDebug) {
		log = h.m.rack.log.With("machine", h.m.id)
	}
	var boot agent.BootConfig
	if err := json.Unmarshal(h.Config, &boot); err != nil {
		log.Warn("the boot configuration cannot be read", "error", err)
		return
	}
	err := agent.Run(ctx, agent.Config{
		Boot: &boot, HTTP: h.m.rack.http, Log: log,
		RetryPause: max(100*time.Millisecond, h.m.rack.clock.wall(time.Second)),
	}, agentHost{h})
	log.Info("the agent ended", "error", err)
}

// agentHost is a simulated machine as the agent's host.
type agentHost struct{ *BootedMachine }

// Hardware is who the machine is.
func (h agentHost) Hardware(context.Context) (fleet.Hardware, error) {
	return h.BootedMachine.Hardware(), nil
}

// Inventory is all of the hardware.
func (h agentHost) Inventory(context.Context) (fleet.Inventory, error) {
	return h.BootedMachine.Inventory(), nil
}

// Test passes on a machine that is well: the disk test fails with a dead disk,
// all others with bad health.
func (h agentHost) Test(ctx context.Context, name string, progress agent.Progress) (agent.TestResult, error) {
	values, known := map[string]map[string]float64{
		"memory": {"testedGiB": float64(h.BootedMachine.Inventory().MemoryMiB / 1024)},
		"disk":   {"readMBps": 3200}, "cpu": {"bogomips": 5600}, "nic": {"linksUp": float64(len(h.macs()))}, "clock": {"offsetMs": 1},
	}[name]
	if !known {
		return agent.TestResult{}, fmt.Errorf("test %s: %w", name, agent.ErrUnsupported)
	}
	progress(0, "running")
	if !h.m.rack.clock.sleep(ctx, testTime) {
		return agent.TestResult{}, context.Cause(ctx)
	}
	s := h.view()
	res := agent.TestResult{Name: name, OK: s.Health == "OK", Detail: "no fault found", Values: values}
	if name == "disk" {
		res.OK = !slices.ContainsFunc(s.Disks, func(d Disk) bool { return d.Dead })
	}
	if !res.OK {
		res.Detail = "faults found"
	}
	return res, nil
}

// WriteImage streams the image to the disk.
func (h agentHost) WriteImage(ctx context.Context, disk fleet.Disk, image agent.WriteImage, progress agent.Progress) (agent.Written, error) {
	n, err := h.BootedMachine.WriteImage(ctx, image.URL, image.Checksum, disk.Serial, func(done, total int64) {
		percent := -1
		if total > 0 {
			percent = int(done * 100 / total)
		}
		progress(percent, fmt.Sprintf("%d bytes written", done))
	})
	if err != nil {
		return agent.Written{}, answering(err)
	}
	return agent.Written{SHA256: sumOf(image.Checksum), Bytes: n}, nil
}

// ConfigDrive puts the documents beside the image.
func (h agentHost) ConfigDrive(ctx context.Context, disk fleet.Disk, docs agent.ConfigDrive) error {
	return answering(h.WriteConfigDrive(ctx, disk.Serial, ConfigDrive{
		MetaData: docs.MetaData, UserData: docs.UserData, NetworkData: docs.NetworkData, VendorData: docs.VendorData}))
}

// Erase erases a disk.
func (h agentHost) Erase(ctx context.Context, serial, method string, progress agent.Progress) error {
	progress(0, "erasing")
	return answering(h.BootedMachine.Erase(ctx, serial, method))
}

// Finish has nothing left to do: what was written is on the disks.
func (h agentHost) Finish(context.Context) error { return nil }

// answering names a disk's failure in the agent's terms.
func answering(err error) error {
	if errors.Is(err, ErrDisk) {
		return fmt.Errorf("%w: %w", agent.ErrNoAnswer, err)
	}
	return err
}
