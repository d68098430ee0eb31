package sim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// How long erasing one disk takes.
const (
	metadataEraseTime = 2 * time.Second
	fullEraseTime     = 60 * time.Second
)

// ErrChecksum is wrapped when an image is not the one that was named.
var ErrChecksum = errors.New("checksum mismatch")

// with runs f on the system's state, unless the machine has been reset since it
// booted: then what ran on it has no effect any more.
func (h *BootedMachine) with(ctx context.Context, f func(*System) error) error {
	m := h.m
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &m.st.Systems[h.system]
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.Running == nil || s.Running.BootID != h.BootID {
		return fmt.Errorf("the machine was reset: %w", context.Canceled)
	}
	if err := f(s); err != nil {
		return err
	}
	m.record()
	return nil
}

// MachineID is the machine's id in the rack.
func (h *BootedMachine) MachineID() string { return h.m.id }

// Hardware is who the machine says it is, from inside.
func (h *BootedMachine) Hardware() fleet.Hardware {
	s := h.view()
	return fleet.Hardware{UUID: s.UUID, Serial: s.Serial, Vendor: h.m.prof.Vendor, MACs: h.macs()}
}

func (h *BootedMachine) view() System {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	s := h.m.st.Systems[h.system]
	s.Disks = slices.Clone(s.Disks)
	return s
}

// macs are the addresses of the network ports, as the kernel sees them.
func (h *BootedMachine) macs() []string {
	var out []string
	for _, n := range h.m.nics(h.system) {
		out = append(out, n.MAC)
	}
	return out
}

// Disks is the true state of the disks.
func (h *BootedMachine) Disks() []Disk { return h.view().Disks }

// Inventory is the hardware as a system on the machine sees it: all of it,
// whatever the BMC lists.
func (h *BootedMachine) Inventory() fleet.Inventory {
	m, s, t := h.m, h.view(), h.m.hw
	inv := fleet.Inventory{Vendor: m.prof.Vendor, Model: s.Model, Serial: s.Serial, UUID: s.UUID,
		MemoryMiB: int64(t.Memory.Count) * int64(t.Memory.SizeMiB), BIOSVersion: m.biosVersion(h.system),
		Health: s.Health, TPM: &fleet.TPM{Present: t.TPM != "", Version: t.TPM}}
	for n := range t.CPU.Count {
		inv.CPUs = append(inv.CPUs, fleet.CPU{Model: t.CPU.Model, Slot: fmt.Sprintf("CPU%d", n), Cores: t.CPU.Cores,
			Threads: t.CPU.Threads, Arch: linuxArch(t.CPU.Architecture)})
	}
	id := m.ident(h.system)
	for n := range t.Memory.Count {
		inv.DIMMs = append(inv.DIMMs, fleet.DIMM{Slot: fmt.Sprintf("DIMM%d", n+1), SizeMiB: int64(t.Memory.SizeMiB),
			Type: t.Memory.Type, Serial: id.serial("dimm", n, 8), Part: t.Memory.PartNumber})
	}
	for n, d := range s.Disks {
		if d.Dead {
			inv.Missing = append(inv.Missing, devicePath(d, n)+" does not answer")
			continue
		}
		inv.Disks = append(inv.Disks, fleet.Disk{Serial: d.Serial, Model: d.Model, SizeBytes: d.SizeBytes, Type: d.Type,
			Path: devicePath(d, n), Health: "OK"})
	}
	up := true
	for _, n := range m.nics(h.system) {
		inv.NICs = append(inv.NICs, fleet.NIC{MAC: n.MAC, Name: fmt.Sprintf("eth%d", n.Index), SpeedMbps: n.Template.SpeedMbps, LinkUp: &up})
	}
	for _, p := range m.gpus(h.system) {
		inv.GPUs = append(inv.GPUs, fleet.Device{Vendor: t.GPU.Manufacturer, Model: t.GPU.Model, Serial: p.Serial,
			UUID: "GPU-" + id.uuid(fmt.Sprint("gpu", p.Index)), PCIAddress: fmt.Sprintf("0000:%02x:00.0", 0x18+p.Index*8), Kind: "gpu"})
	}
	return inv
}

func linuxArch(a string) string {
	if a == "ARM" {
		return "aarch64"
	}
	return "x86_64"
}

func devicePath(d Disk, n int) string {
	if d.Type == "nvme" {
		return fmt.Sprintf("/dev/nvme%dn1", n)
	}
	return "/dev/sd" + string(rune('a'+n))
}

