// Package open opens a BMC with the driver that it takes.
package open

import (
	"context"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/redfish"
)

// Open opens a BMC with the named driver; auto is Redfish.
func Open(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Client, error) {
	if target.Driver == "ipmi" || target.Address.Scheme == "ipmi" {
		return nil, &bmc.Error{Kind: bmc.KindUnsupported, Doing: "open " + target.Address.String(), Cause: "this build has no IPMI driver",
			Remedy: "use the BMC's Redfish service"}
	}
	c, err := redfish.Open(ctx, target, opts)
	if err != nil {
		return nil, err
	}
	return c, nil
}
