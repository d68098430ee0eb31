package redfish

import (
	"context"
	"encoding/json"
	"net"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish/common"
	"github.com/stmcginnis/gofish/redfish"

	"github.com/bettercompute/compute/fleet"
)

// cleanMAC is a MAC in lower case with colons, "" for what is none.
func cleanMAC(s string) string {
	hw, err := net.ParseMAC(strings.TrimSpace(s))
	if err != nil || len(hw) != 6 || strings.Trim(hw.String(), "0:") == "" || strings.Trim(hw.String(), "f:") == "" {
		return ""
	}
	return hw.String()
}

// nic makes one of an interface; false for one that is not there in hardware.
func nic(res resource, e *redfish.EthernetInterface) (fleet.NIC, bool) {
	var more struct {
		EthernetInterfaceType string
		LinkStatus            *string
		PermanentMACAddress   string
	}
	_ = json.Unmarshal(res.raw, &more) // members of another shape say nothing
	if more.EthernetInterfaceType == "Virtual" {
		return fleet.NIC{}, false
	}
	n := fleet.NIC{MAC: cleanMAC(more.PermanentMACAddress), Name: clean(e.Name), SpeedMbps: max(0, e.SpeedMbps)}
	if n.MAC == "" {
		n.MAC = cleanMAC(e.MACAddress)
	}
	if n.Name == "" || n.Name == "Ethernet Interface" {
		n.Name = e.ID
	}
	if more.LinkStatus != nil {
		up := *more.LinkStatus == string(redfish.LinkUpLinkStatus)
		n.LinkUp = &up
	}
	return n, true
}

// nics reads the interfaces of one system.
func (c *Client) nics(ctx context.Context, s system) ([]fleet.NIC, error) {
	r := &inventoryRun{c: c, systems: []system{s}}
	err := r.interfaces(ctx)
	return r.inv.NICs, err
}

func (r *inventoryRun) interfaces(ctx context.Context) error {
	for _, s := range r.systems {
		err := each(ctx, r, s.more.EthernetInterfaces, "network interfaces", func(res resource, e *redfish.EthernetInterface) {
			if n, ok := nic(res, e); ok {
				r.addNIC(n)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// addNIC adds a NIC. A MAC that is shown twice is one NIC; which of the two
// names is right is not known, so the first stays.
func (r *inventoryRun) addNIC(n fleet.NIC) {
	i := slices.IndexFunc(r.inv.NICs, func(o fleet.NIC) bool { return n.MAC != "" && o.MAC == n.MAC })
	if i < 0 {
		r.inv.NICs = append(r.inv.NICs, n)
		return
	}
	known := &r.inv.NICs[i]
	if known.Name != n.Name && n.Name != "" {
		r.missing("MAC of %s: it is shown with that of %s", n.Name, known.Name)
	}
}

func (r *inventoryRun) network(ctx context.Context) error {
	if err := r.interfaces(ctx); err != nil {
		return err
	}
	var found []adapter
	for _, ch := range r.chassis {
		err := each(ctx, r, ch.more.NetworkAdapters, "network adapters", func(res resource, a *redfish.NetworkAdapter) {
			if a.Status.State == common.AbsentState {
				return
			}
			r.inv.PCIDevices = append(r.inv.PCIDevices, fleet.Device{Vendor: clean(a.Manufacturer), Model: clean(a.Model),
				Serial: cleanSerial(a.SerialNumber), Slot: clean(a.ID), Kind: "nic", Health: string(a.Status.Health)})
			ad := adapter{name: clean(a.Name)}
			_ = json.Unmarshal(res.raw, &ad.links) // an adapter without links has no ports
			found = append(found, ad)
		})
		if err != nil {
			return err
		}
	}
	for _, a := range found {
		if err := r.ports(ctx, a); err != nil {
			return err
		}
	}
	slices.SortStableFunc(r.inv.NICs, func(a, b fleet.NIC) int { return strings.Compare(a.Name, b.Name) })
	for _, n := range r.inv.NICs {
		if n.MAC == "" {
			r.missing("MAC of %s", n.Name)
		}
	}
	if len(r.inv.NICs) == 0 {
		r.missing("network interfaces: the service shows none with a MAC")
	}
	return nil
}

// adapter is a network adapter whose ports are still to be read.
type adapter struct {
	name  string
	links struct{ Ports, NetworkPorts, NetworkDeviceFunctions common.Link }
}

// port is a port of either schema, or a function of an adapter.
type port struct {
	ID                         string `json:"Id"`
	AssociatedNetworkAddresses []string
	CurrentSpeedGbps           *float64
	CurrentLinkSpeedMbps       *int
	LinkStatus                 *string
	DeviceEnabled              *bool
	Ethernet                   struct {
		PermanentMACAddress, MACAddress string
		AssociatedMACAddresses          []string
	}
}

// ports adds the MACs of an adapter's ports, or, where those show none, of its
// functions that are in use.
func (r *inventoryRun) ports(ctx context.Context, a adapter) error {
	seen := false
	add := func(_ resource, p *port) {
		if p.DeviceEnabled != nil && !*p.DeviceEnabled {
			return
		}
		macs := append([]string{p.Ethernet.PermanentMACAddress, p.Ethernet.MACAddress}, p.Ethernet.AssociatedMACAddresses...)
		for _, m := range append(macs, p.AssociatedNetworkAddresses...) {
			mac := cleanMAC(m)
			if mac == "" {
				continue
			}
			seen = true
			if !slices.ContainsFunc(r.inv.NICs, func(n fleet.NIC) bool { return n.MAC == mac }) {
				r.inv.NICs = append(r.inv.NICs, p.nic(mac, a.name+" "+p.ID))
			}
			return // one port, one NIC
		}
	}
	for _, l := range []common.Link{a.links.Ports, a.links.NetworkPorts, a.links.NetworkDeviceFunctions} {
		if seen {
			break
		}
		if err := each(ctx, r, l, "ports of "+a.name, add); err != nil {
			return err
		}
	}
	if !seen {
		r.missing("MACs of network adapter %s", a.name)
	}
	return nil
}

func (p *port) nic(mac, name string) fleet.NIC {
	n := fleet.NIC{MAC: mac, Name: name}
	if p.CurrentLinkSpeedMbps != nil {
		n.SpeedMbps = max(0, *p.CurrentLinkSpeedMbps)
	}
	if p.CurrentSpeedGbps != nil {
		n.SpeedMbps = max(0, int(*p.CurrentSpeedGbps*1000))
	}
	if p.LinkStatus != nil {
		up := *p.LinkStatus == "LinkUp" || *p.LinkStatus == "Up"
		n.LinkUp = &up
	}
	return n
}
