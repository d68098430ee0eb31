package linux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	ipmi "github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/bettercompute/compute/fleet"
)

// bmcPatience bounds the talk with the machine's own BMC: a hung one answers its
// system interface late or never, and the rest of the inventory is not to wait.
const bmcPatience = 20 * time.Second

// lanChannels are the channel numbers that a BMC can have its network at (IPMI
// 2.0 table 6-1; 1 almost everywhere, 2, 3 or 8 on some).
const lanChannels = 11

// bmc is where the machine's own BMC is found, asked over the system interface:
// no account is needed there. nil where the machine cannot tell.
func (h *Host) bmc(ctx context.Context, r *reader) *fleet.BMCLAN {
	open := h.IPMI
	if open == nil {
		open = systemInterface
		if !r.ipmiDevice() {
			r.miss("BMC address: there is no IPMI device (a machine without a BMC, or modprobe ipmi_si ipmi_devintf)")
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, bmcPatience)
	defer cancel()
	type answer struct {
		lan *fleet.BMCLAN
		err error
	}
	done := make(chan answer, 1) // the library's calls into the kernel do not end with ctx
	go func() {
		lan, err := askBMC(ctx, open)
		done <- answer{lan, err}
	}()
	var a answer
	select {
	case a = <-done:
	case <-ctx.Done():
	}
	switch {
	case a.lan == nil && ctx.Err() != nil:
		r.miss("BMC address: the BMC did not answer its system interface in time")
	case a.err != nil:
		r.miss("BMC address: %v", a.err)
	}
	return a.lan
}

// ipmiDevice says whether the kernel offers a way to the BMC.
func (r *reader) ipmiDevice() bool {
	for _, name := range []string{"dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0"} {
		if _, err := os.Stat(filepath.Join(r.root, name)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// systemInterface is the way to the BMC through the kernel's driver.
func systemInterface() (*ipmi.Client, error) { return ipmi.NewOpenClient() }

// askBMC finds the first network channel with an address.
func askBMC(ctx context.Context, open func() (*ipmi.Client, error)) (*fleet.BMCLAN, error) {
	c, err := open()
	if err != nil {
		return nil, fmt.Errorf("open the system interface: %w", err)
	}
	if err := c.Connect(ctx); err != nil {
		return nil, fmt.Errorf("open the system interface: %w", err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	var last error
	for channel := uint8(1); channel <= lanChannels && ctx.Err() == nil; channel++ {
		info, err := c.GetChannelInfo(ctx, channel)
		if err != nil || info.ChannelMedium != types.ChannelMediumLAN {
			continue // a number without a channel is answered as an error
		}
		lan, err := lanOf(ctx, c, channel)
		if lan != nil {
			return lan, nil
		}
		last = err
	}
	if last == nil {
		last = errors.New("the BMC names no network channel with an address")
	}
	return nil, last
}

// lanOf reads one channel; nil when it has no address.
func lanOf(ctx context.Context, c *ipmi.Client, channel uint8) (*fleet.BMCLAN, error) {
	var ip types.LanConfigParam_IP
	if err := c.GetLanConfigParamFor(ctx, channel, &ip); err != nil {
		return nil, fmt.Errorf("read the address of channel %d: %w", channel, err)
	}
	address := ip.IP
	if !routed(address) {
		if address = ipv6Of(ctx, c, channel); address == nil {
			return nil, nil
		}
	}
	lan := &fleet.BMCLAN{Address: address.String()}
	var mac types.LanConfigParam_MAC
	if err := c.GetLanConfigParamFor(ctx, channel, &mac); err == nil {
		lan.MAC = mac.MAC.String()
	}
	return lan, nil
}

// ipv6Of is a channel's own IPv6 address; nil where it has none, which a BMC
// without IPv6 says by refusing the parameter.
func ipv6Of(ctx context.Context, c *ipmi.Client, channel uint8) net.IP {
	var static types.LanConfigParam_IPv6StaticAddress
	if err := c.GetLanConfigParamFor(ctx, channel, &static); err == nil && static.Enabled && routed(static.IPv6) {
		return static.IPv6
	}
	var dynamic types.LanConfigParam_IPv6DynamicAddress
	if err := c.GetLanConfigParamFor(ctx, channel, &dynamic); err == nil && routed(dynamic.IPv6) {
		return dynamic.IPv6
	}
	return nil
}

// routed says whether an address can be reached from elsewhere.
func routed(ip net.IP) bool { return len(ip) > 0 && ip.IsGlobalUnicast() }
