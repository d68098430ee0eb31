package fleet_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
)

// A site's waiting times count in place of the defaults, and a hardware model's
// in place of the site's; each says one wait and leaves the others alone.
func TestWaitsFor(t *testing.T) {
	t.Parallel()
	// The members of both have the same names.
	for _, f := range reflect.VisibleFields(reflect.TypeFor[fleet.WaitsSpec]()) {
		name := f.Name
		spec := func(seconds int) fleet.WaitsSpec {
			var w fleet.WaitsSpec
			reflect.ValueOf(&w).Elem().FieldByName(name).Set(reflect.ValueOf(&seconds))
			return w
		}
		site := fleet.SiteSpec{Timeouts: &fleet.TimeoutsSpec{WaitsSpec: spec(70), Models: map[string]fleet.WaitsSpec{"slow": spec(700)}}}
		for model, want := range map[string]time.Duration{"": 70 * time.Second, "other": 70 * time.Second, "slow": 700 * time.Second} {
			waits := fleet.DefaultWaits
			reflect.ValueOf(&waits).Elem().FieldByName(name).SetInt(int64(want))
			if diff := cmp.Diff(waits, fleet.WaitsFor(site, model, 1)); diff != "" {
				t.Errorf("%s, model %q (-want +got):\n%s", name, model, diff)
			}
		}
	}
	graceful := 0
	waits := fleet.WaitsFor(fleet.SiteSpec{GracefulSeconds: &graceful}, "", 1)
	if waits.Graceful != 0 || waits.SoftOff != fleet.DefaultWaits.SoftOff {
		t.Errorf("without a graceful time: %+v", waits)
	}
	// A simulated rack's factor divides all of them.
	scaled := reflect.ValueOf(fleet.WaitsFor(fleet.SiteSpec{}, "", 10))
	for _, f := range reflect.VisibleFields(scaled.Type()) {
		if got, whole := scaled.FieldByIndex(f.Index).Int(), reflect.ValueOf(fleet.DefaultWaits).FieldByIndex(f.Index).Int(); got != whole/10 {
			t.Errorf("%s is %s at a tenth of %s", f.Name, time.Duration(got), time.Duration(whole))
		}
	}
}
