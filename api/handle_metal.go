package api

import (
	"context"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

func registerMetal(r *Registry) {
	Handle(r, "metal", "list", metalList, paged(metalPage))
	Handle(r, "metal", "get", metalGet)
	Handle(r, "metal", "table", metalTable)
	Handle(r, "metal", "enroll", metalEnroll, enrollInput)
	Handle(r, "metal", "update", metalUpdate, updateInput)
	Handle(r, "metal", "setCredentials", metalSetCredentials)
	Handle(r, "metal", "inspect", metalInspect)
	Handle(r, "metal", "commission", metalCommission)
	Handle(r, "metal", "deploy", metalDeploy, deployInput)
	Handle(r, "metal", "rescue", metalRescue)
	Handle(r, "metal", "unrescue", metalUnrescue)
	Handle(r, "metal", "release", metalRelease, releaseInput)
	Handle(r, "metal", "retire", metalRetire, retireInput)
	Handle(r, "metal", "retry", metalRetry)
	Handle(r, "metal", "abort", metalAbort)
	Handle(r, "metal", "power", metalPower, powerInput)
	Handle(r, "metal", "manage", metalManage, manageInput)
	Handle(r, "metal", "hold", metalHold, holdInput)
	Handle(r, "metal", "unhold", metalUnhold)
}

// verbCall is what a handler states of a metal verb; runVerb does the rest.
type verbCall struct {
	in  fleet.VerbIn
	ask fleet.Ask
	// stored is the input without secrets, Secrets those that are sealed apart.
	stored  any
	secrets map[string]string
	// input checks the parts of the input that need the row.
	input func(ctx context.Context, tx pgx.Tx, node fleet.MetalNode) error
	// before writes what the operation leans on.
	before func(ctx context.Context, tx pgx.Tx, node fleet.MetalNode) error
	// permissions are needed beside the verb's own.
	permissions []fleet.Permission
	steps       fleet.StepsAsk
	// erase says that the effective erase is decided and stored.
	erase bool
	// data goes into the event.
	data map[string]any
}

// destructive verbs are refused while recovery is pending.
var destructive = []fleet.Verb{fleet.VerbCommission, fleet.VerbDeploy, fleet.VerbRescue, fleet.VerbUnrescue, fleet.VerbRelease, fleet.VerbRetire,
	fleet.VerbPower, fleet.VerbSetCredentials, fleet.VerbRetry}

// runVerb makes the transaction of a metal verb on a node: judged by the
// provision table, it ends what is parked, moves the node, and records the
// operation, its event and the order to Temporal.
func runVerb(ctx context.Context, c *Call, v verbCall) (fleet.MetalOperationOut, error) {
	nodeID := v.in.NodeID
	v.ask.Reason = text(v.in.Reason)
	var node fleet.MetalNode
	var situation fleet.Situation
	m := Mutation[fleet.MetalOperationOut]{
		NodeID: nodeID, Find: c.OnNode(nodeID), Lock: LockNode(nodeID), Version: v.in.Version, Present: NodeVersion(nodeID),
		Permissions: func(context.Context, pgx.Tx) ([]fleet.Permission, error) {
			return append([]fleet.Permission{c.Method.Permission}, v.permissions...), nil
		},
		Input: func(ctx context.Context, tx pgx.Tx) (err error) {
			if node, err = store.LoadMetal(ctx, tx, nodeID); err != nil || v.input == nil {
				return err
			}
			return v.input(ctx, tx, node)
		},
		Judge: func(ctx context.Context, tx pgx.Tx) (err error) {
			if situation, err = judge(ctx, tx, nodeID, v.ask); err != nil {
				return err
			}
			if v.erase {
				v.steps.Erase, err = fleet.EffectiveErase(situation, v.ask)
			}
			return err
		},
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.MetalOperationOut, error) {
			return c.beginVerb(ctx, tx, v, node, situation)
		},
		Made: func(o fleet.MetalOperationOut) string { return o.Operation.ID },
	}
	if v.in.DryRun {
		m.DryRun = func(ctx context.Context, tx pgx.Tx) (fleet.MetalOperationOut, error) {
			return planned(ctx, tx, node, v.planSteps(node, situation), v.ask.Verb)
		}
	}
	return Mutate(ctx, c, m)
}

// judge loads the situation of a locked node and asks the provision table.
func judge(ctx context.Context, tx pgx.Tx, nodeID string, ask fleet.Ask) (fleet.Situation, error) {
	s, err := store.LoadSituation(ctx, tx, nodeID)
	if err != nil {
		return s, err
	}
	if slices.Contains(destructive, ask.Verb) || ask.Verb == fleet.VerbInspect && ask.Mode != "outOfBand" {
		if err := store.RefuseWhileRecovering(ctx, tx); err != nil {
			return s, err
		}
	}
	return s, fleet.Admit(s, ask)
}

