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
	// engineLatest is what new runs record.
	engineLatest = engineFirst
)

// recordVersions writes the versions that this run is made with into its
// history, so that a later release can tell.
func recordVersions(ctx workflow.Context) {
	workflow.GetVersion(ctx, changeEngine, engineFirst, engineLatest)
}
