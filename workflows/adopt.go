package workflows

import (
	"strconv"

	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// Adopt waits for the session of a joined host's agent, lets it run the
// acceptance checks and judges what it found. A host that does not pass stays
// adopting, with a condition for each check.
func Adopt(ctx workflow.Context, in Input) (Outcome, error) { return operate(ctx, in) }

// acceptTries is how often the checks are begun anew after the agent was stopped
// while they ran, or its identity was revoked.
const acceptTries = 3

func awaitSession(ctx workflow.Context, r *run) (string, error) {
	_, err := r.await(ctx, waiting{
		what: activities.WatchSession, limit: r.job.Waits.Session, most: sessionPoll, code: activities.CodeNoSession,
		late: "the host's agent opened no session within %s",
		show: fleet.WaitingFor{Actor: "agent", What: "it opens a session", Then: "the operation fails; the node stays adopting", YouCan: []string{"metal/abort", "nodes/adopt"}},
	})
	return "the agent is in session", err
}

func acceptHost(ctx workflow.Context, r *run) (string, error) {
	var failed activities.Reason
	for try := range acceptTries {
		if try > 0 {
			if _, err := awaitSession(ctx, r); err != nil {
				return "", err
			}
		}
		r.mem.Sent = true
		id, err := local[string](ctx, record.SendToNode, activities.SendIn{OperationID: r.in.OperationID, Type: activities.CommandAccept, Key: strconv.Itoa(try)})
		if err != nil {
			return "", err
		}
		out, err := r.await(ctx, waiting{
			what: activities.WatchCommand, commandID: id, limit: r.job.Waits.Session, most: sessionPoll, code: activities.CodeNoSession,
			late: "the host's agent did not answer within %s",
			show: fleet.WaitingFor{Actor: "agent", What: "it runs the acceptance checks", Then: "the operation fails; the node stays adopting", YouCan: []string{"metal/abort", "nodes/adopt"}},
		})
		if err != nil {
			return "", err
		}
		if out.Command.State == "succeeded" {
			return local[string](ctx, record.JudgeHost, activities.DataIn{OperationID: r.in.OperationID, CommandID: id})
		}
		failed = activities.NewReason(activities.CodeMachine, "the agent could not run the acceptance checks: %s", whyEnded(out.Command))
	}
	return "", failed
}

// whyEnded is a command's own error, else its state.
func whyEnded(c activities.Command) string {
	if c.Error != "" {
		return c.Error
	}
	return "the command is " + c.State
}
