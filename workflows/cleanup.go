package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
)

// Schedule is a workflow that Temporal starts by itself, again and again.
type Schedule struct {
	// ID is the schedule's, and what the ids of its workflows begin with.
	ID, Workflow string
	Every        time.Duration
}

// cleanUpSSHCerts is the name that the workflow is started by.
const cleanUpSSHCerts = "CleanUpSshCerts"

// Schedules are all of them.
var Schedules = []Schedule{{ID: "ssh-certs-clean-up", Workflow: cleanUpSSHCerts, Every: time.Hour}}

// cleanUp names the activities; its methods are called by reference only.
var cleanUp *activities.CleanUp

// CleanUpSSHCerts removes the records of SSH certificates that have served their
// time, and returns how many.
func CleanUpSSHCerts(ctx workflow.Context) (int, error) {
	var removed int
	err := workflow.ExecuteLocalActivity(quick(ctx), cleanUp.ForgetSSHCerts).Get(ctx, &removed)
	return removed, err
}
