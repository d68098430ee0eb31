package activities

import "github.com/bettercompute/compute/bmc"

// What workflows say of power changes and of how an act failed, so that they
// need not know the BMC layer.
type PowerAim = bmc.PowerAim

// The aims and kinds; see bmc.
const (
	AimOn      = bmc.AimOn
	AimSoftOff = bmc.AimSoftOff
	AimReset   = bmc.AimReset
	AimOff     = bmc.AimOff
	AimCycle   = bmc.AimCycle

	KindTimeout     = bmc.KindTimeout
	KindUnsupported = bmc.KindUnsupported
)
