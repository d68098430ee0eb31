package activities

import (
	"context"
	"fmt"
	"slices"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// EraseByBMCIn asks for the BMC's own secure erase.
type EraseByBMCIn struct {
	Act
	Serials []string
}

// EraseByBMCOut says which disks are left to erase.
type EraseByBMCOut struct {
	Left   []string
	Detail string
}

// EraseByBMC erases by the BMC's secure erase what it can, and records each
// disk that was proved erased. What it cannot is left for our image.
func (a *BMC) EraseByBMC(ctx context.Context, in EraseByBMCIn) (EraseByBMCOut, error) {
	out := EraseByBMCOut{Left: in.Serials}
	err := a.change(ctx, in.Act, func(ctx context.Context, c bmc.Client) error {
		records, err := c.EraseDrives(ctx, in.Serials)
		if kind := bmc.KindOf(err); kind == bmc.KindUnsupported || kind == bmc.KindRefused {
			out.Detail = "not by the BMC: " + reasonFrom(err).Cause
			return nil
		}
		if err != nil {
			return err
		}
		var done []fleet.DiskErase
		for _, r := range records {
			if r.Result == "done" {
				done = append(done, r)
				out.Left = slices.DeleteFunc(slices.Clone(out.Left), func(s string) bool { return s == r.Serial })
			}
		}
		out.Detail = fmt.Sprintf("%d of %d disks erased and proved", len(done), len(in.Serials))
		if len(done) == 0 {
			return nil
		}
		// An attempt whose end got lost is made again, and may prove more disks.
		key := in.Step + "/" + in.Key
		for _, r := range done {
			key += "/" + r.Serial
		}
		return a.Nodes.RecordErase(ctx, in.OperationID, key, done)
	})
	return out, err
}
