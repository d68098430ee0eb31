package activities

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/bettercompute/compute/fleet"
)

// Job is what a workflow knows of its operation: ids and choices. Documents
// (inventory, keys, user data) stay in Postgres and are read by the activity
// that needs them.
type Job struct {
	OperationID  string
	NodeID       string
	Verb         fleet.Verb
	State        fleet.ProvisionState
	ReturnTo     fleet.ProvisionState
	RequestedBy  string
	Waits        fleet.Waits
	Ask          Ask
	Capabilities fleet.Capabilities
	// Joins says that installed systems of the site become their nodes.
	Joins bool
	// PXE says that the site boots machines from its own network.
	PXE bool
	// Identified says that enroll's checks passed once.
	Identified bool
	MaybeInUse bool
	EraseOwed  bool
	// HasInventory says that one is recorded; Disks are the serials of its
	// fixed disks.
	HasInventory bool
	Disks        []string
	BMCUsername  string
	// CarriesPassword says that the operation carries a BMC password.
	CarriesPassword bool
	LeftBehind      []string
	Boots           int
	// Done are the steps that ended well or were skipped in an earlier run.
	Done []string
}

// Ask is what the caller chose; which members count depends on the verb.
type Ask struct {
	Action    string
	Force     bool
	Mode      string
	InUse     *bool
	Tests     []string
	Baseline  string
	ISO       bool
	BootVia   string
	Expect    string
	Erase     fleet.EraseMethod
	SkipDisks []string
	Rotate    bool
	Username  string
}

// jobOf cuts work down to what a workflow may carry.
func jobOf(w Work) (Job, error) {
	ask, err := askOf(w)
	if err != nil {
		return Job{}, fmt.Errorf("read the input of operation %s: %w", w.OperationID, err)
	}
	j := Job{
		OperationID: w.OperationID, NodeID: w.NodeID, Verb: w.Verb, State: w.State, ReturnTo: w.ReturnTo, RequestedBy: w.RequestedBy,
		Waits: w.Waits, Ask: ask, Capabilities: w.Capabilities, PXE: w.Site.Boot != nil && w.Site.Boot.PXE, Joins: w.Site.Boot != nil && w.Site.Boot.InstallAgent,
		Identified: w.Capabilities.Driver != "", MaybeInUse: w.MaybeInUse, EraseOwed: w.EraseOwed, HasInventory: w.Inventory != nil,
		Disks: fixedDisks(w.Inventory), BMCUsername: w.BMCUsername, CarriesPassword: slices.Contains(w.Secrets, fleet.SecretPassword),
		LeftBehind: w.LeftBehind, Boots: w.Boots,
	}
	for _, s := range w.Steps {
		if s.State == fleet.StepDone || s.State == fleet.StepSkipped {
			j.Done = append(j.Done, s.Name)
		}
	}
	return j, nil
}

// askOf reads the choices from the verb's stored input.
func askOf(w Work) (Ask, error) {
	var in struct {
		Action           string
		Force            bool
		Mode             string
		InUse            *bool
		Tests            []string
		FirmwareBaseline string
		Image            struct{ Format string }
		BootVia          string
		Expect           string
		SkipDisks        []string
		Rotate           bool
		RotateCredential bool `json:"rotateCredentials"`
		Username         string
	}
	if len(w.Input) > 0 {
		if err := json.Unmarshal(w.Input, &in); err != nil {
			return Ask{}, err
		}
	}
	a := Ask{Action: in.Action, Force: in.Force, Mode: in.Mode, InUse: in.InUse, Tests: in.Tests, Baseline: in.FirmwareBaseline,
		ISO: in.Image.Format == "iso", BootVia: in.BootVia, Expect: in.Expect, Erase: w.Erase, SkipDisks: in.SkipDisks,
		Rotate: in.Rotate || in.RotateCredential, Username: in.Username}
	switch {
	case a.Expect != "" || w.Verb != fleet.VerbDeploy:
	case a.ISO:
		a.Expect = "boot"
	default:
		a.Expect = "report"
	}
	return a, nil
}

// fixedDisks are the serials of the disks that an erase must cover.
func fixedDisks(inv *fleet.Inventory) []string {
	if inv == nil {
		return nil
	}
	var out []string
	for _, d := range inv.Disks {
		if d.Serial != "" && !d.Removable {
			out = append(out, d.Serial)
		}
	}
	slices.SortFunc(out, strings.Compare)
	return slices.Compact(out)
}

// StepsAsk is what the job's steps depend on.
func (j Job) StepsAsk() fleet.StepsAsk {
	return fleet.StepsAsk{Verb: j.Verb, Identify: !j.Identified, Mode: j.Ask.Mode, Tests: len(j.Ask.Tests) > 0, ISO: j.Ask.ISO,
		Erase: j.Ask.Erase, Rotate: j.Ask.Rotate, LeavePower: j.MaybeInUse, LeftBehind: len(j.LeftBehind) > 0 && j.Identified}
}
