package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/bettercompute/compute/fleet"
)

// SendToNode queues a command for the agent of the operation's node.
func (a *Record) SendToNode(ctx context.Context, in SendIn) (string, error) {
	id, err := a.Machines.SendNodeCommand(ctx, in.OperationID, CommandIn{Key: in.Key, Type: in.Type, Args: struct{}{}, Expires: commandLife})
	return id, toTemporal(err)
}

// JudgeHost judges what a host's agent found, records a condition for each check
// and refuses a host that does not pass all of them.
func (a *Record) JudgeHost(ctx context.Context, in DataIn) (string, error) {
	c, err := a.Machines.Command(ctx, in.CommandID)
	if err != nil {
		return "", toTemporal(err)
	}
	var facts fleet.AcceptanceFacts
	if err := json.Unmarshal(c.Data, &facts); err != nil {
		return "", final(NewReason(CodeMachine, "what the agent found cannot be read: %s", err))
	}
	w, err := a.Ops.LoadWork(ctx, in.OperationID)
	if err != nil {
		return "", toTemporal(err)
	}
	v := judgeHost(facts, w)
	for _, cond := range v.Conditions {
		if err := a.Nodes.SetCondition(ctx, w.NodeID, cond); err != nil {
			return "", toTemporal(err)
		}
	}
	if v.Fails != nil {
		return "", final(*v.Fails)
	}
	if w.Inventory == nil {
		if err := a.Nodes.RecordInventory(ctx, in.OperationID, facts.Inventory); err != nil {
			return "", toTemporal(err)
		}
	}
	return describeInventory(facts.Inventory) + "; kernel " + facts.Kernel + "; all checks passed", nil
}

// The bounds of the acceptance checks.
const (
	// leastDiskFree is the room that drivers, logs and the agent need on the root
	// file system.
	leastDiskFree = 5 << 30
	// mostClockOff is how far a host's clock may be off, in seconds; the gateway's
	// time is known to one.
	mostClockOff = 5
	// leastMemoryPart is how much of the recorded memory must be there: firmware
	// and kernels keep different amounts for themselves.
	leastMemoryPart = 0.97
)

// leastKernel is the oldest kernel that a host may run: 4.18 is the oldest that
// distributions with present GPU drivers still maintain (RHEL 8).
var leastKernel = [2]int{4, 18}

// judgeHost compares what a host's agent found with the recorded inventory, the
// pool and fixed bounds: one condition for each check.
func judgeHost(f fleet.AcceptanceFacts, w Work) Verdict {
	var v Verdict
	var bad []string
	check := func(kind, good, fault, todo string) {
		if fault == "" {
			v.set(kind, true, "Passed", good)
			return
		}
		v.set(kind, false, "Failed", fault+"; "+todo)
		bad = append(bad, kind+": "+fault)
	}
	check("HardwareAccepted", hardwareGood(w.Inventory), hardwareFault(f.Inventory, w.Inventory),
		"mend it, or, where it was changed on purpose, let the host join again (nodes/revokeIdentity, nodeagent join)")
	if w.Pool == nil {
		check("GpusAccepted", "the node is in no pool", "", "")
	} else {
		check("GpusAccepted", "", fleet.GPUMismatch(f.Inventory, w.Pool.GPUModel, w.Pool.GPUsPerNode, w.Site.GPUModelNames),
			"mend the GPUs, or put the node into a pool of such ones")
	}
	check("DriverPresent", "", driverFault(f), "install it and load it (modprobe)")
	check("DiskSpace", "", diskFault(f.DiskFreeBytes), "make room (df -h /)")
	check("ClockInSync", "", clockFault(f.ClockOffsetSeconds), "let it follow a time server (timedatectl set-ntp true)")
	check("KernelAccepted", f.Kernel, kernelFault(f.Kernel), "install a newer kernel and boot it")
	gateway := ""
	if f.GatewayError != "" {
		gateway = "a new connection to the gateway failed: " + f.GatewayError
	}
	check("GatewayReachable", "", gateway, "open the way from the host to the gateway")
	if len(bad) > 0 {
		v.fail(CodeNotAccepted, "%s", strings.Join(bad, "; "))
	}
	return v
}

