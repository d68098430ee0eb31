package activities

import (
	"fmt"
	"slices"
	"strings"

	"github.com/bettercompute/compute/fleet"
)

// mergeInventories adds what a machine read of itself to what its BMC said:
// in-band lists win where they are not empty, since the kernel sees what it
// can use, and the BMC keeps what only it knows.
func mergeInventories(outOfBand, inBand fleet.Inventory) fleet.Inventory {
	m := outOfBand
	m.InBand = true
	pick(&m.CPUs, inBand.CPUs)
	pick(&m.DIMMs, inBand.DIMMs)
	pick(&m.Disks, withoutPlace(inBand.Disks, outOfBand.Disks))
	pick(&m.NICs, inBand.NICs)
	pick(&m.GPUs, inBand.GPUs)
	pick(&m.PCIDevices, inBand.PCIDevices)
	if inBand.MemoryMiB > 0 {
		m.MemoryMiB = inBand.MemoryMiB
	}
	if inBand.TPM != nil {
		m.TPM = inBand.TPM
	}
	if inBand.BMC != nil {
		m.BMC = inBand.BMC
	}
	m.Missing = slices.DeleteFunc(slices.Clone(outOfBand.Missing), func(s string) bool { return suppliedBy(inBand, s) })
	for _, s := range inBand.Missing {
		if slices.Contains(outOfBand.Missing, s) && !slices.Contains(m.Missing, s) {
			m.Missing = append(m.Missing, s)
		}
	}
	return m
}

func pick[T any](into *[]T, from []T) {
	if len(from) > 0 {
		*into = from
	}
}

// withoutPlace keeps slot and health, which only the BMC knows, on disks that
// both saw.
func withoutPlace(inBand, outOfBand []fleet.Disk) []fleet.Disk {
	out := slices.Clone(inBand)
	for i := range out {
		for _, d := range outOfBand {
			if d.Serial == "" || d.Serial != out[i].Serial {
				continue
			}
			if out[i].Slot == "" {
				out[i].Slot = d.Slot
			}
			if out[i].Health == "" {
				out[i].Health = d.Health
			}
		}
	}
	return out
}

// suppliedBy says whether the machine itself gave what the BMC did not.
func suppliedBy(inv fleet.Inventory, missing string) bool {
	for _, s := range []struct {
		word string
		has  bool
	}{{"disk", len(inv.Disks) > 0}, {"drive", len(inv.Disks) > 0}, {"gpu", len(inv.GPUs) > 0}, {"nic", len(inv.NICs) > 0},
		{"network", len(inv.NICs) > 0}, {"memory", inv.MemoryMiB > 0}, {"cpu", len(inv.CPUs) > 0}, {"processor", len(inv.CPUs) > 0},
		{"pci", len(inv.PCIDevices) > 0}} {
		if s.has && strings.Contains(strings.ToLower(missing), s.word) {
			return true
		}
	}
	return false
}

// describeInventory is a step's detail.
func describeInventory(inv fleet.Inventory) string {
	s := fmt.Sprintf("%d CPUs, %d GiB memory, %d disks, %d NICs, %d GPUs", len(inv.CPUs), inv.MemoryMiB/1024, len(inv.Disks), len(inv.NICs), len(inv.GPUs))
	if len(inv.Missing) > 0 {
		s += "; not given: " + strings.Join(inv.Missing, ", ")
	}
	return s
}

// Verdict is what commission finds of a machine's hardware.
type Verdict struct {
	// Fails says why the machine is not accepted; empty when it is.
	Fails *Reason
	// Conditions are what to record either way.
	Conditions []fleet.Condition
	// Notes are reports that do not fail it, such as firmware that differs.
	Notes []string
}

// judgeHardware compares an inventory with the machine's own health, its pool
// and its site's firmware baseline.
func judgeHardware(inv fleet.Inventory, pool *PoolWant, site fleet.SiteSpec, baseline string) Verdict {
	var v Verdict
	v.health(inv)
	v.pool(inv, pool, site.GPUModelNames)
	if baseline != "ignore" {
		v.Notes = append(v.Notes, firmwareNotes(inv, site.FirmwareBaseline[inv.Model])...)
	}
	return v
}