func (v verbCall) planSteps(node fleet.MetalNode, s fleet.Situation) fleet.StepsAsk {
	ask := v.steps
	ask.Verb = v.ask.Verb
	ask.Identify = v.ask.Verb == fleet.VerbInspect && s.State == fleet.Failed && s.FailedFrom == fleet.Enrolling
	ask.LeavePower = v.ask.Verb == fleet.VerbRetire && s.MaybeInUse
	return ask
}

// planned is the answer of a dry run. What a step takes is known from machines of
// the same model.
func planned(ctx context.Context, q store.Reader, node fleet.MetalNode, steps fleet.StepsAsk, verb fleet.Verb) (fleet.MetalOperationOut, error) {
	end, moves := fleet.EndsIn[verb]
	if !moves {
		end = node.ProvisionState
	}
	plan := &fleet.Plan{Steps: fleet.StepsOf(steps), WouldBe: end}
	out := fleet.MetalOperationOut{Node: &node, Plan: plan}
	if node.BMC == nil || node.BMC.Identity.Model == "" {
		return out, nil
	}
	names := make([]string, len(plan.Steps))
	for i, s := range plan.Steps {
		names[i] = s.Name
	}
	expected, err := store.ExpectedSeconds(ctx, q, verb, node.BMC.Identity.Model, names)
	for i := range plan.Steps {
		if seconds, known := expected[plan.Steps[i].Name]; known {
			plan.Steps[i].ExpectedSeconds = max(1, int(math.Round(seconds)))
		}
	}
	return out, err
}

// beginVerb writes what an admitted verb changes.
func (c *Call) beginVerb(ctx context.Context, tx pgx.Tx, v verbCall, node fleet.MetalNode, s fleet.Situation) (fleet.MetalOperationOut, error) {
	var out fleet.MetalOperationOut
	op := store.NewOperation{ID: store.NewID(fleet.KindOperation), NodeID: node.ID, TenantID: node.TenantID, Verb: v.ask.Verb, Lane: store.LaneProvision,
		Input: v.stored, Secrets: v.secrets, RequestedBy: c.Identity, Reason: v.ask.Reason}
	if v.erase {
		var err error
		if op.Input, err = store.WithErase(v.stored, v.steps.Erase); err != nil {
			return out, err
		}
	}
	if v.ask.Verb == fleet.VerbInspect {
		var err error
		if op.ReturnTo, err = store.ReturnTo(ctx, tx, node.ID, s); err != nil {
			return out, err
		}
	}
	if fleet.EndsParked(v.ask.Verb) {
		if err := store.EndParked(ctx, tx, node.ID, op.ID); err != nil {
			return out, err
		}
	}
	if v.ask.InUse != nil && !*v.ask.InUse && s.MaybeInUse {
		if err := store.SayFree(ctx, tx, node.ID); err != nil {
			return out, err
		}
	}
	if v.before != nil {
		if err := v.before(ctx, tx, node); err != nil {
			return out, err
		}
	}
	if err := c.Store().InsertOperation(ctx, tx, op); err != nil {
		return out, err
	}
	event := "node.operation.accepted"
	if to, moves := fleet.MovesTo[v.ask.Verb]; moves {
		event = "node.provision." + string(to)
		if _, err := store.MoveNode(ctx, tx, node.ID, to); err != nil {
			return out, err
		}
	}
	return c.verbAnswer(ctx, tx, node.ID, op.ID, event, because(v.in.Reason, withAllocations(v, s)))
}

// withAllocations lists the live allocations that a forced power change hits.
func withAllocations(v verbCall, s fleet.Situation) map[string]any {
	data := map[string]any{"verb": string(v.ask.Verb)}
	for k, val := range v.data {
		data[k] = val
	}
	if len(s.Allocations) > 0 && v.ask.Force {
		data["allocations"] = s.Allocations
	}
	return data
}

