package workflows

import "go.temporal.io/sdk/workflow"

// Unrescue boots a rescued machine from its disk again.
func Unrescue(ctx workflow.Context, in Input) (Outcome, error) { return operate(ctx, in) }
