package ipmi

import (
	"context"
	"fmt"

	"github.com/bettercompute/compute/bmc"
)

var _ bmc.Surveyor = (*Client)(nil)

// The privilege limits of Get Session Info and Set Session Privilege Level
// (IPMI 2.0, table 22-31).
var privileges = map[byte]string{1: "callback", 2: "user", 3: "operator", 4: "administrator", 5: "OEM"}

// Survey reads how the BMC does things over IPMI.
func (c *Client) Survey(ctx context.Context) (bmc.Survey, error) {
	out := bmc.Survey{Protocol: "IPMI 2.0", Login: fmt.Sprintf("cipher suite %d", c.tool.suite), Sessions: -1}
	// Get Session Info of the present session: handle, possible and active
	// sessions, then the user, its privilege and the channel.
	data, err := c.tool.raw(ctx, false, "read the session of "+c.tool.name(), 0x06, 0x3d, 0x00)
	switch {
	case codeOf(err) != 0: // a BMC without the command shows none of it
	case err != nil:
		return out, explain("read the session of "+c.tool.name(), err)
	case len(data) >= 5:
		out.Sessions = int(data[2] & 0x3f)
		out.Privilege = privileges[data[4]&0x0f]
	}
	return out, nil
}
