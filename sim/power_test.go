package sim_test

import (
	"testing"
	"time"

	"github.com/bettercompute/compute/sim"
)

// TestReset walks a machine with an installed system through one reset: what its
// power is while the reset settles, and afterwards.
func TestReset(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		found  string
		kind   string
		ignore bool
		during string // before the settle time is over
		after  string // a minute later
		boots  int    // within five more minutes
	}{
		"on":                     {"Off", "On", false, "Off", "On", 1},
		"on when on":             {"On", "On", false, "On", "On", 0},
		"force off":              {"On", "ForceOff", false, "On", "Off", 0},
		"force off when off":     {"Off", "ForceOff", false, "Off", "Off", 0},
		"graceful":               {"On", "GracefulShutdown", false, "On", "Off", 0},
		"graceful ignored":       {"On", "GracefulShutdown", true, "On", "On", 0},
		"graceful when off":      {"Off", "GracefulShutdown", false, "Off", "Off", 0},
		"restart":                {"On", "ForceRestart", false, "On", "On", 1},
		"restart when off":       {"Off", "ForceRestart", false, "Off", "Off", 0},
		"graceful restart":       {"On", "GracefulRestart", false, "On", "On", 1},
		"cycle":                  {"On", "PowerCycle", false, "On", "On", 1},
		"cycle when off":         {"Off", "PowerCycle", false, "Off", "Off", 0},
		"force on":               {"Off", "ForceOn", false, "Off", "On", 1},
		"button when off":        {"Off", "PushPowerButton", false, "Off", "On", 1},
		"button when on":         {"On", "PushPowerButton", false, "On", "Off", 0},
		"nmi changes no power":   {"On", "Nmi", false, "On", "On", 0},
		"button ignored when on": {"On", "PushPowerButton", true, "On", "On", 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := plain()
			spec.Power, spec.DiskContent = tt.found, sim.ContentData
			spec.ResetTypes = []string{tt.kind}
			if tt.ignore {
				spec.GracefulShutdown = "ignore"
			}
			b := newBMC(t, spec)
			if r := b.reset(tt.kind); r.status >= 300 {
				t.Fatalf("reset: %d %s", r.status, r.raw)
			}
			b.r.Advance(10 * time.Second)
			if got := b.power(); got != tt.during {
				t.Errorf("during: got %s, want %s", got, tt.during)
			}
			b.r.Advance(time.Minute)
			if got := b.power(); got != tt.after {
				t.Errorf("after: got %s, want %s", got, tt.after)
			}
			b.r.Advance(5 * time.Minute)
			if got := len(b.m.BootLog()); got != tt.boots {
				t.Errorf("boots: got %d, want %d", got, tt.boots)
			}
		})
	}
}

func TestPowerCycleIsSeenOff(t *testing.T) {
	t.Parallel()
	spec := plain()
	spec.Power = "On"
	b := newBMC(t, spec)
	b.reset("PowerCycle")
	b.r.Advance(30 * time.Second)
	if got := b.power(); got != "Off" {
		t.Errorf("in the middle: got %s, want Off", got)
	}
	b.r.Advance(20 * time.Second)
	if got := b.power(); got != "On" {
		t.Errorf("at the end: got %s, want On", got)
	}
}

func TestForceOffEndsPowerOn(t *testing.T) {
	t.Parallel()
	b := newBMC(t, plain())
	b.reset("On")
	b.r.Advance(5 * time.Second)
	b.reset("ForceOff")
	b.r.Advance(10 * time.Minute)
	if got := b.power(); got != "Off" || len(b.m.BootLog()) != 0 {
		t.Errorf("got %s and %d boots, want Off and none", got, len(b.m.BootLog()))
	}
}

func TestGracefulShutdownInPostIsIgnored(t *testing.T) {
	t.Parallel()
	b := newBMC(t, plain())
	b.reset("On")
	b.r.Advance(30 * time.Second)
	b.reset("GracefulShutdown")
	b.r.Advance(10 * time.Minute)
	if got := b.power(); got != "On" {
		t.Errorf("got %s, want On", got)
	}
}

func TestResetTypeOutsideTheListIsRefused(t *testing.T) {
	t.Parallel()
	spec := plain()
	spec.ResetTypes = []string{"On", "ForceOff"}
	b := newBMC(t, spec)
	for _, body := range []map[string]any{{"ResetType": "PowerCycle"}, {"ResetType": 1}, {}, {"ResetType": "On", "Force": true}} {
		r := b.call("POST", resetPath, body)
		if r.status != 400 || messageID(r) == "" {
			t.Errorf("%v: got %d %s", body, r.status, r.raw)
		}
	}
	b.r.Advance(time.Hour)
	if got := b.power(); got != "Off" {
		t.Errorf("power: got %s, want Off", got)
	}
}

func TestRestartByItself(t *testing.T) {
	t.Parallel()
	spec := plain()
	spec.Power, spec.DiskContent = "On", sim.ContentData
	b := newBMC(t, spec)
	if !b.m.Restart() {
		t.Error("the machine is on")
	}
	b.r.Advance(5 * time.Minute)
	log := b.m.BootLog()
	if len(log) != 1 || log[0].Cause != "self" || len(b.m.Counts().Resets) != 0 {
		t.Errorf("boot log %+v, resets %v", log, b.m.Counts().Resets)
	}
}
