package workflows

import "go.temporal.io/sdk/workflow"

// Changes of workflow code that open runs must not notice are numbered here.
// Each has an id and versions; code that differs asks
//
//	workflow.GetVersion(ctx, change, least, latest)
//
// and keeps the old way for as long as a run recorded with it can be open.
const (
	// changeEngine is the engine itself: the order of bookkeeping around steps.
	changeEngine = "engine"
	// engineFirst is the order as first released.
	engineFirst = workflow.Version(1)
	// engineSessions ends the BMC's session before a failure is recorded, also of
	// an operation that parks.
	engineSessions = workflow.Version(2)
	// engineLooks looks at the BMC while a machine is to call in.
	engineLooks = workflow.Version(3)
	// engineWaits continues as new in the waits for the machine too.
	engineWaits = workflow.Version(4)
	// engineLatest is what new runs record.
	engineLatest = engineWaits
)

// engineOf writes the version that this run is made with into its history, or
// reads the one that it was made with.
func engineOf(ctx workflow.Context) workflow.Version {
	return workflow.GetVersion(ctx, changeEngine, engineFirst, engineLatest)
}
