package linux

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/bettercompute/compute/fleet"
)

// memory is the size of all modules, else what the kernel has to give out.
func (r *reader) memory(dimms []fleet.DIMM) int64 {
	var sum int64
	for _, d := range dimms {
		sum += d.SizeMiB
	}
	if sum > 0 {
		return sum
	}
	for line := range strings.Lines(r.text("proc/meminfo")) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err == nil {
				r.miss("memory modules: only the memory that the kernel can give out is known")
				return kib / 1024
			}
		}
	}
	r.miss("memory: neither modules nor proc/meminfo can be read")
	return 0
}

// The places in an SMBIOS memory device (type 17; DMTF DSP0134, 7.18).
const (
	dimmSize     = 0x0c
	dimmLocator  = 0x10
	dimmType     = 0x12
	dimmSerial   = 0x18
	dimmPart     = 0x1a
	dimmExtended = 0x1c
	// sizeExtended in the size says that the extended size holds it.
	sizeExtended = 0x7fff
	// sizeKiB marks a size in KiB instead of MiB.
	sizeKiB = 0x8000
)

// memoryTypes are the SMBIOS codes of what servers have.
var memoryTypes = map[byte]string{0x18: "DDR3", 0x1a: "DDR4", 0x20: "HBM", 0x21: "HBM2", 0x22: "DDR5", 0x23: "LPDDR5", 0x24: "HBM3"}

// dimms are the memory modules that the firmware tells of.
func (r *reader) dimms() []fleet.DIMM {
	files, _ := filepath.Glob(filepath.Join(r.root, "sys/firmware/dmi/entries/17-*/raw")) // the pattern is well-formed
	var out []fleet.DIMM
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			r.miss("memory modules: the firmware's tables cannot be read")
			return nil
		}
		if d, ok := dimm(b); ok {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b fleet.DIMM) int { return strings.Compare(a.Slot, b.Slot) })
	return out
}

// dimm reads a memory device; false for an empty slot or what is none.
func dimm(b []byte) (fleet.DIMM, bool) {
	if len(b) < 0x15 || b[0] != 17 || int(b[1]) > len(b) {
		return fleet.DIMM{}, false
	}
	formatted, words := b[:b[1]], smbiosStrings(b[b[1]:])
	size := int64(0)
	switch v := binary.LittleEndian.Uint16(formatted[dimmSize:]); {
	case v == 0 || v == 0xffff:
		return fleet.DIMM{}, false
	case v == sizeExtended && len(formatted) >= dimmExtended+4:
		size = int64(binary.LittleEndian.Uint32(formatted[dimmExtended:]) &^ (1 << 31))
	case v&sizeKiB != 0:
		size = int64(v&^sizeKiB) / 1024
	default:
		size = int64(v)
	}
	word := func(at int) string {
		if at >= len(formatted) || formatted[at] == 0 || int(formatted[at]) > len(words) {
			return ""
		}
		return words[formatted[at]-1]
	}
	return fleet.DIMM{Slot: word(dimmLocator), SizeMiB: size, Type: memoryTypes[formatted[dimmType]], Serial: word(dimmSerial), Part: word(dimmPart)}, true
}

// smbiosStrings are the zero-ended strings behind a structure.
func smbiosStrings(b []byte) []string {
	var out []string
	for s := range strings.SplitSeq(string(b), "\x00") {
		if s == "" {
			break
		}
		out = append(out, strings.TrimSpace(s))
	}
	return out
}
