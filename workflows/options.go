package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"
)

// TaskQueue is the queue that the workers of operations poll.
const TaskQueue = "compute"

// All timeouts and retry policies of activities, by profile. What is worth a
// retry is decided with the error (activities, failure.go): none of these
// policies names a kind.
const (
	// quick: local activities that only read and write Postgres. They are tried
	// until Postgres is back.
	quickAttempt = 10 * time.Second
	quickTotal   = 10 * 365 * 24 * time.Hour
	// bmc: reads and single changes. longBMC: what moves images or waits for a
	// machine in POST.
	bmcBound     = 5 * time.Minute
	longBMCBound = 30 * time.Minute
	eraseBound   = 24 * time.Hour
	// cleanUpBound bounds each act of a clean-up, which must not keep an abort
	// waiting on a dead BMC.
	cleanUpBound = 2 * time.Minute
	// actSlack is what an attempt has beyond its own bound for giving back the
	// lease and answering.
	actSlack  = time.Minute
	heartbeat = 30 * time.Second
)

// Waits of workflows that are nobody's to set.
const (
	// pollLeast and pollMost bound the slow poll beside the signals.
	pollLeast = time.Second
	pollMost  = time.Minute
	// sessionPoll is the look for a session, whose beginning is signalled; a day of
	// them must fit into one history.
	sessionPoll = 10 * time.Minute
	// safePointPoll is the look at a hold, pause or limit that gives no time.
	safePointPoll = 30 * time.Second
	safePointMost = 10 * time.Minute
	// parkedRun is how long one run stays parked before it continues as new.
	parkedRun = 24 * time.Hour
)

// maxReboots is how often a machine that restarts by itself is booted again.
const maxReboots = 3

// quick is the profile of what only reads and writes Postgres.
func quick(ctx workflow.Context) workflow.Context {
	return workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		StartToCloseTimeout: quickAttempt, ScheduleToCloseTimeout: quickTotal,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 200 * time.Millisecond, BackoffCoefficient: 2, MaximumInterval: 10 * time.Second},
	})
}

// acting is the profile of acts on a BMC with a bound an attempt. The act
// itself ends its attempts once the BMC was away for too long.
func acting(ctx workflow.Context, bound time.Duration) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: bound + actSlack, HeartbeatTimeout: heartbeat, WaitForCancellation: true,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 2, MaximumInterval: 30 * time.Second},
	})
}
