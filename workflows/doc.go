// Package workflows holds one Temporal workflow a verb. All run on one engine
// (run.go): begin, plan, and for each step a safe point, its start, its act and
// its end in Postgres; a failure parks the workflow until it is retried or
// aborted. The verbs' files say what their steps do.
//
// Workflow code is deterministic: no clock, goroutine, map range, global logger
// or configuration. What it must know it is told by activities; what wakes it
// (signals) is only a hint to look again, so that a lost signal hangs nothing.
package workflows
