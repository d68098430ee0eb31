package agent_test

import (
	"strings"
	"testing"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/fleet"
)

const gib = int64(1) << 30

func TestChooseRootDevice(t *testing.T) {
	t.Parallel()
	disks := []fleet.Disk{
		{Serial: "B", SizeBytes: 100 * gib, Type: "ssd"}, {Serial: "A", SizeBytes: 100 * gib, Type: "ssd"},
		{Serial: "N", SizeBytes: 3000 * gib, Type: "nvme"}, {Serial: "M", SizeBytes: 3000 * gib, Type: "nvme"},
		{Serial: "SMALL", SizeBytes: 4 * gib, Type: "ssd"}, {Serial: "STICK", SizeBytes: 16 * gib, Removable: true},
		{Serial: "DEAD"},
	}
	for name, c := range map[string]struct {
		disks []fleet.Disk
		need  int64
		hint  *agent.RootDevice
		want  string
		fails []string // words of the error
	}{
		"smallest with 8 GiB, then lowest serial": {disks, gib, nil, "A", nil},
		"an empty hint is none":                   {disks, gib, &agent.RootDevice{}, "A", nil},
		"one that holds the image":                {disks, 200 * gib, nil, "M", nil},
		"exactly as large":                        {disks, 3000 * gib, nil, "M", nil},
		"none holds it":                           {disks, 3000*gib + 1, nil, "", []string{"A (ssd, 100.0 GiB)", "SMALL"}},
		"no disk at all":                          {nil, gib, nil, "", []string{"no fixed disk"}},
		"only a stick and a dead one":             {disks[5:], gib, nil, "", []string{"no fixed disk"}},
		"by serial":                               {disks, gib, &agent.RootDevice{Serial: "N"}, "N", nil},
		"by serial below 8 GiB":                   {disks, gib, &agent.RootDevice{Serial: "SMALL"}, "SMALL", nil},
		"by serial, too small":                    {disks, 5 * gib, &agent.RootDevice{Serial: "SMALL"}, "", []string{"too small", "SMALL"}},
		"a removable one by serial":               {disks, gib, &agent.RootDevice{Serial: "STICK"}, "", []string{"no disk fits", "serial STICK"}},
		"a type that several have":                {disks, gib, &agent.RootDevice{Type: "nvme"}, "", []string{"2 disks fit", "M (nvme", "N (nvme"}},
		"a type that none has":                    {disks, gib, &agent.RootDevice{Type: "hdd"}, "", []string{"no disk fits", "type hdd", "A (ssd"}},
		"type and serial":                         {disks, gib, &agent.RootDevice{Type: "nvme", Serial: "M"}, "M", nil},
		"size that one has":                       {disks[:3], gib, &agent.RootDevice{MinSizeGiB: 101}, "N", nil},
	} {
		got, err := agent.ChooseRootDevice(c.disks, c.need, c.hint)
		if got.Serial != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v; want %q", name, got.Serial, err, c.want)
		}
		for _, word := range c.fails {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: error %v does not say %q", name, err, word)
			}
		}
	}
}
