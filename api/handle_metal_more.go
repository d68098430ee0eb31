package api

import (
	"context"
	"net/url"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// isoInput refuses what a deploy of an ISO does not take: it is booted,
// not written.
func isoInput(in fleet.MetalDeployIn) error {
	if in.Image.Format != "iso" {
		return nil
	}
	e := fleet.Errorf(fleet.CodeInvalidInput, "", "an ISO is booted, not written: it takes no configuration and confirms nothing but its boot")
	bad := func(given bool, field, constraint string) {
		if given {
			e.Fields = append(e.Fields, fleet.FieldError{Field: field, Constraint: constraint})
		}
	}
	bad(in.Expect != "" && in.Expect != "boot", "expect", "boot with format iso")
	bad(in.Hostname != nil, "hostname", "absent with format iso")
	bad(len(in.SSHKeys) > 0, "sshKeys", "absent with format iso")
	bad(in.UserData != nil, "userData", "absent with format iso")
	bad(in.NetworkData != nil, "networkData", "absent with format iso")
	bad(in.RootDevice != nil, "rootDevice", "absent with format iso")
	bad(in.BootVia == "pxe", "bootVia", "virtualMedia or httpBoot with format iso")
	if len(e.Fields) == 0 {
		return nil
	}
	return e
}

// bootVia checks that the machine, or the site, offers the way to boot.
func bootVia(via string, iso bool, caps fleet.Capabilities, site fleet.SiteSpec) error {
	pxe := site.Boot != nil && site.Boot.PXE && !iso
	offered := map[string]bool{"virtualMedia": caps.VirtualMedia, "httpBoot": caps.HTTPBoot, "pxe": pxe}
	if via == "" && (caps.VirtualMedia || caps.HTTPBoot || pxe) || offered[via] {
		return nil
	}
	if via == "" {
		return fleet.Errorf(fleet.CodeUnsupported, "no-way-to-boot", "the machine offers neither virtual media nor HTTP boot, and the site has no PXE of its own")
	}
	return fleet.Errorf(fleet.CodeUnsupported, "boot-via", "bootVia: %s is not offered by this machine or site; leave it out to use what is", via)
}

// deployInput checks what needs no row of metal/deploy.
func deployInput(in fleet.MetalDeployIn) error {
	if _, err := url.Parse(in.Image.URL); err != nil {
		return fleet.Invalid("image.url", "an http or https URL")
	}
	return isoInput(in)
}

func metalDeploy(ctx context.Context, c *Call, in fleet.MetalDeployIn) (fleet.MetalOperationOut, error) {
	iso := in.Image.Format == "iso"
	if in.Expect == "" {
		in.Expect = "report"
		if iso {
			in.Expect = "boot"
		}
	}
	u, err := url.Parse(in.Image.URL)
	if err != nil {
		return fleet.MetalOperationOut{}, fleet.Invalid("image.url", "an http or https URL")
	}
	// The whole URL is sealed: its query, and a password in it, are credentials.
	secrets := map[string]string{fleet.SecretImageURL: in.Image.URL}
	if in.UserData != nil {
		secrets[fleet.SecretUserData] = *in.UserData
	}
	if in.NetworkData != nil {
		secrets[fleet.SecretNetworkData] = *in.NetworkData
	}
	u.RawQuery, u.Fragment, u.User = "", "", nil
	stored := in
	stored.Image.URL, stored.UserData, stored.NetworkData = u.String(), nil, nil
	return runVerb(ctx, c, verbCall{in: in.VerbIn, ask: fleet.Ask{Verb: fleet.VerbDeploy}, stored: stored, secrets: secrets, steps: fleet.StepsAsk{ISO: iso},
		input: func(ctx context.Context, tx pgx.Tx, node fleet.MetalNode) error {
			site, err := store.LoadSite(ctx, tx, node.TenantID, node.SiteID)
			if err == nil && in.Expect == "session" && (site.Boot == nil || !site.Boot.InstallAgent) {
				return fleet.Errorf(fleet.CodeUnsupported, "no-agents",
					"expect: session waits for nodeagent on the installed system, and this site gives none a token to join by: set boot.installAgent on it (sites/update), or use report or boot")
			}
			if err != nil || node.BMC == nil || node.BMC.CheckedAt == nil {
				return err // what the machine offers is not known yet; its state is judged next
			}
			return bootVia(in.BootVia, iso, node.BMC.Capabilities, site.SiteSpec)
		}})
}

func metalSetCredentials(ctx context.Context, c *Call, in fleet.MetalSetCredentialsIn) (fleet.MetalOperationOut, error) {
	stored := in
	stored.Password = ""
	return runVerb(ctx, c, verbCall{in: in.VerbIn, ask: fleet.Ask{Verb: fleet.VerbSetCredentials}, stored: stored,
		secrets: map[string]string{fleet.SecretPassword: in.Password}, steps: fleet.StepsAsk{Rotate: in.Rotate},
		input: func(_ context.Context, _ pgx.Tx, node fleet.MetalNode) error {
			if err := ipmiLimits(driverOf(node), in.Username, in.Password, ""); err != nil || !in.Rotate {
				return err
			}
			return canRotate(node)
		}})
}

// driverOf is the driver by which a node's BMC is talked to, as far as it is
// known.
func driverOf(node fleet.MetalNode) string {
	if node.BMC == nil {
		return ""
	}
	if node.BMC.Capabilities.Driver != "" {
		return node.BMC.Capabilities.Driver
	}
	return node.BMC.Driver
}

// canRotate refuses to change a password over IPMI: it would have to be put on
// a command line.
func canRotate(node fleet.MetalNode) error {
	if driverOf(node) != "ipmi" {
		return nil
	}
	return fleet.Errorf(fleet.CodeUnsupported, "rotate-over-ipmi",
		"the password of a BMC behind IPMI is not rotated: change it on the BMC and record it with metal/setCredentials without rotate")
}

// operationPermission is what retry and abort are decided as: the verb of the
// node's present operation.
func (c *Call) operationPermission(nodeID string) func(ctx context.Context, tx pgx.Tx) ([]fleet.Permission, error) {
	return func(ctx context.Context, tx pgx.Tx) ([]fleet.Permission, error) {
		s, err := store.LoadSituation(ctx, tx, nodeID)
		if err != nil {
			return nil, err
		}
		op := s.Live
		if op == nil {
			op = s.Parked
		}
		if op == nil {
			// Nothing to decide by: who may not even read is denied, the rest is told
			// the state.
			return []fleet.Permission{fleet.PermMetalRead}, nil
		}
		m, ok := fleet.FindMethod("metal", string(op.Verb))
		if !ok {
			return []fleet.Permission{fleet.PermNodesProvision}, nil
		}
		return []fleet.Permission{m.Permission}, nil
	}
}

// steer is what retry and abort share.
func steer(ctx context.Context, c *Call, in fleet.VerbIn, verb fleet.Verb,
	change func(ctx context.Context, tx pgx.Tx) (fleet.MetalOperationOut, error)) (fleet.MetalOperationOut, error) {
	var situation fleet.Situation
	m := Mutation[fleet.MetalOperationOut]{
		NodeID: in.NodeID, Find: c.OnNode(in.NodeID), Permissions: c.operationPermission(in.NodeID), Lock: LockNode(in.NodeID),
		Version: in.Version, Present: NodeVersion(in.NodeID),
		Judge: func(ctx context.Context, tx pgx.Tx) (err error) {
			situation, err = judge(ctx, tx, in.NodeID, fleet.Ask{Verb: verb, Reason: text(in.Reason)})
			return err
		},
		Change: change,
	}
	if in.DryRun {
		m.DryRun = func(ctx context.Context, tx pgx.Tx) (fleet.MetalOperationOut, error) {
			node, err := store.LoadMetal(ctx, tx, in.NodeID)
			if err != nil {
				return fleet.MetalOperationOut{}, err
			}
			if verb == fleet.VerbAbort {
				would := fleet.Failed
				if situation.Live != nil && fleet.FailsFrom[situation.Live.Verb] == "" {
					would = node.ProvisionState
				}
				return fleet.MetalOperationOut{Node: &node, Plan: &fleet.Plan{Steps: []fleet.PlanStep{}, WouldBe: would}}, nil
			}
			return planned(ctx, tx, node, fleet.StepsAsk{Verb: situation.Parked.Verb}, situation.Parked.Verb)
		}
	}
	return Mutate(ctx, c, m)
}

func metalRetry(ctx context.Context, c *Call, in fleet.MetalVerbIn) (fleet.MetalOperationOut, error) {
	return steer(ctx, c, in.VerbIn, fleet.VerbRetry, func(ctx context.Context, tx pgx.Tx) (fleet.MetalOperationOut, error) {
		id, _, err := store.RetryParked(ctx, tx, in.NodeID, c.Identity)
		if err != nil {
			return fleet.MetalOperationOut{}, err
		}
		return c.verbAnswer(ctx, tx, in.NodeID, id, "node.operation.retried", because(in.Reason, nil))
	})
}

func metalAbort(ctx context.Context, c *Call, in fleet.MetalVerbIn) (fleet.MetalOperationOut, error) {
	return steer(ctx, c, in.VerbIn, fleet.VerbAbort, func(ctx context.Context, tx pgx.Tx) (fleet.MetalOperationOut, error) {
		id, err := c.Store().RequestAbort(ctx, tx, in.NodeID, c.Identity)
		if err != nil {
			return fleet.MetalOperationOut{}, err
		}
		return c.verbAnswer(ctx, tx, in.NodeID, id, "node.operation.abort-requested", because(in.Reason, nil))
	})
}
