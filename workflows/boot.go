package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// bootVia chooses how the machine is booted from something else than its
// disk: as asked, else the first that it offers.
func bootVia(job activities.Job) (string, error) {
	offers := []struct {
		via string
		has bool
	}{
		{activities.ViaVirtualMedia, job.Capabilities.VirtualMedia && job.Capabilities.BootOverride},
		{activities.ViaHTTPBoot, job.Capabilities.HTTPBoot && job.Capabilities.BootOverride},
		{activities.ViaPXE, job.PXE && job.Capabilities.BootOverride && !job.Ask.ISO},
	}
	for _, o := range offers {
		if o.has && (job.Ask.BootVia == "" || job.Ask.BootVia == o.via) {
			return o.via, nil
		}
	}
	if job.Ask.BootVia != "" {
		return "", activities.NewReason(string(activities.KindUnsupported), "the machine or its site offers no %s", job.Ask.BootVia)
	}
	return "", activities.NewReason(string(activities.KindUnsupported), "the machine offers neither virtual media nor HTTP boot, and its site no PXE")
}

// prepareBoot readies the machine, off, to boot our image or an ISO. A boot
// after the first finds the machine on and switches it off: each power-on has
// its own medium.
func prepareBoot(ctx workflow.Context, r *run) (string, error) {
	via, err := bootVia(r.job)
	if err != nil {
		return "", err
	}
	if r.mem.Boots > 0 {
		if err := r.safely(ctx, limitPower); err != nil {
			return "", err
		}
		if _, err := r.off(ctx, 0); err != nil {
			return "", err
		}
	}
	r.mem.Boots++
	r.mem.Touched = true
	a := r.here(longBMCBound)
	return bmcAct[string](ctx, act.PrepareBoot, a, activities.PrepareBootIn{Act: a, Number: r.mem.Boots, Via: via, ISO: r.job.Ask.ISO})
}

func switchOn(ctx workflow.Context, r *run) (string, error) {
	if r.job.Ask.ISO {
		// From here on the medium may write to the disks.
		if err := write(ctx, record.RecordEraseOwed, activities.OperationIn{OperationID: r.in.OperationID}); err != nil {
			return "", err
		}
	}
	r.mem.SwitchedOn = true
	r.mem.OnAt = workflow.Now(ctx)
	return r.setPower(ctx, activities.AimOn, r.powerBound(1))
}

// awaitCallIn waits until the machine that was switched on calls in.
func awaitCallIn(ctx workflow.Context, r *run) (string, error) {
	w := waiting{
		what: activities.WatchCallIn, limit: r.job.Waits.CallIn, code: activities.CodeNoCallIn,
		late: "the machine did not call in within %s of being switched on",
		show: fleet.WaitingFor{Actor: "machine", What: "it boots our image and calls in", Then: "failed", YouCan: []string{"metal/abort"}},
	}
	// Of a boot by PXE the site's own server knows.
	if via, err := bootVia(r.job); err == nil && via != activities.ViaPXE && r.engine >= engineLooks {
		w.look = (&strayBoot{r: r, limit: w.limit}).look
	}
	_, err := r.await(ctx, w)
	return "the machine called in", err
}

// command sends a command to the machine and waits for its end.
func (r *run) command(ctx workflow.Context, kind string, serials []string, w waiting) (string, error) {
	r.mem.Sent = true
	id, err := local[string](ctx, record.Send, activities.SendIn{OperationID: r.in.OperationID, Type: kind, Serials: serials,
		Key: r.here(0).Key + "/" + r.mem.Step})
	if err != nil {
		return "", err
	}
	w.what, w.commandID = activities.WatchCommand, id
	w.show = fleet.WaitingFor{Actor: "machine", What: w.show.What, Then: "failed", YouCan: []string{"metal/abort"}}
	out, err := r.await(ctx, w)
	if err != nil {
		return "", err
	}
	if out.Command.State != "succeeded" {
		return "", activities.NewReason(activities.CodeMachine, "%s on the machine: %s", kind, whyEnded(out.Command))
	}
	return id, nil
}

// finish lets the agent say goodbye. That it cannot is no failure: the machine
// is switched by its BMC.
func finish(ctx workflow.Context, r *run) (string, error) {
	_, err := r.command(ctx, activities.CommandFinish, nil, waiting{limit: finishWait, code: activities.CodeMachine,
		late: "the machine did not say goodbye within %s", show: fleet.WaitingFor{What: "it ends our image"}})
	if reason := activities.ReasonOf(err); err != nil && reason.Code == activities.CodeMachine {
		return reason.Cause, nil
	}
	return "", err
}

// bootDisk boots the machine from its disk.
func bootDisk(ctx workflow.Context, r *run) (string, error) {
	in := activities.SwitchOffIn{}
	if r.mem.Boots == 0 {
		in.Graceful = r.job.Waits.Graceful
	}
	in.Act = r.here(r.powerBound(2) + in.Graceful + longBMCBound)
	out, err := bmcAct[activities.PowerOut](ctx, act.BootDisk, in.Act, in)
	if err == nil {
		r.mem.Touched = false
	}
	return out.Detail, err
}

// notBooted skips the steps in our image once they are needless or hopeless.
func notBooted(r *run) string { return r.mem.NoBoot }

// notOn skips switching off a machine that was not switched on.
func notOn(r *run) string {
	if r.mem.SwitchedOn {
		return ""
	}
	return "the machine was not switched on"
}
