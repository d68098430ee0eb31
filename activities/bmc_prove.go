package activities

import (
	"context"
	"fmt"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// ProveBMC reads who a BMC's machine is and compares it with what the host's
// agent reported. Only a BMC that is proved to be the host's is recorded;
// nothing is changed on it.
func (a *BMC) ProveBMC(ctx context.Context, in Act) (IdentifyOut, error) {
	var out IdentifyOut
	err := a.read(ctx, in, func(ctx context.Context, c bmc.Client) error {
		f, err := c.Identify(ctx)
		if err != nil {
			return err
		}
		joined, err := a.Nodes.JoinedHardware(ctx, in.NodeID)
		if err != nil {
			return err
		}
		inv, err := c.Inventory(ctx)
		if err != nil && bmc.KindOf(err) != bmc.KindUnsupported {
			return err
		}
		by, fault := proveBMC(joined, f.Identity, nicMACs(&inv))
		if fault != "" {
			return NewReason(CodeNoProof, "%s", fault)
		}
		if err := a.Nodes.RecordFound(ctx, in.OperationID, f, f.Capabilities.Driver); err != nil {
			return err
		}
		out = IdentifyOut{Power: f.Power, Detail: "it is this host's, by its " + by + "; " + describeFound(f)}
		return a.showWorking(ctx, in.NodeID)
	})
	return out, err
}

// proveBMC says by what a BMC is proved to be of the host that joined, or why it
// is not. UUIDs that both prove something decide; else the addresses of the
// network ports do.
func proveBMC(joined fleet.Hardware, of fleet.BMCIdentity, macs []string) (by, fault string) {
	host, hostProves := fleet.ProvingUUID(joined.UUID)
	machine, machineProves := fleet.ProvingUUID(of.UUID)
	switch {
	case hostProves && machineProves && (host == machine || host == fleet.SwapUUID(machine)):
		return "UUID " + host, ""
	case hostProves && machineProves:
		return "", fmt.Sprintf("the BMC's machine has the UUID %s; the host's agent reported %s", machine, host)
	case fleet.SameMACs(joined.MACs, macs):
		return fmt.Sprintf("%d network addresses", len(fleet.UniversalMACs(macs))), ""
	}
	return "", fmt.Sprintf("the BMC's UUID %q and the host's %q prove nothing, and their network addresses are not the same machine's (BMC: %d known, agent: %d)",
		of.UUID, joined.UUID, len(fleet.UniversalMACs(macs)), len(fleet.UniversalMACs(joined.MACs)))
}
