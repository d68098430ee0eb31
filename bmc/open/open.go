// Package open picks the driver for a BMC. It is the only package beside the
// drivers themselves that knows both.
package open

import (
	"context"
	"fmt"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/redfish"
)

// Open opens a BMC with the driver that the target names. With driver auto it
// is Redfish where a Redfish service answers.
func Open(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Client, error) {
	switch target.Driver {
	case "redfish", "auto", "":
		return redfish.Open(ctx, target, opts)
	default:
		return nil, fmt.Errorf("no BMC driver called %q", target.Driver)
	}
}
