package sim_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"

	"github.com/bettercompute/compute/sim"
	"github.com/google/go-cmp/cmp"
)

// bootServer hands out configurations and images, and takes reports.
type bootServer struct {
	*httptest.Server
	mu      sync.Mutex
	reports []url.Values
}

func newBootServer(t *testing.T) *bootServer {
	t.Helper()
	s := &bootServer{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /boot/good/config", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"bootId":"good"}`) })
	mux.HandleFunc("GET /image.raw", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, imageBytes) })
	mux.HandleFunc("POST /report/{id}", func(_ http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err == nil {
			s.mu.Lock()
			s.reports = append(s.reports, r.PostForm)
			s.mu.Unlock()
		}
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func (s *bootServer) reported() []url.Values {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]url.Values{}, s.reports...)
}

const imageBytes = "an operating system"

func imageSum() string {
	sum := sha256.Sum256([]byte(imageBytes))
	return hex.EncodeToString(sum[:])
}

// bootInto has a machine of a fast rack boot an address once from a CD.
func bootInto(t *testing.T, address string, booted func(context.Context, *sim.BootedMachine)) *bmc {
	t.Helper()
	b := addBMC(t, newRack(t, sim.Options{TimeScale: 2000, Booted: booted}), plain())
	b.insert(address)
	b.override("Once", "Cd")
	b.reset("On")
	return b
}

// TestBootedImage installs an image from inside the machine, as our boot image
// does, and lets the installed system report.
func TestBootedImage(t *testing.T) {
	t.Parallel()
	s := newBootServer(t)
	type seen struct {
		config string
		disk   string
		err    error
	}
	results := make(chan seen, 1)
	b := bootInto(t, s.URL+"/boot/good/compute.iso", func(ctx context.Context, h *sim.BootedMachine) {
		serial := h.Disks()[0].Serial
		_, err := h.WriteImage(ctx, s.URL+"/image.raw?secret=1", "sha256:"+imageSum(), serial, nil)
		err = errors.Join(err, h.WriteConfigDrive(ctx, serial, sim.ConfigDrive{
			MetaData:   "instance-id: i-7\nlocal-hostname: node7\n",
			VendorData: "#cloud-config\nphone_home:\n  url: " + s.URL + "/report/r1\n  tries: 10\n"}))
		results <- seen{string(h.Config), serial, err}
	})
	got := receive(t, results)
	if got.err != nil || got.config != `{"bootId":"good"}` {
		t.Fatalf("%+v", got)
	}
	var disk sim.Disk
	for _, d := range b.m.View(true).Disks {
		if d.Serial == got.disk {
			disk = d
		}
	}
	if disk.Content != sim.ContentImage || disk.Image.SHA256 != imageSum() || disk.Image.URL != s.URL+"/image.raw" {
		t.Errorf("disk: %+v %+v", disk, disk.Image)
	}
	b.reset("ForceRestart")
	eventually(t, "the report", func() bool { return len(s.reported()) > 0 })
	report := s.reported()[0]
	if diff := cmp.Diff([]string{"i-7", "node7"}, []string{report.Get("instance_id"), report.Get("hostname")}); diff != "" || report.Get("pub_key_ed25519") == "" {
		t.Errorf("report (-want +got):\n%s\n%v", diff, report)
	}
	log := b.m.BootLog()
	if len(log) != 2 || log[0].Source != "cd" || log[1].Source != "disk" {
		t.Errorf("boot log: %+v", log)
	}
}

func TestWrongChecksumLeavesAPartialDisk(t *testing.T) {
	t.Parallel()
	s := newBootServer(t)
	results := make(chan error, 1)
	b := bootInto(t, s.URL+"/boot/good/compute.iso", func(ctx context.Context, h *sim.BootedMachine) {
		_, err := h.WriteImage(ctx, s.URL+"/image.raw", "sha256:00", h.Disks()[0].Serial, nil)
		results <- err
	})
	if err := receive(t, results); !errors.Is(err, sim.ErrChecksum) {
		t.Errorf("got %v", err)
	}
	if got := b.m.View(true).Disks[0].Content; got != sim.ContentPartial {
		t.Errorf("content: got %s, want partial", got)
	}
}

