package activities

import (
	"context"
	"encoding/json"

	"go.temporal.io/sdk/activity"

	"github.com/bettercompute/compute/fleet"
)

// Record is the bookkeeping of operations: activities that only read and write
// Postgres, run as local activities.
type Record struct {
	Ops      Operations
	Nodes    Nodes
	Machines Machines
}

// OperationIn names an operation.
type OperationIn struct{ OperationID string }

// Begin makes a pending operation running and says what it is to do.
func (a *Record) Begin(ctx context.Context, in OperationIn) (Job, error) {
	w, err := a.Ops.BeginOperation(ctx, in.OperationID, activity.GetInfo(ctx).WorkflowExecution.RunID)
	if err != nil {
		return Job{}, toTemporal(err)
	}
	j, err := jobOf(w)
	if err != nil {
		return Job{}, final(err)
	}
	return j, nil
}

// Load reads again what a parked operation is to do.
func (a *Record) Load(ctx context.Context, in OperationIn) (Job, error) {
	w, err := a.Ops.LoadWork(ctx, in.OperationID)
	if err != nil {
		return Job{}, toTemporal(err)
	}
	j, err := jobOf(w)
	if err != nil {
		return Job{}, final(err)
	}
	return j, nil
}

// AdvanceIn ends one step and asks for the next.
type AdvanceIn struct {
	OperationID string
	// Plan, when not empty, names the operation's steps.
	Plan []string
	// Ended are the steps that ended since the last call.
	Ended []Ended
	// Next is the step to start, in the round after so many times that the
	// operation went back in its plan.
	Next  string
	Round int
	// Touches says that Next could change power, boot or disk, so that it waits
	// for holds, pauses and the limits of Kinds.
	Touches bool
	Kinds   []string
}

// Ended is the end of one step.
type Ended struct {
	Step   string
	State  fleet.StepState
	Detail string
}

// AdvanceOut says whether the next step was started.
type AdvanceOut struct {
	Started bool
	Wait    SafePoint
}

// Advance records the end of a step and starts the next one if it may start.
func (a *Record) Advance(ctx context.Context, in AdvanceIn) (AdvanceOut, error) {
	if len(in.Plan) > 0 {
		if err := a.Ops.PlanSteps(ctx, in.OperationID, in.Plan); err != nil {
			return AdvanceOut{}, toTemporal(err)
		}
	}
	if err := a.endSteps(ctx, in.OperationID, in.Ended); err != nil {
		return AdvanceOut{}, toTemporal(err)
	}
	if in.Touches {
		p, err := a.safe(ctx, in.OperationID, in.Kinds)
		if err != nil {
			return AdvanceOut{}, toTemporal(err)
		}
		if !p.Go {
			return AdvanceOut{Wait: p}, toTemporal(a.Ops.SetWaiting(ctx, in.OperationID, p.WaitingFor))
		}
	}
	if _, err := a.Ops.StartStep(ctx, in.OperationID, in.Next, in.Round); err != nil {
		return AdvanceOut{}, toTemporal(err)
	}
	return AdvanceOut{Started: true}, nil
}

// EndIn are ends of steps.
type EndIn struct {
	OperationID string
	Ended       []Ended
}

// EndSteps records ends of steps.
func (a *Record) EndSteps(ctx context.Context, in EndIn) error {
	return toTemporal(a.endSteps(ctx, in.OperationID, in.Ended))
}

func (a *Record) endSteps(ctx context.Context, operationID string, ended []Ended) error {
	for _, e := range ended {
		if err := a.Ops.EndStep(ctx, operationID, e.Step, e.State, e.Detail); err != nil {
			return err
		}
	}
	return nil
}

func (a *Record) safe(ctx context.Context, operationID string, kinds []string) (SafePoint, error) {
	if len(kinds) == 0 {
		kinds = []string{""}
	}
	for _, k := range kinds {
		p, err := a.Ops.CheckSafePoint(ctx, operationID, k)
		if err != nil || !p.Go {
			return p, err
		}
	}
	return SafePoint{Go: true}, nil
}

// SafePointIn asks whether an act inside a step may go ahead.
type SafePointIn struct {
	OperationID string
	Kinds       []string
}

// CheckSafePoint judges hold, pause and limits before an act inside a step,
// and shows what is waited for.
func (a *Record) CheckSafePoint(ctx context.Context, in SafePointIn) (SafePoint, error) {
	p, err := a.safe(ctx, in.OperationID, in.Kinds)
	if err == nil {
		err = a.Ops.SetWaiting(ctx, in.OperationID, p.WaitingFor)
	}
	return p, toTemporal(err)
}

// NoteIn is a running step's detail.
type NoteIn struct{ OperationID, Step, Detail string }

// Note sets a running step's detail.
func (a *Record) Note(ctx context.Context, in NoteIn) error {
	return toTemporal(a.Ops.NoteStep(ctx, in.OperationID, in.Step, in.Detail))
}

// FailIn ends or parks an operation.
type FailIn struct {
	OperationID, Step string
	Reason            Reason
	Park              bool
	LeftBehind        []string
}

