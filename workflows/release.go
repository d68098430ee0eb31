package workflows

import (
	"fmt"
	"slices"
	"strings"

	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// Release takes a machine back: off, erased disk by disk with a record each,
// media and overrides cleared, the BMC's password changed where asked.
func Release(ctx workflow.Context, in Input) (Outcome, error) { return operate(ctx, in) }

// eraseByBMC tries the BMC's own secure erase and notes what is left.
func eraseByBMC(ctx workflow.Context, r *run) (string, error) {
	disks := r.job.Disks
	if !r.job.Capabilities.SecureErase || len(disks) == 0 {
		r.mem.Left, r.mem.LeftKnown = disks, len(r.job.Disks) > 0
		return "the BMC offers no secure erase for these disks: our image erases them", nil
	}
	a := r.here(eraseBound)
	out, err := bmcAct[activities.EraseByBMCOut](ctx, act.EraseByBMC, a, activities.EraseByBMCIn{Act: a, Serials: disks})
	if err != nil {
		return "", err
	}
	r.mem.Left, r.mem.LeftKnown = out.Left, true
	if len(out.Left) == 0 {
		r.mem.NoBoot = "the BMC erased all disks"
	}
	return out.Detail, nil
}

// eraseInBand lets our image erase what is left, all fixed disks where no
// inventory says which there are, and records each disk.
func eraseInBand(ctx workflow.Context, r *run) (string, error) {
	id, err := r.command(ctx, activities.CommandErase, r.mem.Left, waiting{limit: eraseBound, stall: r.job.Waits.Image,
		code: activities.CodeStalled, late: "the disks were not erased within %s", show: fleet.WaitingFor{What: "it erases its disks"}})
	if err != nil {
		return "", err
	}
	records, err := local[[]fleet.DiskErase](ctx, record.TakeErased, activities.DataIn{OperationID: r.in.OperationID, CommandID: id})
	if err != nil {
		return "", err
	}
	records = withSkipped(records, r.mem.Left, r.job.Ask.SkipDisks)
	if err := write(ctx, record.RecordErase, activities.EraseIn{OperationID: r.in.OperationID, Key: id, Disks: records}); err != nil {
		return "", err
	}
	r.mem.Left, r.mem.LeftKnown = notErased(records, r.mem.Left), true
	if len(r.mem.Left) > 0 {
		return "", activities.NewReason(activities.CodeErase, "not erased: %s", describeLeft(records, r.mem.Left))
	}
	return fmt.Sprintf("%d disks erased or skipped, each recorded", len(records)), nil
}

// withSkipped adds records of disks that may be left out and did not answer.
func withSkipped(records []fleet.DiskErase, wanted, skip []string) []fleet.DiskErase {
	for _, serial := range wanted {
		answered := slices.ContainsFunc(records, func(d fleet.DiskErase) bool { return d.Serial == serial })
		if !answered && slices.Contains(skip, serial) {
			records = append(records, fleet.DiskErase{Serial: serial, Method: "skipped", Result: "done", Detail: "the disk did not answer"})
		}
	}
	return records
}

// notErased are the disks without a good record: those wanted, and others that
// failed.
func notErased(records []fleet.DiskErase, wanted []string) []string {
	var left []string
	for _, d := range records {
		if d.Result != "done" {
			left = append(left, d.Serial)
		}
	}
	for _, serial := range wanted {
		if !slices.ContainsFunc(records, func(d fleet.DiskErase) bool { return d.Serial == serial }) {
			left = append(left, serial)
		}
	}
	return left
}

func describeLeft(records []fleet.DiskErase, left []string) string {
	var parts []string
	for _, serial := range left {
		detail := "did not answer"
		for _, d := range records {
			if d.Serial == serial && d.Detail != "" {
				detail = d.Detail
			}
		}
		parts = append(parts, "disk "+serial+" ("+detail+")")
	}
	return strings.Join(parts, ", ")
}

// checkReleased sees that the machine is off and boots from its disk, and
// records the disks that a forced retire leaves as they are.
func checkReleased(ctx workflow.Context, r *run) (string, error) {
	if err := r.recordKept(ctx); err != nil {
		return "", err
	}
	if r.mem.Asked.LeavePower && r.job.Verb == fleet.VerbRetire && r.mem.Asked.Erase.Rank() == 0 {
		note := "power left as it is: the machine may be in use"
		r.mem.NotDone = append(r.mem.NotDone, note)
		return note, nil
	}
	a := r.here(bmcBound)
	out, err := bmcAct[activities.BootStateOut](ctx, act.BootState, a, a)
	if err != nil {
		return "", err
	}
	if out.Power != fleet.PowerOff || !out.Consumed {
		return "", activities.NewReason(string(activities.KindTimeout), "the machine is %s and its boot override is %s", out.Power, pending(out.Consumed))
	}
	return "off, no override pending", nil
}
