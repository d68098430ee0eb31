package linux

import (
	"context"

	"github.com/bettercompute/compute/fleet"
)

// ApplySpec brings a NodeSpec about: labels and taints are the control plane's
// own, SSH is not built into this agent.
func (h *Host) ApplySpec(_ context.Context, spec fleet.NodeSpec) (string, error) {
	if spec.SSH != nil {
		return "", notBuilt("SSH certificates")
	}
	return "", nil
}

// RemoveSpec takes back what ApplySpec set up, which is nothing.
func (h *Host) RemoveSpec(context.Context) error { return nil }
