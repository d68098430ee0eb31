package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// Deploy installs an image: the machine boots our image, which writes it and
// the config drive, and then boots from its disk. An ISO is booted instead.
func Deploy(ctx workflow.Context, in Input) (Outcome, error) { return operate(ctx, in) }

// What confirms a deploy.
const (
	expectReport  = "report"
	expectSession = "session"
	expectBoot    = "boot"
)

// checkDeploy refuses what cannot be done before anything is changed.
func checkDeploy(_ workflow.Context, r *run) (string, error) {
	via, err := bootVia(r.job)
	if err != nil {
		return "", err
	}
	if r.job.Ask.Expect == expectSession && !r.job.Joins {
		return "", activities.NewReason(string(activities.KindUnsupported), "expect: session waits for nodeagent, and the site gives installed systems no token to join by (boot.installAgent)")
	}
	return "boots by " + via, nil
}

func writeImage(ctx workflow.Context, r *run) (string, error) {
	if r.mem.Whole {
		return "the image is on the disk already, verified", nil
	}
	op := activities.OperationIn{OperationID: r.in.OperationID}
	if err := write(ctx, record.RecordEraseOwed, op); err != nil {
		return "", err
	}
	id, err := r.command(ctx, activities.CommandWriteImage, nil, waiting{limit: r.job.Waits.Image, stall: r.job.Waits.ImageStall,
		code: activities.CodeStalled, late: "the image was not written within %s", show: fleet.WaitingFor{What: "it writes the image"}})
	if err != nil {
		return "", err
	}
	detail, err := local[string](ctx, record.CheckWritten, activities.DataIn{OperationID: r.in.OperationID, CommandID: id})
	if err != nil {
		return "", err
	}
	if err := write(ctx, record.RecordImage, op); err != nil {
		return "", err
	}
	r.mem.Whole = true
	return detail, nil
}

func writeConfig(ctx workflow.Context, r *run) (string, error) {
	_, err := r.command(ctx, activities.CommandConfigDrive, nil, waiting{limit: r.job.Waits.ImageStall, code: activities.CodeStalled,
		late: "the config drive was not written within %s", show: fleet.WaitingFor{What: "it writes the config drive"}})
	return "config drive written", err
}

// confirm waits for what the caller expects of the installed system.
func confirm(ctx workflow.Context, r *run) (string, error) {
	r.mem.Confirmed = r.job.Ask.Expect
	switch r.job.Ask.Expect {
	case expectSession:
		_, err := r.await(ctx, waiting{
			what: activities.WatchSession, limit: r.job.Waits.Report, code: activities.CodeNoSession,
			late: "the installed system's agent opened no session within %s",
			show: fleet.WaitingFor{Actor: "installed system", What: "it boots, and its agent joins and opens a session", Then: "failed", YouCan: []string{"metal/abort", "metal/power"}},
		})
		return "the installed system's agent is in session", err
	case expectReport:
		_, err := r.await(ctx, waiting{
			what: activities.WatchReport, limit: r.job.Waits.Report, code: activities.CodeNoReport,
			late: "the installed system did not report within %s",
			show: fleet.WaitingFor{Actor: "installed system", What: "it boots and reports", Then: "failed", YouCan: []string{"metal/abort", "metal/power"}},
		})
		return "the installed system reported", err
	}
	return r.confirmBoot(ctx)
}

// confirmBoot sees the machine on and its one-time override used up. An ISO's
// medium stays in until the next operation, since the installer reads it.
func (r *run) confirmBoot(ctx workflow.Context) (string, error) {
	var c clock
	for {
		a := r.here(bmcBound)
		out, err := bmcAct[activities.BootStateOut](ctx, act.BootState, a, a)
		if err != nil {
			return "", err
		}
		if out.Power == fleet.PowerOn && out.Consumed {
			break
		}
		c.tick(workflow.Now(ctx), false)
		if limit := r.job.Waits.CallIn; c.elapsed >= limit {
			return "", activities.NewReason(string(activities.KindTimeout), "after %s the machine is %s and its boot override is %s", limit, out.Power, pending(out.Consumed))
		}
		r.waits(ctx, "machine: it boots")
		if err := workflow.Sleep(ctx, waiting{limit: r.job.Waits.CallIn}.poll(c.elapsed, 0)); err != nil {
			return "", err
		}
	}
	r.mem.Touched = false
	if r.job.Ask.ISO {
		return "the machine is on and took the medium, which stays in until the next operation; unconfirmed beyond that", nil
	}
	return "power and boot order are as they should be; unconfirmed beyond that", nil
}

func pending(consumed bool) string {
	if consumed {
		return "used up"
	}
	return "still pending"
}
