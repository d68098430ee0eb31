package fleet

import (
	"fmt"
	"strings"
)

// gpuModels maps each canonical GPU name to the spellings that drivers, BMCs
// and price lists use for it. Sources: the product names nvidia-smi and
// rocm-smi print, the Model members of recorded Redfish trees, and the
// vendors' data sheets. Spellings are compared in the form normalGPU gives.
var gpuModels = map[string][]string{
	"NVIDIA B200 SXM6 180GB":         {"B200", "B200 SXM", "B200 SXM6", "HGX B200", "B200 180GB HBM3e"},
	"NVIDIA GB200 186GB":             {"GB200", "GB200 186GB HBM3e", "GB200 NVL72"},
	"NVIDIA H200 SXM5 141GB":         {"H200", "H200 SXM", "H200 SXM5", "H200 141GB HBM3e", "HGX H200", "H200 SXM 141GB"},
	"NVIDIA H200 NVL 141GB":          {"H200 NVL"},
	"NVIDIA GH200 96GB":              {"GH200 480GB", "GH200", "GH200 96GB HBM3"},
	"NVIDIA H100 SXM5 80GB":          {"H100 80GB HBM3", "H100 SXM5", "H100 SXM", "H100 SXM 80GB", "H100 SXM5 80GB HBM3", "HGX H100", "H100 SXM5 80GB HBM3 GPU"},
	"NVIDIA H100 PCIe 80GB":          {"H100 PCIe", "H100 80GB PCIe", "H100 80GB HBM2e"},
	"NVIDIA H100 NVL 94GB":           {"H100 NVL"},
	"NVIDIA H800 SXM5 80GB":          {"H800", "H800 SXM5", "H800 SXM"},
	"NVIDIA H20 96GB":                {"H20", "H20 SXM5", "H20 96GB HBM3"},
	"NVIDIA A100 SXM4 80GB":          {"A100 SXM4 80GB", "A100 SXM 80GB", "A100 80GB SXM4", "HGX A100 80GB"},
	"NVIDIA A100 SXM4 40GB":          {"A100 SXM4 40GB", "A100 SXM 40GB", "A100 40GB SXM4", "HGX A100 40GB"},
	"NVIDIA A100 PCIe 80GB":          {"A100 80GB PCIe", "A100 PCIe 80GB"},
	"NVIDIA A100 PCIe 40GB":          {"A100 PCIe 40GB", "A100 40GB PCIe"},
	"NVIDIA A30 24GB":                {"A30"},
	"NVIDIA A40 48GB":                {"A40"},
	"NVIDIA A10 24GB":                {"A10"},
	"NVIDIA A16 64GB":                {"A16"},
	"NVIDIA A2 16GB":                 {"A2"},
	"NVIDIA L40S 48GB":               {"L40S"},
	"NVIDIA L40 48GB":                {"L40"},
	"NVIDIA L4 24GB":                 {"L4"},
	"NVIDIA T4 16GB":                 {"T4", "Tesla T4"},
	"NVIDIA V100 SXM2 32GB":          {"V100 SXM2 32GB", "V100 SXM3 32GB"},
	"NVIDIA V100 SXM2 16GB":          {"V100 SXM2 16GB"},
	"NVIDIA V100 PCIe 32GB":          {"V100 PCIe 32GB"},
	"NVIDIA V100 PCIe 16GB":          {"V100 PCIe 16GB"},
	"NVIDIA RTX 6000 Ada 48GB":       {"RTX 6000 Ada Generation", "RTX 6000 Ada"},
	"NVIDIA RTX A6000 48GB":          {"RTX A6000", "A6000"},
	"NVIDIA RTX PRO 6000 96GB":       {"RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"},
	"AMD Instinct MI355X 288GB":      {"MI355X", "Instinct MI355X", "Instinct MI355X OAM"},
	"AMD Instinct MI325X 256GB":      {"MI325X", "Instinct MI325X", "Instinct MI325X OAM"},
	"AMD Instinct MI300X 192GB":      {"MI300X", "Instinct MI300X", "Instinct MI300X OAM"},
	"AMD Instinct MI300A 128GB":      {"MI300A", "Instinct MI300A"},
	"AMD Instinct MI250X 128GB":      {"MI250X", "Instinct MI250X", "Instinct MI250X OAM"},
	"AMD Instinct MI210 64GB":        {"MI210", "Instinct MI210"},
	"Intel Gaudi 3 128GB":            {"Gaudi 3", "Gaudi3", "HL-325L"},
	"Intel Gaudi 2 96GB":             {"Gaudi 2", "Gaudi2", "HL-225H"},
	"Intel Data Center GPU Max 1550": {"Max 1550", "GPU Max 1550"},
}

// canonicalGPU maps each normalised spelling to its canonical name.
var canonicalGPU = func() map[string]string {
	m := map[string]string{}
	for canonical, seen := range gpuModels {
		m[normalGPU(canonical)] = canonical
		for _, s := range seen {
			m[normalGPU(s)] = canonical
		}
	}
	return m
}()

// normalGPU folds case, spacing, punctuation and the makers' names away, which
// is where spellings of one model differ most.
func normalGPU(s string) string {
	s = strings.ToLower(s)
	words := strings.FieldsFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || '0' <= r && r <= '9')
	})
	kept := words[:0]
	for _, w := range words {
		switch w {
		case "nvidia", "amd", "intel", "tesla", "corporation", "inc", "tm", "r":
		default:
			kept = append(kept, w)
		}
	}
	return strings.Join(kept, " ")
}

// CanonicalGPU returns the canonical name of a GPU model as seen. A site's own
// names (seen to canonical, SiteSpec.GPUModelNames) come first. A model that
// no table knows is its own canonical name.
func CanonicalGPU(seen string, site map[string]string) string {
	n := normalGPU(seen)
	for s, canonical := range site {
		if normalGPU(s) == n {
			n = normalGPU(canonical)
			break
		}
	}
	if canonical, ok := canonicalGPU[n]; ok {
		return canonical
	}
	return n
}

// SameGPU says whether two spellings name one GPU model. A spelling without
// letters or digits names none.
func SameGPU(a, b string, site map[string]string) bool {
	ca := CanonicalGPU(a, site)
	return ca != "" && ca == CanonicalGPU(b, site)
}

// GPUMismatch says in plain words, with both spellings, how a machine's GPUs
// differ from what a pool wants, and "" when they fit. perNode 0 asks for any
// number of them but none.
func GPUMismatch(inv Inventory, model string, perNode int, site map[string]string) string {
	for _, g := range inv.GPUs {
		if !SameGPU(g.Model, model, site) {
			return fmt.Sprintf("the machine has a GPU %q (%s) and the pool wants %q (%s); where they are one model, say so in the site's gpuModelNames",
				g.Model, CanonicalGPU(g.Model, site), model, CanonicalGPU(model, site))
		}
	}
	switch n := len(inv.GPUs); {
	case n == 0:
		return fmt.Sprintf("the machine's inventory has no GPU and the pool wants %q", model)
	case perNode != 0 && n != perNode:
		return fmt.Sprintf("the machine has %d GPUs %q and the pool wants %d", n, inv.GPUs[0].Model, perNode)
	}
	return ""
}
