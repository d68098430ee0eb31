package ipmi

import (
	"errors"
	"fmt"

	"github.com/bettercompute/compute/bmc"
)

// The completion codes that decide (IPMI 2.0, table 5-2).
const (
	codeNodeBusy      = 0xc0
	codeInvalid       = 0xc1
	codeInvalidForLUN = 0xc2
	codeTimeout       = 0xc3
	codeOutOfSpace    = 0xc4
	codeNoResponse    = 0xce
	codeInUpdate      = 0xd1
	codeInInit        = 0xd2
	codePrivilege     = 0xd4
	codeWrongState    = 0xd5
	codeDisabled      = 0xd6
	codeParameter     = 0x80 // of boot options: parameter not supported
)

// codeOf is the completion code of an error, 0 when it is none.
func codeOf(err error) byte {
	var c *completion
	if errors.As(err, &c) {
		return c.code
	}
	return 0
}

// explain makes a *bmc.Error of an error of the tool. Wrong state is busy: what
// is read decides, and then time.
func explain(doing string, err error) error {
	var c *completion
	var refused *cipherRefused
	var role *roleRefused
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return &bmc.Error{Kind: bmc.KindUnsupported, Doing: doing, Cause: refused.Error(), Remedy: "allow another suite in bmc.ipmi.cipherSuites", Err: err}
	case errors.As(err, &role):
		return &bmc.Error{Kind: bmc.KindAuth, Doing: doing, Cause: role.Error(), Remedy: "give the account the privilege operator or administrator on the LAN channel", Err: err, Unsent: true}
	case !errors.As(err, &c):
		return err
	}
	e := &bmc.Error{Kind: bmc.KindRefused, Doing: doing, Cause: c.Error(), Remedy: "look at the BMC's event log for why",
		MessageID: fmt.Sprintf("0x%02x", c.code), Err: err}
	switch c.code {
	case codeNodeBusy, codeTimeout, codeNoResponse, codeInUpdate, codeInInit, codeWrongState, codeOutOfSpace:
		e.Kind, e.Remedy = bmc.KindBusy, "wait until the BMC is ready; it is tried again"
	case codeInvalid, codeInvalidForLUN, codeDisabled:
		e.Kind, e.Remedy = bmc.KindUnsupported, "see whether the BMC offers this over Redfish"
	case codePrivilege:
		e.Kind, e.Remedy = bmc.KindAuth, "give the account the privilege operator or administrator on the LAN channel"
	}
	return e
}