// verbAnswer reads node and operation as they are now and writes the event.
func (c *Call) verbAnswer(ctx context.Context, tx pgx.Tx, nodeID, operationID, event string, data map[string]any) (fleet.MetalOperationOut, error) {
	var out fleet.MetalOperationOut
	node, err := store.LoadMetal(ctx, tx, nodeID)
	if err != nil {
		return out, err
	}
	op, err := store.LoadOperation(ctx, tx, operationID)
	if err != nil {
		return out, err
	}
	data["operationId"] = operationID
	out.Node, out.Operation = &node, &op
	return out, c.nodeEvent(ctx, tx, node.Node, event, data)
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func needsReason(given bool, field string, reason *string) error {
	if given && text(reason) == "" {
		return fleet.Invalid("reason", field+" needs a reason")
	}
	return nil
}

func metalInspect(ctx context.Context, c *Call, in fleet.MetalInspectIn) (fleet.MetalOperationOut, error) {
	return runVerb(ctx, c, verbCall{in: in.VerbIn, ask: fleet.Ask{Verb: fleet.VerbInspect, Mode: in.Mode, InUse: in.InUse}, stored: in,
		steps: fleet.StepsAsk{Mode: in.Mode}})
}

func metalCommission(ctx context.Context, c *Call, in fleet.MetalCommissionIn) (fleet.MetalOperationOut, error) {
	return runVerb(ctx, c, verbCall{in: in.VerbIn, ask: fleet.Ask{Verb: fleet.VerbCommission, InUse: in.InUse}, stored: in,
		steps: fleet.StepsAsk{Tests: len(in.Tests) > 0}})
}

func metalRescue(ctx context.Context, c *Call, in fleet.MetalRescueIn) (fleet.MetalOperationOut, error) {
	return runVerb(ctx, c, verbCall{in: in.VerbIn, ask: fleet.Ask{Verb: fleet.VerbRescue}, stored: in})
}

func metalUnrescue(ctx context.Context, c *Call, in fleet.MetalVerbIn) (fleet.MetalOperationOut, error) {
	return runVerb(ctx, c, verbCall{in: in.VerbIn, ask: fleet.Ask{Verb: fleet.VerbUnrescue}, stored: in})
}

func powerInput(in fleet.MetalPowerIn) error { return needsReason(in.Force, "force", in.Reason) }

func metalPower(ctx context.Context, c *Call, in fleet.MetalPowerIn) (fleet.MetalOperationOut, error) {
	return runVerb(ctx, c, verbCall{in: in.VerbIn, ask: fleet.Ask{Verb: fleet.VerbPower, Action: in.Action, Force: in.Force}, stored: in,
		data: map[string]any{"action": in.Action}})
}

func eraseOf(s *string) fleet.EraseMethod { return fleet.EraseMethod(text(s)) }

func releaseInput(in fleet.MetalReleaseIn) error {
	return needsReason(len(in.SkipDisks) > 0, "skipDisks", in.Reason)
}

func metalRelease(ctx context.Context, c *Call, in fleet.MetalReleaseIn) (fleet.MetalOperationOut, error) {
	return runVerb(ctx, c, verbCall{in: in.VerbIn, ask: fleet.Ask{Verb: fleet.VerbRelease, Erase: eraseOf(in.Erase)}, stored: in, erase: true,
		steps: fleet.StepsAsk{Rotate: in.RotateCredentials},
		input: func(_ context.Context, _ pgx.Tx, node fleet.MetalNode) error {
			if in.RotateCredentials {
				return canRotate(node)
			}
			return nil
		}})
}

func retireInput(in fleet.MetalRetireIn) error {
	if err := needsReason(in.Force, "force", in.Reason); err != nil {
		return err
	}
	return needsReason(len(in.SkipDisks) > 0, "skipDisks", in.Reason)
}

func metalRetire(ctx context.Context, c *Call, in fleet.MetalRetireIn) (fleet.MetalOperationOut, error) {
	v := verbCall{in: in.VerbIn, ask: fleet.Ask{Verb: fleet.VerbRetire, Erase: eraseOf(in.Erase), Force: in.Force}, stored: in, erase: true}
	if in.Force {
		v.permissions = []fleet.Permission{fleet.PermMetalRetireForce}
	}
	return runVerb(ctx, c, v)
}

func manageInput(in fleet.MetalManageIn) error {
	address, err := bmcAddress(in.BMC.Address, in.BMC.Driver, "bmc.")
	if err != nil {
		return err
	}
	if err := ipmiLimits(drivenBy(address, in.BMC.Driver), in.BMC.Username, in.BMC.Password, "bmc."); err != nil {
		return err
	}
	return trustInput(address, in.BMC, "bmc.")
}

// metalManage records the BMC together with the operation that proves it: the
// BMC is reached as every other, and forgotten again when that operation ends
// otherwise than well.
func metalManage(ctx context.Context, c *Call, in fleet.MetalManageIn) (fleet.MetalOperationOut, error) {
	address, err := bmcAddress(in.BMC.Address, in.BMC.Driver, "bmc.")
	if err != nil {
		return fleet.MetalOperationOut{}, err
	}
	stored := in
	stored.BMC.Password = ""
	return runVerb(ctx, c, verbCall{in: in.VerbIn, ask: fleet.Ask{Verb: fleet.VerbManage}, stored: stored,
		input: func(ctx context.Context, tx pgx.Tx, node fleet.MetalNode) error {
			site, err := store.LoadSite(ctx, tx, node.TenantID, node.SiteID)
			if err != nil {
				return err
			}
			return inNetworks(address, site.AllowedNetworks, "bmc.address")
		},
		before: func(ctx context.Context, tx pgx.Tx, node fleet.MetalNode) error {
			record, err := c.bmcRecord(node.ID, node.SiteID, in.BMC, address)
			if err != nil {
				return err
			}
			return store.InsertBMC(ctx, tx, record)
		}})
}
