// Package agent is the machine's side of the control plane: it calls in from
// our boot image with a one-time token, runs the commands it is given, each at
// most once, and tells how far it has come. What a command does to the machine
// is a Host's, so that the simulator's machines run the same agent.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// Config is what an agent needs to begin. Either Boot or BootConfigURL is set.
type Config struct {
	// BootConfigURL is where the plain listener serves this power-on's config.
	BootConfigURL string
	Boot          *BootConfig
	// HTTP fetches the boot config and asks for the size of images; nil is a
	// client of its own.
	HTTP *http.Client
	// Log gets what happens, without secrets; nil is slog's default.
	Log *slog.Logger
	// Heartbeat is how often a running command is told of at least, and
	// ProgressEvery how often at most; 0 is 10 s and 2 s.
	Heartbeat, ProgressEvery time.Duration
	// RetryPause is the first pause after a failed request; it doubles up to 30
	// times. 0 is 1 s.
	RetryPause time.Duration
}

// BootConfig is what differs from one power-on to the next.
type BootConfig struct {
	BootID        string `json:"bootId"`
	GatewayURL    string `json:"gatewayUrl"`
	CAFingerprint string `json:"caFingerprint"`
	// Token is good for one power-on.
	Token string `json:"token"`
}

// The ways a run ends other than well.
var (
	// ErrTokenUsed says that the machine restarted by itself: its token was used
	// before, and it gets nothing until it is power-cycled with a new one.
	ErrTokenUsed = errors.New("the boot token was used before")
	// ErrBootEnded says that the control plane is done with this power-on.
	ErrBootEnded = errors.New("the boot has ended")
	// ErrRefused says that the gateway will not let this machine in.
	ErrRefused = errors.New("the gateway refused the machine")
)

// Run calls in and runs commands until the control plane says finish (nil), the
// boot ends (ErrBootEnded), or the context does. A command that fails is told
// and leaves the agent up for the next.
func Run(ctx context.Context, cfg Config, host Host) error {
	cfg.defaults()
	boot := cfg.Boot
	if boot == nil {
		var err error
		if boot, err = fetchBootConfig(ctx, cfg); err != nil {
			return err
		}
	}
	hw, err := host.Hardware(ctx)
	if err != nil {
		// A machine that cannot tell who it is may still call in: the token is
		// what lets it.
		cfg.Log.Warn("hardware identity is incomplete", "error", err)
	}
	c, err := newClient(cfg, *boot)
	if err != nil {
		return err
	}
	if err := c.callIn(ctx, *boot, hw); err != nil {
		return err
	}
	cfg.Log.Info("called in", "gateway", boot.GatewayURL, "node", c.nodeID, "operation", c.operationID)
	r := &runner{cfg: cfg, client: c, host: host, log: cfg.Log}
	return r.loop(ctx)
}

func (c *Config) defaults() {
	if c.HTTP == nil {
		c.HTTP = &http.Client{Timeout: time.Minute}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	for _, d := range []struct {
		d *time.Duration
		v time.Duration
	}{{&c.Heartbeat, 10 * time.Second}, {&c.ProgressEvery, 2 * time.Second}, {&c.RetryPause, time.Second}} {
		if *d.d == 0 {
			*d.d = d.v
		}
	}
}

// Progress tells how far a command has come; percent is -1 when not known.
type Progress func(percent int, detail string)

// Host is the machine that an agent acts on. Every method stops soon when its
// context ends, and says in its error what failed on what, without secrets.
type Host interface {
	// Hardware is who the machine is; what was read comes with an error too.
	Hardware(ctx context.Context) (fleet.Hardware, error)
	// Inventory reads the hardware; what could not be read is in Missing.
	Inventory(ctx context.Context) (fleet.Inventory, error)
	// Test runs one test: memory, disk, cpu, nic or clock. An error is a test
	// that could not run.
	Test(ctx context.Context, name string, progress Progress) (TestResult, error)
	// WriteImage streams the image to a disk that ChooseRootDevice chose, and
	// returns only when all of it was verified and is on the disk.
	WriteImage(ctx context.Context, disk fleet.Disk, image WriteImage, progress Progress) (Written, error)
	// ConfigDrive puts the cloud-init documents on a disk beside its image.
	ConfigDrive(ctx context.Context, disk fleet.Disk, docs ConfigDrive) error
	// Erase erases one disk by the method metadata or full, and proves it by
	// reading. A disk that does not answer is an error that wraps ErrNoAnswer.
	Erase(ctx context.Context, serial, method string, progress Progress) error
	// Rescue lets these keys in, in place of those let in before.
	Rescue(ctx context.Context, sshKeys []string) error
	// Finish brings all that was written to the disks: the power goes next.
	Finish(ctx context.Context) error
}

// ErrNoAnswer is wrapped by an error about a disk that is not there or does not
// answer.
var ErrNoAnswer = errors.New("the disk does not answer")

// ErrUnsupported is wrapped by an error about something that this host cannot
// do.
var ErrUnsupported = errors.New("not supported by this boot image")

// unsupported makes an ErrUnsupported.
func unsupported(what string) error { return fmt.Errorf("%s: %w", what, ErrUnsupported) }
