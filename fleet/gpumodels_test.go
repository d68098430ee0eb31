package fleet_test

import (
	"strings"
	"testing"

	"github.com/bettercompute/compute/fleet"
)

func TestSameGPU(t *testing.T) {
	t.Parallel()
	site := map[string]string{"Contoso Accelerator Rev.B": "H100 SXM5"}
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"NVIDIA H100 80GB HBM3", "H100 SXM5", true},
		{"nvidia h100-sxm5-80gb", "H100 80GB HBM3", true},
		{"NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", false},
		{"NVIDIA A100-SXM4-80GB", "A100-SXM4-40GB", false},
		{"NVIDIA A100 80GB PCIe", "A100-PCIE-80GB", true},
		{"AMD Instinct MI300X", "MI300X OAM", false},
		{"AMD Instinct MI300X OAM", "MI300X", true},
		{"contoso accelerator rev b", "NVIDIA H100 80GB HBM3", true},
		{"Model nobody knows", "model-nobody-knows", true},
		{"Model nobody knows", "another", false},
		{"", "", false},
		{"---", "", false},
	} {
		if got := fleet.SameGPU(c.a, c.b, site); got != c.want {
			t.Errorf("SameGPU(%q, %q) = %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

func TestGPUMismatch(t *testing.T) {
	t.Parallel()
	h100 := fleet.Device{Model: "NVIDIA H100 80GB HBM3"}
	a100 := fleet.Device{Model: "NVIDIA A100-SXM4-80GB"}
	for name, c := range map[string]struct {
		gpus    []fleet.Device
		perNode int
		want    []string
	}{
		"fits":        {[]fleet.Device{h100, h100}, 2, nil},
		"any number":  {[]fleet.Device{h100}, 0, nil},
		"none":        {nil, 0, []string{"no GPU", "H100 SXM5"}},
		"too few":     {[]fleet.Device{h100}, 2, []string{"1 GPUs", "wants 2"}},
		"other model": {[]fleet.Device{h100, a100}, 2, []string{"NVIDIA A100-SXM4-80GB", "H100 SXM5"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := fleet.GPUMismatch(fleet.Inventory{GPUs: c.gpus}, "H100 SXM5", c.perNode, nil)
			if (got == "") != (c.want == nil) {
				t.Fatalf("got %q", got)
			}
			for _, w := range c.want {
				if !strings.Contains(got, w) {
					t.Errorf("%q does not say %q", got, w)
				}
			}
		})
	}
}