// TestResetEndsWhatRuns resets a machine in the middle of an erase.
func TestResetEndsWhatRuns(t *testing.T) {
	t.Parallel()
	s := newBootServer(t)
	running, ended := make(chan struct{}), make(chan error, 1)
	b := bootInto(t, s.URL+"/boot/good/compute.iso", func(ctx context.Context, h *sim.BootedMachine) {
		close(running)
		<-ctx.Done()
		ended <- h.Erase(context.WithoutCancel(ctx), h.Disks()[0].Serial, "metadata")
	})
	receive(t, running)
	b.reset("ForceOff")
	if err := receive(t, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("an erase after the reset: %v", err)
	}
}

func TestErase(t *testing.T) {
	t.Parallel()
	s := newBootServer(t)
	results := make(chan []error, 1)
	spec := plain()
	spec.DiskContent = sim.ContentData
	r := newRack(t, sim.Options{TimeScale: 2000, Booted: func(ctx context.Context, h *sim.BootedMachine) {
		d := h.Disks()
		results <- []error{h.Erase(ctx, d[0].Serial, "metadata"), h.Erase(ctx, d[1].Serial, "full"), h.Erase(ctx, d[2].Serial, "full")}
	}})
	b := addBMC(t, r, spec)
	if err := b.m.Change(map[string]any{"/disks/2/dead": true}); err != nil {
		t.Fatal(err)
	}
	b.insert(s.URL + "/boot/good/compute.iso")
	b.override("Once", "Cd")
	b.reset("On")
	errs := receive(t, results)
	if errs[0] != nil || errs[1] != nil || !errors.Is(errs[2], sim.ErrDisk) {
		t.Errorf("errors: %v", errs)
	}
	d := b.m.View(true).Disks
	got := []string{d[0].Content, d[0].Erased, d[1].Content, d[1].Erased, d[2].Content, d[2].Erased}
	if diff := cmp.Diff([]string{"remnants", "metadata", "empty", "full", "data", "none"}, got); diff != "" {
		t.Errorf("disks (-want +got):\n%s", diff)
	}
}

// TestVoidBootID boots an id that the server does not know: nothing runs, and
// the boot log says why.
func TestVoidBootID(t *testing.T) {
	t.Parallel()
	s := newBootServer(t)
	b := bootInto(t, s.URL+"/boot/void/compute.iso", func(context.Context, *sim.BootedMachine) { t.Error("something ran") })
	eventually(t, "the error on the boot log", func() bool {
		log := b.m.BootLog()
		return len(log) == 2 && log[1].Source == "none" && log[1].Error != ""
	})
}

// TestInventoryFromInside is what the boot image reports: all of the hardware.
func TestInventoryFromInside(t *testing.T) {
	t.Parallel()
	s := newBootServer(t)
	results := make(chan [5]int, 1)
	r := newRack(t, sim.Options{TimeScale: 2000, Booted: func(_ context.Context, h *sim.BootedMachine) {
		inv := h.Inventory()
		results <- [5]int{len(inv.CPUs), len(inv.GPUs), len(inv.Disks), len(inv.NICs), len(inv.DIMMs)}
	}})
	b := addBMC(t, r, sim.MachineSpec{Profile: "hpe", Model: "ProLiant XL675d Gen10 Plus", Seed: 1, Power: "Off"})
	b.done(http.MethodPost, "/redfish/v1/Managers/1/VirtualMedia/2/Actions/VirtualMedia.InsertMedia", map[string]any{"Image": s.URL + "/boot/good/x.iso"})
	b.done(http.MethodPost, "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset", map[string]any{"ResetType": "On"})
	if diff := cmp.Diff([5]int{2, 8, 2, 2, 16}, receive(t, results)); diff != "" {
		t.Errorf("CPUs, GPUs, disks, NICs, DIMMs (-want +got):\n%s", diff)
	}
}