func hardwareGood(recorded *fleet.Inventory) string {
	if recorded == nil {
		return "there was no inventory to compare with"
	}
	return ""
}

// hardwareFault says how a host differs from its recorded inventory. More than
// was recorded is no fault, and what one side does not know is not compared.
func hardwareFault(now fleet.Inventory, recorded *fleet.Inventory) string {
	if recorded == nil {
		return ""
	}
	var faults []string
	add := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	was, wasProof := fleet.ProvingUUID(recorded.UUID)
	is, isProof := fleet.ProvingUUID(now.UUID)
	if wasProof && isProof && was != is && fleet.SwapUUID(was) != is {
		add("system UUID %s, recorded was %s", is, was)
	}
	if now.Serial != "" && recorded.Serial != "" && now.Serial != recorded.Serial {
		add("serial %s, recorded was %s", now.Serial, recorded.Serial)
	}
	if len(now.CPUs) > 0 && len(now.CPUs) < len(recorded.CPUs) {
		add("%d CPUs of %d", len(now.CPUs), len(recorded.CPUs))
	}
	if now.MemoryMiB > 0 && float64(now.MemoryMiB) < leastMemoryPart*float64(recorded.MemoryMiB) {
		add("%d MiB memory of %d", now.MemoryMiB, recorded.MemoryMiB)
	}
	if gone := goneParts(diskSerials(recorded), diskSerials(&now)); gone != "" {
		add("disks missing: %s", gone)
	}
	if gone := goneParts(nicMACs(recorded), nicMACs(&now)); gone != "" {
		add("NICs missing: %s", gone)
	}
	if len(now.GPUs) < len(recorded.GPUs) {
		add("%d GPUs of %d", len(now.GPUs), len(recorded.GPUs))
	}
	return strings.Join(faults, ", ")
}

// goneParts names what was recorded and is not there; nothing when the host
// shows none of the kind at all.
func goneParts(recorded, now []string) string {
	if len(now) == 0 {
		return ""
	}
	var gone []string
	for _, id := range recorded {
		if !slices.Contains(now, id) {
			gone = append(gone, id)
		}
	}
	return strings.Join(gone, " ")
}

func diskSerials(inv *fleet.Inventory) []string { return fixedDisks(inv) }

func nicMACs(inv *fleet.Inventory) []string {
	var macs []string
	for _, n := range inv.NICs {
		macs = append(macs, n.MAC)
	}
	return fleet.UniversalMACs(macs)
}

// driverFault names GPUs without a loaded driver.
func driverFault(f fleet.AcceptanceFacts) string {
	var without []string
	for _, g := range f.Inventory.GPUs {
		if f.Drivers[g.Vendor] == "" {
			without = append(without, g.Vendor)
		}
	}
	slices.Sort(without)
	if without = slices.Compact(without); len(without) == 0 {
		return ""
	}
	return "no driver is loaded for GPUs of " + strings.Join(without, ", ")
}

func diskFault(free int64) string {
	switch {
	case free < 0:
		return "the room on the root file system could not be read"
	case free < leastDiskFree:
		return fmt.Sprintf("%.1f GiB free on the root file system, %d are needed", float64(free)/(1<<30), leastDiskFree>>30)
	}
	return ""
}

func clockFault(off *float64) string {
	switch {
	case off == nil:
		return "the clock could not be compared with the gateway's"
	case math.Abs(*off) > mostClockOff:
		return fmt.Sprintf("the clock is off by %.0f s, at most %d are borne", *off, mostClockOff)
	}
	return ""
}

func kernelFault(release string) string {
	var have [2]int
	parts := strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' })
	for i := range have {
		if i >= len(parts) {
			return fmt.Sprintf("the kernel's release %q cannot be read", release)
		}
		n, err := strconv.Atoi(parts[i])
		if err != nil {
			return fmt.Sprintf("the kernel's release %q cannot be read", release)
		}
		have[i] = n
	}
	if slices.Compare(have[:], leastKernel[:]) < 0 {
		return fmt.Sprintf("kernel %s, at least %d.%d is needed", release, leastKernel[0], leastKernel[1])
	}
	return ""
}
