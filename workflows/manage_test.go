package workflows_test

import (
	"testing"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// A BMC that proves to be the host's is recorded, and nothing is changed on it;
// one that does not fails the operation, which is not parked.
func TestManage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		uuid string
		code string
	}{
		"the host's BMC": {uuid: machineUUID},
		"another's":      {uuid: "4c4c4544-0051-3910-8053-b4c04f4e3935", code: activities.CodeNoProof},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, fleet.VerbManage, fleet.MetalManageIn{})
			b.joined = fleet.Hardware{UUID: c.uuid}
			_, err := b.run(t)
			if (err == nil) != (c.code == "") || (len(b.identity) == 1) != (c.code == "") {
				t.Errorf("%v, recorded %v, failure %+v", err, b.identity, b.failure)
			}
			if c.code != "" && (b.failure.Code != c.code || b.failure.Park || b.failure.Remedy == "") {
				t.Errorf("failure %+v", b.failure)
			}
			b.clean(t)
			if len(b.resets) != 0 || b.media != "" || b.override != (bmc.BootOverride{}) {
				t.Errorf("the BMC was changed: resets %v", b.resets)
			}
		})
	}
}
