package workflows

import (
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// byVerb are the workflows of this release. Adopt, DrainNode and Manage are
// not among them: what they wait for is said by an agent's session.
var byVerb = map[fleet.Verb]func(workflow.Context, Input) (Outcome, error){
	fleet.VerbEnroll: Enroll, fleet.VerbInspect: Inspect, fleet.VerbCommission: Commission, fleet.VerbDeploy: Deploy,
	fleet.VerbRescue: Rescue, fleet.VerbUnrescue: Unrescue, fleet.VerbRelease: Release, fleet.VerbRetire: Retire,
	fleet.VerbPower: Power, fleet.VerbSetCredentials: SetCredentials,
}

// Has says whether a verb has a workflow.
func Has(v fleet.Verb) bool { return byVerb[v] != nil }

// Register registers the workflows under the names of fleet.WorkflowTypes, and
// the activities they use.
func Register(r worker.Registry, record *activities.Record, acts *activities.BMC) {
	for verb, fn := range byVerb {
		r.RegisterWorkflowWithOptions(fn, workflow.RegisterOptions{Name: fleet.WorkflowTypes[verb], VersioningBehavior: workflow.VersioningBehaviorAutoUpgrade})
	}
	r.RegisterActivity(record)
	r.RegisterActivity(acts)
}
