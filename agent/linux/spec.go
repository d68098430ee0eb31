package linux

import (
	"context"

	"github.com/bettercompute/compute/fleet"
)

// ApplySpec brings about what a NodeSpec asks of the host: who may log in by
// certificate. Labels and taints concern placement alone.
func (h *Host) ApplySpec(ctx context.Context, spec fleet.NodeSpec) (conflict string, err error) {
	return h.SSHD.Apply(ctx, spec)
}

// RemoveSpec takes back what ApplySpec set up.
func (h *Host) RemoveSpec(ctx context.Context) error { return h.SSHD.Remove(ctx) }
