package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// hardwareTemplate is one hardware model of a profile.
type hardwareTemplate struct {
	Model      string          `yaml:"model"`
	SKU        string          `yaml:"sku"`
	PartNumber string          `yaml:"partNumber"`
	BIOS       []string        `yaml:"bios"`
	Firmware   []string        `yaml:"firmware"` // of the BMC
	CPU        cpuTemplate     `yaml:"cpu"`
	GPU        gpuTemplate     `yaml:"gpu"`
	Memory     memoryTemplate  `yaml:"memory"`
	Drives     []driveTemplate `yaml:"drives"`
	NICs       []nicTemplate   `yaml:"nics"`
	TPM        string          `yaml:"tpm"` // interface type; empty = none
	// NoUUID leaves the system without a UUID.
	NoUUID bool `yaml:"noUUID"`
}

type cpuTemplate struct {
	Count        int    `yaml:"count"`
	Manufacturer string `yaml:"manufacturer"`
	Model        string `yaml:"model"`
	Architecture string `yaml:"architecture"`
	Cores        int    `yaml:"cores"`
	Threads      int    `yaml:"threads"`
	SpeedMHz     int    `yaml:"speedMHz"`
}

type gpuTemplate struct {
	Count        int    `yaml:"count"`
	Manufacturer string `yaml:"manufacturer"`
	Model        string `yaml:"model"`
	PartNumber   string `yaml:"partNumber"`
	Firmware     string `yaml:"firmware"`
	MemoryMiB    int    `yaml:"memoryMiB"`
}

type memoryTemplate struct {
	Slots        int    `yaml:"slots"`
	Count        int    `yaml:"count"`
	SizeMiB      int    `yaml:"sizeMiB"`
	Type         string `yaml:"type"`
	SpeedMHz     int    `yaml:"speedMHz"`
	Manufacturer string `yaml:"manufacturer"`
	PartNumber   string `yaml:"partNumber"`
}

type driveTemplate struct {
	Count        int    `yaml:"count"`
	Type         string `yaml:"type"` // nvme, ssd or hdd
	SizeGB       int    `yaml:"sizeGB"`
	Manufacturer string `yaml:"manufacturer"`
	Model        string `yaml:"model"`
	Firmware     string `yaml:"firmware"`
}

type nicTemplate struct {
	Count        int    `yaml:"count"`
	Manufacturer string `yaml:"manufacturer"`
	Model        string `yaml:"model"`
	Firmware     string `yaml:"firmware"`
	SpeedMbps    int    `yaml:"speedMbps"`
	// Dark ports have no link and say so by a MAC of "Not Available".
	Dark bool `yaml:"dark"`
}

// part is a replaceable piece with a serial of its own.
type part struct {
	Index  int
	Serial string
}

// nic is one network port.
type nic struct {
	Index    int
	MAC      string
	Template *nicTemplate
}

// identity makes what identifies one system of one machine: a system without a
// seed of its own has the same parts after every restart.
type identity struct {
	rack    uint64
	ordinal int
	system  int
	oui     string
}

func (id identity) rand(what string, i int) *rand.Rand {
	return seeded("identity", id.rack, id.ordinal, id.system, what, i)
}

const serialLetters = "ABCDEFGHJKLMNPQRSTUVWXYZ0123456789"

// serial is n letters and digits in the style of a vendor's serial number.
func (id identity) serial(what string, i, n int) string {
	r := id.rand(what, i)
	var b strings.Builder
	for range n {
		b.WriteByte(serialLetters[r.IntN(len(serialLetters))])
	}
	return b.String()
}

// digits is a serial number of digits only.
func (id identity) digits(what string, i, n int) string {
	r := id.rand(what, i)
	var b strings.Builder
	b.WriteByte(byte('1' + r.IntN(9)))
	for range n - 1 {
		b.WriteByte(byte('0' + r.IntN(10)))
	}
	return b.String()
}

func (id identity) uuid(what string) string {
	r := id.rand(what, 0)
	a, b := r.Uint64(), r.Uint64()
	return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", uint32(a>>32), uint16(a>>16), a&0xfff,
		0x8000|uint16(b>>48)&0x3fff, b&0xffffffffffff)
}

// mac numbers the ports of all machines of a rack one after another.
func (id identity) mac(port int) string {
	n := id.ordinal*64 + id.system*16*64*1024 + port
	oui := id.oui
	return fmt.Sprintf("%s:%s:%s:%02x:%02x:%02x", oui[0:2], oui[2:4], oui[4:6],
		byte(n>>16), byte(n>>8), byte(n))
}

func (m *Machine) ident(system int) identity {
	return identity{rack: m.rack.opts.Seed, ordinal: m.ordinal, system: system, oui: m.vary.oui}
}

// nics lists the network ports of a system.
func (m *Machine) nics(system int) []nic {
	id := m.ident(system)
	var out []nic
	for t := range m.hw.NICs {
		for range m.hw.NICs[t].Count {
			i := len(out)
			out = append(out, nic{Index: i, MAC: id.mac(i), Template: &m.hw.NICs[t]})
		}
	}
	return out
}

func (m *Machine) parts(system int, what string, count, serialLen int) []part {
	id := m.ident(system)
	out := make([]part, count)
	for i := range out {
		out[i] = part{Index: i, Serial: id.digits(what, i, serialLen)}
	}
	return out
}

// newDisks makes the disks that a system is found with.
func (m *Machine) newDisks(system int, content string) []Disk {
	id := m.ident(system)
	var out []Disk
	for _, t := range m.hw.Drives {
		for range t.Count {
			out = append(out, Disk{
				Serial:    id.serial("drive", len(out), 14),
				SizeBytes: int64(t.SizeGB) * 1e9,
				Type:      t.Type, Model: t.Model,
				Content: content, Erased: eraseNone,
			})
		}
	}
	return out
}

// driveTemplateOf is the template of the i-th disk.
func (m *Machine) driveTemplateOf(i int) driveTemplate {
	for _, t := range m.hw.Drives {
		if i < t.Count {
			return t
		}
		i -= t.Count
	}
	return driveTemplate{}
}
