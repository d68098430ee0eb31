package fleet_test

import (
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
