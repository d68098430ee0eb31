package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// byVerb are the workflows of this release.
var byVerb = map[fleet.Verb]func(workflow.Context, Input) (Outcome, error){
	fleet.VerbEnroll: Enroll, fleet.VerbInspect: Inspect, fleet.VerbCommission: Commission, fleet.VerbDeploy: Deploy,
	fleet.VerbRescue: Rescue, fleet.VerbUnrescue: Unrescue, fleet.VerbRelease: Release, fleet.VerbRetire: Retire,
	fleet.VerbDrain: DrainNode, fleet.VerbPower: Power, fleet.VerbSetCredentials: SetCredentials,
	fleet.VerbAdopt: Adopt, fleet.VerbManage: Manage,
}

// Has says whether a verb has a workflow.
func Has(v fleet.Verb) bool { return byVerb[v] != nil }

// WorkflowRegistry takes workflows: a worker, a replayer, a test environment.
type WorkflowRegistry interface {
	RegisterWorkflowWithOptions(w any, options workflow.RegisterOptions)
}

// Registry takes activities too.
type Registry interface {
	WorkflowRegistry
	RegisterActivity(a any)
}

// RegisterWorkflows registers the workflows under the names of
// fleet.WorkflowTypes and of Schedules. They are started by these names only.
func RegisterWorkflows(r WorkflowRegistry) {
	for verb, fn := range byVerb {
		r.RegisterWorkflowWithOptions(fn, workflow.RegisterOptions{Name: fleet.WorkflowTypes[verb], VersioningBehavior: workflow.VersioningBehaviorAutoUpgrade})
	}
	r.RegisterWorkflowWithOptions(CleanUpSSHCerts, workflow.RegisterOptions{Name: cleanUpSSHCerts, VersioningBehavior: workflow.VersioningBehaviorAutoUpgrade})
}

// Register registers the workflows and the activities they use.
func Register(r Registry, record *activities.Record, acts *activities.BMC, clean *activities.CleanUp) {
	RegisterWorkflows(r)
	r.RegisterActivity(record)
	r.RegisterActivity(acts)
	r.RegisterActivity(clean)
}