// disk finds a disk that answers.
func (s *System) disk(serial string) (*Disk, error) {
	for i := range s.Disks {
		if s.Disks[i].Serial != serial {
			continue
		}
		if s.Disks[i].Dead {
			return nil, fmt.Errorf("disk %s: input/output error: %w", serial, ErrDisk)
		}
		return &s.Disks[i], nil
	}
	return nil, fmt.Errorf("disk %s: no such disk: %w", serial, ErrDisk)
}

// WriteImage streams an image from its URL to a disk and checks it on the way:
// sum is its SHA-256 in hex. It returns the bytes written. The disk is partial
// from the first byte on, and holds the image only when the sum was right.
func (h *BootedMachine) WriteImage(ctx context.Context, from, sum, serial string, progress func(done, total int64)) (int64, error) {
	begin := func(s *System) error {
		d, err := s.disk(serial)
		if err == nil {
			d.beginWrite()
		}
		return err
	}
	if err := h.with(ctx, begin); err != nil {
		return 0, err
	}
	n, got, err := h.stream(ctx, from, progress)
	if err != nil {
		return n, err
	}
	if got != sumOf(sum) {
		return n, fmt.Errorf("the image is sha256:%s: %w", got, ErrChecksum)
	}
	return n, h.with(ctx, func(s *System) error {
		d, err := s.disk(serial)
		if err != nil {
			return err
		}
		if n > d.SizeBytes {
			return fmt.Errorf("the image of %d bytes is larger than disk %s", n, serial)
		}
		d.endWrite(WrittenImage{URL: withoutQuery(from), SHA256: got, Bytes: n, At: h.m.rack.clock.now()})
		return nil
	})
}

// sumOf is the hex of a checksum as it is written.
func sumOf(checksum string) string { return strings.ToLower(strings.TrimPrefix(checksum, "sha256:")) }

// withoutQuery keeps what may be a secret out of what anybody can read.
func withoutQuery(u string) string {
	before, _, _ := strings.Cut(u, "?")
	return before
}

// stream reads an image whole, hashes it, and tells how far it has come.
func (h *BootedMachine) stream(ctx context.Context, from string, progress func(done, total int64)) (int64, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return 0, "", errors.New("the image's address is no URL")
	}
	resp, err := h.m.rack.http.Do(req)
	if err != nil {
		return 0, "", fmt.Errorf("fetching the image: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, "", fmt.Errorf("fetching the image: the server answered %s", resp.Status)
	}
	sink := &hashed{sum: sha256.New(), total: resp.ContentLength, progress: progress}
	n, err := io.Copy(sink, resp.Body)
	if err != nil {
		return n, "", fmt.Errorf("fetching the image: %w", err)
	}
	return n, hex.EncodeToString(sink.sum.Sum(nil)), nil
}

// hashed is a disk as far as its writer can tell.
type hashed struct {
	sum         hash.Hash
	done, total int64
	progress    func(done, total int64)
}

func (s *hashed) Write(p []byte) (int, error) {
	s.sum.Write(p)
	s.done += int64(len(p))
	if s.progress != nil {
		s.progress(s.done, s.total)
	}
	return len(p), nil
}

// WriteConfigDrive puts a config drive beside the image on a disk.
func (h *BootedMachine) WriteConfigDrive(ctx context.Context, serial string, c ConfigDrive) error {
	return h.with(ctx, func(s *System) error {
		d, err := s.disk(serial)
		if err != nil {
			return err
		}
		if d.Image == nil {
			return fmt.Errorf("disk %s holds no image", serial)
		}
		d.Image.ConfigDrive = &c
		return nil
	})
}

// Erase erases one disk by the method metadata or full.
func (h *BootedMachine) Erase(ctx context.Context, serial, method string) error {
	takes := metadataEraseTime
	if method == eraseFull {
		takes = fullEraseTime
	}
	if err := h.with(ctx, func(s *System) error { _, err := s.disk(serial); return err }); err != nil {
		return err
	}
	if !h.m.rack.clock.sleep(ctx, takes) {
		return ctx.Err()
	}
	return h.with(ctx, func(s *System) error {
		d, err := s.disk(serial)
		if err == nil {
			d.erase(method)
		}
		return err
	})
}

// Rescue lets the keys in, in place of those let in before.
func (h *BootedMachine) Rescue(ctx context.Context, keys []string) error {
	return h.with(ctx, func(s *System) error {
		s.Running.RescueKeys = slices.Clone(keys)
		return nil
	})
}
