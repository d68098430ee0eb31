package ipmi_test

import (
	"testing"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/bmctest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	bmctest.Run(t, func(t *testing.T) bmctest.Bench {
		s := startSim(t)
		return bmctest.Bench{Open: openIPMI, Target: s.target(), Options: bmc.Options{Waits: waits()},
			Power: s.power, Boot: s.boot, Changes: func() int { return len(s.changes()) }}
	})
}