func (v *Verdict) fail(code, format string, args ...any) {
	if v.Fails == nil {
		r := NewReason(code, format, args...)
		v.Fails = &r
	}
}

func (v *Verdict) set(kind string, ok bool, reason, message string) {
	c := fleet.Condition{Type: kind, Status: fleet.ConditionTrue, Reason: reason, Message: message}
	if !ok {
		c.Status = fleet.ConditionFalse
	}
	v.Conditions = append(v.Conditions, c)
}

func (v *Verdict) health(inv fleet.Inventory) {
	switch strings.ToLower(inv.Health) {
	case "critical":
		bad := unhealthyParts(inv)
		v.set("HardwareHealthy", false, "Critical", "the BMC reports critical health"+bad)
		v.fail(CodeHealth, "the BMC reports critical health%s", bad)
	case "warning":
		v.set("HardwareHealthy", true, "Warning", "the BMC reports a warning"+unhealthyParts(inv))
		v.Notes = append(v.Notes, "health: warning"+unhealthyParts(inv))
	case "ok":
		v.set("HardwareHealthy", true, "OK", "")
	default:
		v.Notes = append(v.Notes, "health: not given by the BMC")
	}
}

func unhealthyParts(inv fleet.Inventory) string {
	var parts []string
	bad := func(health string) bool {
		return strings.EqualFold(health, "critical") || strings.EqualFold(health, "warning")
	}
	for _, d := range inv.Disks {
		if bad(d.Health) {
			parts = append(parts, "disk "+d.Serial)
		}
	}
	for _, g := range inv.GPUs {
		if bad(g.Health) {
			parts = append(parts, "GPU "+g.Serial)
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func (v *Verdict) pool(inv fleet.Inventory, pool *PoolWant, names map[string]string) {
	if pool == nil {
		return
	}
	same := 0
	var others []string
	for _, g := range inv.GPUs {
		if fleet.SameGPU(g.Model, pool.GPUModel, names) {
			same++
		} else {
			others = append(others, g.Model)
		}
	}
	var cause string
	switch {
	case len(others) > 0:
		slices.Sort(others)
		cause = fmt.Sprintf("the pool wants GPUs %q, the machine has %s (compared as %q and %q)", pool.GPUModel,
			quoted(slices.Compact(others)), fleet.CanonicalGPU(pool.GPUModel, names), fleet.CanonicalGPU(others[0], names))
	case pool.GPUsPerNode > 0 && same != pool.GPUsPerNode:
		cause = fmt.Sprintf("the pool wants %d GPUs a node, the machine shows %d", pool.GPUsPerNode, same)
	case pool.GPUsPerNode == 0 && same == 0:
		cause = fmt.Sprintf("the pool wants GPUs %q, the machine shows none", pool.GPUModel)
	}
	if cause == "" {
		v.set("InventoryMatches", true, "MatchesPool", "")
		return
	}
	v.set("InventoryMatches", false, "PoolMismatch", cause)
	v.fail(CodeMismatch, "%s", cause)
	v.Fails.Remedy = "put the node into a pool that fits (metal/update poolId), repair the machine, or, where the BMC does not show all GPUs, run metal/inspect with mode both; then retry"
}

func quoted(s []string) string {
	out := make([]string, len(s))
	for i := range s {
		out[i] = fmt.Sprintf("%q", s[i])
	}
	return strings.Join(out, ", ")
}

func firmwareNotes(inv fleet.Inventory, want map[string]string) []string {
	have := map[string]string{}
	for _, c := range inv.Firmware {
		have[strings.ToLower(c.Name)] = c.Version
	}
	if inv.BIOSVersion != "" {
		have["bios"] = inv.BIOSVersion
	}
	var notes []string
	for name, version := range want {
		got, ok := have[strings.ToLower(name)]
		switch {
		case !ok:
			notes = append(notes, fmt.Sprintf("firmware %s: %s in the baseline, not shown by the BMC", name, version))
		case got != version:
			notes = append(notes, fmt.Sprintf("firmware %s: %s, the baseline says %s", name, got, version))
		}
	}
	slices.Sort(notes)
	return notes
}
