package workflows

import (
	"strings"

	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// Retire takes a machine out of service: as Release, and its BMC password is
// forgotten. Forced, each step is tried once and what was not done is recorded.
func Retire(ctx workflow.Context, in Input) (Outcome, error) { return operate(ctx, in) }

// recordKept writes an erase record for each disk that a forced retire leaves
// with what is on it.
func (r *run) recordKept(ctx workflow.Context) error {
	if !r.forced() {
		return nil
	}
	kept := r.mem.Left
	if !r.mem.LeftKnown && (r.job.EraseOwed || r.mem.Asked.Erase.Rank() > 0) {
		kept = r.job.Disks
	}
	if len(kept) == 0 {
		return nil
	}
	cause := strings.Join(r.mem.NotDone, "; ")
	if cause == "" {
		cause = "no erase was asked for"
	}
	records := make([]fleet.DiskErase, len(kept))
	for i, serial := range kept {
		records[i] = fleet.DiskErase{Serial: serial, Method: "skipped", Result: "failed", Detail: "forced retire: " + cause}
	}
	return write(ctx, record.RecordErase, activities.EraseIn{OperationID: r.in.OperationID, Key: r.mem.Step, Disks: records})
}