// Fail records the failed step and ends or parks the operation.
func (a *Record) Fail(ctx context.Context, in FailIn) error {
	if in.Step != "" {
		if err := a.Ops.EndStep(ctx, in.OperationID, in.Step, fleet.StepFailed, in.Reason.Cause); err != nil {
			return toTemporal(err)
		}
	}
	return toTemporal(a.Ops.FailOperation(ctx, in.OperationID,
		Failure{Step: in.Step, Code: in.Reason.Code, Cause: in.Reason.Cause, Remedy: in.Reason.Remedy, Park: in.Park, LeftBehind: in.LeftBehind}))
}

// AbortIn ends an operation aborted.
type AbortIn struct {
	OperationID, Cause string
	LeftBehind         []string
}

// Abort ends the operation aborted.
func (a *Record) Abort(ctx context.Context, in AbortIn) error {
	return toTemporal(a.Ops.AbortOperation(ctx, in.OperationID, in.Cause, in.LeftBehind))
}

// RetryIn asks for the judged transaction of metal/retry.
type RetryIn struct{ OperationID, Actor string }

// RetryOut says whether the operation goes on.
type RetryOut struct {
	// Refused says why not; empty when Job is what to go on with.
	Refused string
	Job     Job
}

// Retry makes, or finds made, the transaction of metal/retry and begins the
// operation again.
func (a *Record) Retry(ctx context.Context, in RetryIn) (RetryOut, error) {
	refused, err := a.Ops.RetryOperation(ctx, in.OperationID, in.Actor)
	if err != nil {
		return RetryOut{}, toTemporal(err)
	}
	if refused != "" {
		return RetryOut{Refused: refused}, nil
	}
	j, err := a.Begin(ctx, OperationIn{OperationID: in.OperationID})
	return RetryOut{Job: j}, err
}

// SucceedIn ends an operation well.
type SucceedIn struct {
	OperationID string
	Ended       []Ended
	// Deployed says that Image members count.
	Deployed          bool
	Verified, Whole   bool
	Confirmed         string
	EndChain          bool
	ForgetBMCPassword bool
	NotDone           []string
}

// Succeed ends the operation well.
func (a *Record) Succeed(ctx context.Context, in SucceedIn) error {
	if err := a.endSteps(ctx, in.OperationID, in.Ended); err != nil {
		return toTemporal(err)
	}
	r := Result{EndChain: in.EndChain, ForgetBMCPassword: in.ForgetBMCPassword, NotDone: in.NotDone}
	if in.Deployed {
		w, err := a.Ops.LoadWork(ctx, in.OperationID)
		if err != nil {
			return toTemporal(err)
		}
		img, err := imageOf(w)
		if err != nil {
			return final(err)
		}
		now := fleet.At(activity.GetInfo(ctx).StartedTime)
		img.Verified, img.Confirmed, img.DeployedAt = in.Verified, in.Confirmed, &now
		r.Image, r.Whole = &img, &in.Whole
	}
	return toTemporal(a.Ops.SucceedOperation(ctx, in.OperationID, r))
}

// FinishDrain looks whether a drain is over and ends it when it is; else it says
// what the drain waits for.
func (a *Record) FinishDrain(ctx context.Context, in OperationIn) (*fleet.WaitingFor, error) {
	w, err := a.Ops.FinishDrain(ctx, in.OperationID)
	return w, toTemporal(err)
}

// imageOf is the view of the image that a deploy was asked for.
func imageOf(w Work) (fleet.ImageView, error) {
	var in fleet.MetalDeployIn
	if err := json.Unmarshal(w.Input, &in); err != nil {
		return fleet.ImageView{}, err
	}
	return fleet.ImageView{URL: in.Image.URL, Checksum: in.Image.Checksum, Format: in.Image.Format}, nil
}

// RevokeIdentity revokes the node's certificates and raises its generation.
func (a *Record) RevokeIdentity(ctx context.Context, in OperationIn) error {
	w, err := a.Ops.LoadWork(ctx, in.OperationID)
	if err != nil {
		return toTemporal(err)
	}
	return toTemporal(a.Nodes.RevokeIdentity(ctx, in.OperationID, string(w.Verb)))
}

// RecordEraseOwed marks that the disks hold a deployed image from now on.
func (a *Record) RecordEraseOwed(ctx context.Context, in OperationIn) error {
	return toTemporal(a.Nodes.RecordEraseOwed(ctx, in.OperationID))
}

// RecordImage stores that the image is on the disk, whole and verified.
func (a *Record) RecordImage(ctx context.Context, in OperationIn) error {
	w, err := a.Ops.LoadWork(ctx, in.OperationID)
	if err != nil {
		return toTemporal(err)
	}
	img, err := imageOf(w)
	if err != nil {
		return final(err)
	}
	img.Verified = true
	return toTemporal(a.Nodes.RecordImage(ctx, in.OperationID, img, true))
}

// EraseIn are erase records.
type EraseIn struct {
	OperationID string
	// Key is the command, or the step, that they come from.
	Key   string
	Disks []fleet.DiskErase
}

// RecordErase stores erase records.
func (a *Record) RecordErase(ctx context.Context, in EraseIn) error {
	return toTemporal(a.Nodes.RecordErase(ctx, in.OperationID, in.Key, in.Disks))
}

// StoreCredentials records the credentials that were proved.
func (a *Record) StoreCredentials(ctx context.Context, in OperationIn) error {
	return toTemporal(a.Nodes.StoreCredentials(ctx, in.OperationID))
}
