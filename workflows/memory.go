package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// Memory is what a run knows beyond Postgres; it is carried over when a long
// wait continues as new.
type Memory struct {
	// Asked is what the steps were planned from; it stays over retries.
	Asked *fleet.StepsAsk `json:"asked,omitempty"`
	// Planned says that the steps are recorded.
	Planned bool `json:"planned,omitempty"`
	// Step is the step to go on with, "" for the first; Waited is how far its wait
	// had come.
	Step   string  `json:"step,omitempty"`
	Waited *Waited `json:"waited,omitempty"`
	// Parked is set while the operation is failed and can be retried.
	Parked *Parked `json:"parked,omitempty"`
	// Seen are the dispatch ids of signals taken.
	Seen []int64 `json:"seen,omitempty"`
	// Retries counts retries by people and reboots, and so tells acts of one
	// step apart.
	Retries int `json:"retries,omitempty"`
	// Boots numbers the power-ons with a medium, Reboots those that the machine
	// made necessary by itself.
	Boots   int `json:"boots,omitempty"`
	Reboots int `json:"reboots,omitempty"`
	// Touched says that media or override may be set by this operation, Sent
	// that the machine may have commands.
	Touched bool `json:"touched,omitempty"`
	Sent    bool `json:"sent,omitempty"`
	// SwitchedOn says that the machine was switched on, so that it ends off.
	SwitchedOn bool `json:"switchedOn,omitempty"`
	// OnAt is when it was switched on last.
	OnAt time.Time `json:"onAt,omitzero"`
	// NoBoot says why our image is not booted (any more), "" when it is.
	NoBoot string `json:"noBoot,omitempty"`
	// Left are the disks that are still to be erased; LeftKnown that the BMC was
	// asked to.
	Left      []string `json:"left,omitempty"`
	LeftKnown bool     `json:"leftKnown,omitempty"`
	// Whole and Confirmed are what a deploy came to.
	Whole     bool   `json:"whole,omitempty"`
	Confirmed string `json:"confirmed,omitempty"`
	// EndChain says that no operation follows.
	EndChain bool `json:"endChain,omitempty"`
	// NotDone is what a forced retire could not do.
	NotDone []string `json:"notDone,omitempty"`
}

// Parked is why an operation waits for a retry or an abort.
type Parked struct {
	Step   string            `json:"step"`
	Reason activities.Reason `json:"reason"`
	// Refused says why the last retry was not admitted.
	Refused string `json:"refused,omitempty"`
}

// Progress answers the query of the same name.
type Progress struct {
	OperationID string     `json:"operationId"`
	Verb        fleet.Verb `json:"verb"`
	// Step is the step under way or failed.
	Step  string         `json:"step,omitempty"`
	Steps []StepProgress `json:"steps"`
	// Waiting says what is waited for, in words.
	Waiting string  `json:"waiting,omitempty"`
	Percent *int    `json:"percent,omitempty"`
	Parked  *Parked `json:"parked,omitempty"`
	Boots   int     `json:"boots,omitempty"`
	Retries int     `json:"retries,omitempty"`
}

// StepProgress is one step as the workflow sees it.
type StepProgress struct {
	Name  string          `json:"name"`
	State fleet.StepState `json:"state"`
}

// show answers the query progress.
func (r *run) show() (Progress, error) {
	p := r.progress
	p.OperationID, p.Verb, p.Step = r.in.OperationID, r.job.Verb, r.mem.Step
	p.Parked, p.Boots, p.Retries = r.mem.Parked, r.mem.Boots, r.mem.Retries
	at := r.indexOf(r.mem.Step)
	for i, s := range r.plan {
		state := fleet.StepPending
		switch {
		case i < at:
			state = fleet.StepDone
		case i == at && r.mem.Parked != nil:
			state = fleet.StepFailed
		case i == at && r.mem.Step != "":
			state = fleet.StepRunning
		}
		p.Steps = append(p.Steps, StepProgress{Name: s.name, State: state})
	}
	return p, nil
}

// indexOf is the place of a step in the plan; the first for "" and for a name
// that the plan does not hold.
func (r *run) indexOf(name string) int {
	for i, s := range r.plan {
		if s.name == name {
			return i
		}
	}
	return 0
}

// showState puts the node's state into the search attribute.
func (r *run) showState(ctx workflow.Context, state fleet.ProvisionState) {
	if state == "" {
		return
	}
	if err := workflow.UpsertTypedSearchAttributes(ctx, provisionState.ValueSet(string(state))); err != nil {
		workflow.GetLogger(ctx).Warn("search attribute not set", "error", err)
	}
}

// endState is the node's state after the operation ended well.
func endState(job activities.Job) fleet.ProvisionState {
	if job.Verb == fleet.VerbInspect {
		return job.ReturnTo
	}
	return fleet.EndsIn[job.Verb]
}

// failedState is the node's state after the operation failed; "" where the
// verb leaves it.
func failedState(verb fleet.Verb) fleet.ProvisionState {
	if fleet.FailsFrom[verb] == "" {
		return ""
	}
	return fleet.Failed
}
