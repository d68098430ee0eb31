package bmc

import (
	"fmt"
	"strings"

	"github.com/bettercompute/compute/fleet"
)

// CompareIdentity fails when what a BMC shows is another machine than the
// recorded one (KindWrongMachine), or shows nothing by which to tell
// (KindBusy: a BMC that starts has not read its machine yet). A nil or empty
// record compares to anything.
func CompareIdentity(doing string, want *fleet.BMCIdentity, is fleet.BMCIdentity) error {
	if want == nil {
		return nil
	}
	known, compared := false, false
	if recorded, proves := fleet.ProvingUUID(want.UUID); proves {
		known = true
		if shown, ok := fleet.ProvingUUID(is.UUID); ok {
			compared = true
			if !fleet.SameUUID(recorded, shown) {
				return stranger(doing, is, "UUID", shown, recorded)
			}
		}
	}
	if want.Serial != "" {
		known = true
		if is.Serial != "" {
			compared = true
			if !strings.EqualFold(is.Serial, want.Serial) {
				return stranger(doing, is, "serial", is.Serial, want.Serial)
			}
		}
	}
	if known && !compared {
		return &Error{Kind: KindBusy, Doing: doing, Cause: "the BMC shows neither UUID nor serial now, so nothing was changed",
			Remedy: "wait until the BMC has read its machine"}
	}
	return nil
}

func stranger(doing string, machine fleet.BMCIdentity, what, is, want string) error {
	return &Error{Kind: KindWrongMachine, Doing: doing, ShownIdentity: &machine, Cause: fmt.Sprintf("its %s is %s, recorded is %s; nothing was changed", what, is, want),
		Remedy: "check the address; after a board was replaced, computectl metal accept-identities (metal/update acceptIdentity), then retry"}
}
