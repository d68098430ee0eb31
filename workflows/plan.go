package workflows

import (
	"strconv"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/fleet"
)

// The kinds of a site's limits.
const (
	limitPower  = "power"
	limitDeploy = "deploy"
)

// stepTable says how each step of fleet.StepsOf is done.
var stepTable = func() map[string]step {
	m := map[string]step{}
	for _, s := range []step{
		{name: fleet.StepClearLeft, touches: true, try: true, do: clearBoot},
		{name: fleet.StepIdentify, do: identify},
		{name: fleet.StepReadInventory, do: readInventory},
		{name: fleet.StepCheckPlan, do: checkDeploy},
		{name: fleet.StepRevokeIdentity, touches: true, do: revokeIdentity},
		{name: fleet.StepSwitchOff, touches: true, kinds: []string{limitPower}, try: true, do: switchOff},
		{name: fleet.StepProveOverride, touches: true, do: proveOverride},
		{name: fleet.StepPrepareBoot, touches: true, try: true, skip: notBooted, do: prepareBoot},
		{name: fleet.StepSwitchOn, touches: true, kinds: []string{limitPower}, medium: true, try: true, skip: notBooted, do: switchOn},
		{name: fleet.StepAwaitCallIn, medium: true, try: true, skip: notBooted, do: awaitCallIn},
		{name: fleet.StepReadInBand, inBand: true, do: readInBand},
		{name: fleet.StepRunTests, touches: true, inBand: true, do: runTests},
		{name: fleet.StepCheckHardware, do: checkHardware},
		{name: fleet.StepWriteImage, touches: true, inBand: true, do: writeImage},
		{name: fleet.StepWriteConfig, touches: true, inBand: true, do: writeConfig},
		{name: fleet.StepFinish, inBand: true, try: true, skip: notBooted, do: finish},
		{name: fleet.StepStartRescue, inBand: true, do: startRescue},
		{name: fleet.StepBootDisk, touches: true, kinds: []string{limitPower}, do: bootDisk},
		{name: fleet.StepConfirm, do: confirm},
		{name: fleet.StepEraseByBMC, touches: true, try: true, do: eraseByBMC},
		{name: fleet.StepEraseInBand, touches: true, inBand: true, try: true, skip: notBooted, do: eraseInBand},
		{name: fleet.StepStayOff, touches: true, kinds: []string{limitPower}, try: true, skip: notOn, do: stayOff},
		{name: fleet.StepClearBoot, touches: true, try: true, do: clearBoot},
		{name: fleet.StepRotate, touches: true, try: true, do: rotate},
		{name: fleet.StepProve, do: proveCredentials},
		{name: fleet.StepCheckReleased, try: true, do: checkReleased},
		{name: fleet.StepAwaitFree, do: awaitFree},
		{name: fleet.StepProveBMC, do: proveBMC},
		{name: fleet.StepAwaitSession, do: awaitSession},
		{name: fleet.StepAcceptHost, do: acceptHost},
		{name: fleet.StepPower, touches: true, kinds: []string{limitPower}, do: power},
	} {
		m[s.name] = s
	}
	return m
}()

// planOf are the steps of an operation with what does them.
func planOf(ask fleet.StepsAsk) []step {
	names := fleet.StepsOf(ask)
	plan := make([]step, len(names))
	for i, n := range names {
		s, ok := stepTable[n.Name]
		if !ok {
			panic("workflows: no step " + n.Name)
		}
		plan[i] = special(ask, s)
	}
	return plan
}

// special adjusts a step to its verb.
func special(ask fleet.StepsAsk, s step) step {
	switch {
	case ask.Verb == fleet.VerbDeploy && s.name == fleet.StepRevokeIdentity:
		// The first step that changes anything waits for the limit of deploys.
		s.kinds = []string{limitDeploy}
	case ask.Verb == fleet.VerbDeploy && ask.ISO && s.name == fleet.StepConfirm:
		s.medium = true
	case ask.Verb == fleet.VerbCommission && !ask.Tests && s.name == fleet.StepSwitchOn:
		s.medium = false
	}
	return s
}

// act says for what an act of the present step is.
func (r *run) act(name string, bound time.Duration) activities.Act {
	return activities.Act{OperationID: r.in.OperationID, NodeID: r.job.NodeID, Step: name, Actor: r.job.RequestedBy,
		Key: strconv.Itoa(r.mem.Retries), Bound: bound, Away: r.job.Waits.BMCAway, Once: r.forced()}
}

// here is act for the present step.
func (r *run) here(bound time.Duration) activities.Act { return r.act(r.mem.Step, bound) }

// powerBound bounds changes of power with n waits for a state.
func (r *run) powerBound(n int) time.Duration {
	return time.Duration(n)*r.job.Waits.PowerChange + actSlack
}

// bmcAct runs an act on the BMC under its profile.
func bmcAct[T any](ctx workflow.Context, activity any, a activities.Act, in any) (T, error) {
	var out T
	err := workflow.ExecuteActivity(acting(ctx, a.Bound), activity, in).Get(ctx, &out)
	return out, err
}

// setPower changes the power.
func (r *run) setPower(ctx workflow.Context, aim activities.PowerAim, bound time.Duration) (string, error) {
	a := r.here(bound)
	out, err := bmcAct[activities.PowerOut](ctx, act.SetPower, a, activities.PowerIn{Act: a, Aim: aim})
	return out.Detail, err
}

// switchOff switches the machine off, gracefully first.
func switchOff(ctx workflow.Context, r *run) (string, error) { return r.off(ctx, r.job.Waits.Graceful) }

// stayOff switches a machine off that ran our image, which needs no grace.
func stayOff(ctx workflow.Context, r *run) (string, error) { return r.off(ctx, 0) }

func (r *run) off(ctx workflow.Context, graceful time.Duration) (string, error) {
	a := r.here(r.powerBound(1) + graceful)
	out, err := bmcAct[activities.PowerOut](ctx, act.SwitchOff, a, activities.SwitchOffIn{Act: a, Graceful: graceful})
	return out.Detail, err
}

func clearBoot(ctx workflow.Context, r *run) (string, error) {
	a := r.here(longBMCBound)
	detail, err := bmcAct[string](ctx, act.ClearBoot, a, a)
	if err == nil {
		r.mem.Touched = false
	}
	return detail, err
}

func revokeIdentity(ctx workflow.Context, r *run) (string, error) {
	return "certificates revoked, generation raised", write(ctx, record.RevokeIdentity, activities.OperationIn{OperationID: r.in.OperationID})
}
