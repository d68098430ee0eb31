package fleet

import (
	"slices"
	"strings"
)

// Hardware is who a machine says it is, read on the machine itself.
type Hardware struct {
	UUID   string   `json:"uuid,omitempty"`
	Serial string   `json:"serial,omitempty"`
	Vendor string   `json:"vendor,omitempty"`
	MACs   []string `json:"macs,omitempty"`
}

// uselessUUIDs are what boards carry whose maker set none.
var uselessUUIDs = []string{
	"03000200-0400-0500-0006-000700080009", // AMI's reference firmware
	"00020003-0004-0005-0006-000700080009",
	"12345678-1234-5678-90ab-cddeefaabbcc",
	"fefefefe-fefe-fefe-fefe-fefefefefefe",
}

// ProvingUUID brings a system UUID into lower case and says whether it proves
// anything: an empty one, all zero, all F or a maker's default does not.
func ProvingUUID(uuid string) (string, bool) {
	u := strings.ToLower(strings.TrimSpace(uuid))
	if !MatchPattern("uuid", u) || slices.Contains(uselessUUIDs, u) {
		return u, false
	}
	return u, strings.Trim(u, "0-") != "" && strings.Trim(u, "f-") != ""
}

// SwapUUID is the UUID with its first three groups in the other byte order:
// SMBIOS 2.6 stores them little-endian, and not every reader turns them.
func SwapUUID(uuid string) string {
	u := strings.ToLower(uuid)
	if !MatchPattern("uuid", u) {
		return u
	}
	turn := func(s string) string {
		var b strings.Builder
		for i := len(s); i > 0; i -= 2 {
			b.WriteString(s[i-2 : i])
		}
		return b.String()
	}
	return turn(u[0:8]) + "-" + turn(u[9:13]) + "-" + turn(u[14:18]) + u[18:]
}

// SameUUID says whether two UUIDs name one system, in either byte order.
func SameUUID(a, b string) bool {
	x, okX := ProvingUUID(a)
	y, okY := ProvingUUID(b)
	return okX && okY && (x == y || x == SwapUUID(y))
}

// Contradicts says whether a machine cannot be the recorded one: at least one
// of UUID, serial and MACs is known of both, and none of those agrees.
func (h Hardware) Contradicts(recorded Hardware) bool {
	compared := false
	if _, ok := ProvingUUID(recorded.UUID); ok {
		if _, ok := ProvingUUID(h.UUID); ok {
			compared = true
			if SameUUID(h.UUID, recorded.UUID) {
				return false
			}
		}
	}
	if h.Serial != "" && recorded.Serial != "" {
		compared = true
		if strings.EqualFold(h.Serial, recorded.Serial) {
			return false
		}
	}
	if len(h.MACs) > 0 && len(recorded.MACs) > 0 {
		compared = true
		if slices.ContainsFunc(h.MACs, func(m string) bool {
			return slices.ContainsFunc(recorded.MACs, func(r string) bool { return strings.EqualFold(m, r) })
		}) {
			return false
		}
	}
	return compared
}
