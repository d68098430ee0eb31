package fleet_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// TestSteps: what each verb does, step by step; ! marks a step that may lose what
// runs on the machine or lies on its disks.
func TestSteps(t *testing.T) {
	t.Parallel()
	const boot = " prepare-boot switch-on await-call-in "
	for _, c := range []struct {
		ask  fleet.StepsAsk
		want string
	}{
		{fleet.StepsAsk{Verb: fleet.VerbEnroll}, "identify"},
		{fleet.StepsAsk{Verb: fleet.VerbInspect}, "read-inventory"},
		{fleet.StepsAsk{Verb: fleet.VerbInspect, Identify: true}, "identify read-inventory"},
		{fleet.StepsAsk{Verb: fleet.VerbInspect, Mode: "inBand"}, "!switch-off" + boot + "read-inventory-in-band finish !stay-off clear-boot"},
		{fleet.StepsAsk{Verb: fleet.VerbInspect, Mode: "both"}, "read-inventory !switch-off" + boot + "read-inventory-in-band finish !stay-off clear-boot"},
		{fleet.StepsAsk{Verb: fleet.VerbCommission}, "!switch-off prove-boot-override switch-on check-hardware !stay-off clear-boot"},
		{fleet.StepsAsk{Verb: fleet.VerbCommission, Tests: true}, "!switch-off prove-boot-override" + boot + "run-tests finish check-hardware !stay-off clear-boot"},
		{fleet.StepsAsk{Verb: fleet.VerbDeploy}, "check-plan revoke-identity !switch-off" + boot + "!write-image write-config-drive finish !boot-disk confirm"},
		{fleet.StepsAsk{Verb: fleet.VerbDeploy, ISO: true}, "check-plan revoke-identity !switch-off prepare-boot switch-on confirm"},
		{fleet.StepsAsk{Verb: fleet.VerbRescue}, "!switch-off" + boot + "start-rescue clear-boot"},
		{fleet.StepsAsk{Verb: fleet.VerbUnrescue}, "!boot-disk"},
		{fleet.StepsAsk{Verb: fleet.VerbRelease}, "revoke-identity !switch-off clear-boot check-released"},
		{fleet.StepsAsk{Verb: fleet.VerbRelease, Erase: fleet.EraseNone}, "revoke-identity !switch-off clear-boot check-released"},
		{fleet.StepsAsk{Verb: fleet.VerbRelease, Erase: fleet.EraseMetadata, Rotate: true},
			"revoke-identity !switch-off !erase-by-bmc" + boot + "!erase-in-band finish !stay-off clear-boot rotate-credentials check-released"},
		// A machine that may be in use keeps its power, unless it is erased or released.
		{fleet.StepsAsk{Verb: fleet.VerbRetire, LeavePower: true}, "revoke-identity check-released"},
		{fleet.StepsAsk{Verb: fleet.VerbRetire, LeavePower: true, Erase: fleet.EraseFull},
			"revoke-identity !switch-off !erase-by-bmc" + boot + "!erase-in-band finish !stay-off clear-boot check-released"},
		{fleet.StepsAsk{Verb: fleet.VerbRelease, LeavePower: true}, "revoke-identity !switch-off clear-boot check-released"},
		{fleet.StepsAsk{Verb: fleet.VerbRetire}, "revoke-identity !switch-off clear-boot check-released"},
		{fleet.StepsAsk{Verb: fleet.VerbAdopt}, "await-session accept-host"},
		{fleet.StepsAsk{Verb: fleet.VerbManage}, "prove-bmc"},
		{fleet.StepsAsk{Verb: fleet.VerbPower}, "!power"},
		{fleet.StepsAsk{Verb: fleet.VerbSetCredentials}, "prove-credentials"},
		{fleet.StepsAsk{Verb: fleet.VerbSetCredentials, Rotate: true}, "rotate-credentials"},
		{fleet.StepsAsk{Verb: fleet.VerbDrain}, "await-allocations"},
		// What was left behind is cleaned first, by all that speak to the BMC.
		{fleet.StepsAsk{Verb: fleet.VerbPower, LeftBehind: true}, "clear-left-behind !power"},
		{fleet.StepsAsk{Verb: fleet.VerbDrain, LeftBehind: true}, "await-allocations"},
	} {
		var got []string
		for _, s := range fleet.StepsOf(c.ask) {
			if s.Destructive {
				s.Name = "!" + s.Name
			}
			got = append(got, s.Name)
		}
		if want := strings.Fields(c.want); !slices.Equal(got, want) {
			t.Errorf("%+v:\n got %v\nwant %v", c.ask, got, want)
		}
	}
}

// TestWaits: a model's setting wins over the site's, which wins over the default,
// and a scale divides them all.
func TestWaits(t *testing.T) {
	t.Parallel()
	n := func(v int) *int { return &v }
	if got := fleet.WaitsFor(fleet.SiteSpec{}, "X1", 1); got != fleet.DefaultWaits {
		t.Errorf("without settings: %+v", got)
	}
	site := fleet.SiteSpec{GracefulSeconds: n(0), Timeouts: &fleet.TimeoutsSpec{
		WaitsSpec: fleet.WaitsSpec{PowerChange: n(60), CallIn: n(600), Image: n(1200), BMCAway: n(90)},
		Models:    map[string]fleet.WaitsSpec{"X1": {CallIn: n(3600)}},
	}}
	want := fleet.DefaultWaits
	want.PowerChange, want.CallIn, want.Image, want.BMCAway, want.Graceful = time.Minute, 10*time.Minute, 20*time.Minute, 90*time.Second, 0
	if got := fleet.WaitsFor(site, "X2", 0); got != want {
		t.Errorf("of the site: %+v", got)
	}
	want.CallIn = time.Hour
	if got := fleet.WaitsFor(site, "X1", 1); got != want {
		t.Errorf("of the model: %+v", got)
	}
	w := fleet.WaitsFor(fleet.SiteSpec{}, "", 60)
	d := fleet.DefaultWaits
	for i, pair := range [][2]time.Duration{{w.PowerChange, d.PowerChange}, {w.CallIn, d.CallIn}, {w.Image, d.Image}, {w.ImageStall, d.ImageStall},
		{w.BMCAway, d.BMCAway}, {w.Graceful, d.Graceful}, {w.SoftOff, d.SoftOff}, {w.Report, d.Report}, {w.Session, d.Session}} {
		if pair[0] != pair[1]/60 {
			t.Errorf("scaled, wait %d is %s of %s", i, pair[0], pair[1])
		}
	}
}
