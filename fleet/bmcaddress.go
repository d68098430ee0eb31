package fleet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// BMCAddress is where a BMC answers. The zero value is no address. Two
// spellings of one address parse to the same value, so it can be a key.
type BMCAddress struct {
	// Scheme is https, http or ipmi.
	Scheme string
	// Host is a lower-case DNS name or an IP address without brackets.
	Host string
	// Port is 443, 80 or 623 when none was written.
	Port int
	// System is the path of the ComputerSystem that the address names, such as
	// /redfish/v1/Systems/1, or "". It is not part of String.
	System string
}

// The ports that are left out of the canonical form.
var bmcDefaultPorts = map[string]int{"https": 443, "http": 80, "ipmi": 623}

// bmcSchemes maps what people write in other systems' inventories to what is
// spoken. Each redfish-like scheme may carry +http or +https.
var bmcSchemes = map[string]string{
	"https": "https", "http": "http", "ipmi": "ipmi",
	"redfish": "https", "redfish-virtualmedia": "https", "redfish-uefihttp": "https",
	"idrac-redfish": "https", "idrac-virtualmedia": "https",
	"ilo5-redfish": "https", "ilo5-virtualmedia": "https",
}

// ParseBMCAddress reads an address as it is written for enroll: a URL
// (https://host[:port], redfish://host/redfish/v1/Systems/1,
// redfish+http(s)://, redfish-virtualmedia://, idrac-virtualmedia://,
// ipmi://host[:port]), a bare host, host:port, or an IPv6 address with or
// without brackets. A bare host is canonical as https.
//
// The error says what is wrong without repeating the input, which may hold a
// password.
func ParseBMCAddress(s string) (BMCAddress, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return BMCAddress{}, errors.New("must not be empty")
	}
	scheme, rest, hasScheme := strings.Cut(s, "://")
	if !hasScheme {
		if ip, err := netip.ParseAddr(s); err == nil {
			return bmcAddressOf("https", ip.String(), "", "")
		}
		scheme, rest = "https", s
	}
	spoken, err := bmcScheme(strings.ToLower(scheme))
	if err != nil {
		return BMCAddress{}, err
	}
	u, err := url.Parse("x://" + rest)
	if err != nil {
		return BMCAddress{}, errors.New("is not a URL or host; an IPv6 address with a port is written [address]:port")
	}
	switch {
	case u.User != nil:
		return BMCAddress{}, errors.New("must not hold a user name or password; give them in username and password")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return BMCAddress{}, errors.New("must not hold a query or fragment")
	}
	return bmcAddressOf(spoken, u.Hostname(), u.Port(), u.EscapedPath())
}

func bmcScheme(written string) (string, error) {
	base, transport, has := strings.Cut(written, "+")
	spoken, ok := bmcSchemes[base]
	plain := base == "https" || base == "http" || base == "ipmi"
	if !ok || has && (plain || transport != "http" && transport != "https") {
		return "", errors.New("the scheme must be https, http, ipmi, redfish, redfish+http, redfish+https, redfish-virtualmedia or idrac-virtualmedia")
	}
	if has {
		return transport, nil
	}
	return spoken, nil
}

func bmcAddressOf(scheme, host, port, path string) (BMCAddress, error) {
	a := BMCAddress{Scheme: scheme, Port: bmcDefaultPorts[scheme]}
	var err error
	if a.Host, err = bmcHost(host); err != nil {
		return BMCAddress{}, err
	}
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return BMCAddress{}, errors.New("the port must be a number from 1 to 65535")
		}
		a.Port = int(n)
	}
	a.System, err = bmcSystem(scheme, path)
	if err != nil {
		return BMCAddress{}, err
	}
	return a, nil
}

// bmcHost canonicalizes a host. A name that ends in a number is refused: some
// resolvers read it as an IP address, past a check of literal addresses.
func bmcHost(host string) (string, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.Zone() != "" {
			return "", errors.New("must not hold an IPv6 zone: it means something on one machine only")
		}
		ip = ip.Unmap()
		if ip.IsUnspecified() || ip.IsMulticast() {
			return "", fmt.Errorf("%s is no address of a machine", ip)
		}
		return ip.String(), nil
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if len(name) > 253 || !MatchPattern("hostname", name) {
		return "", errors.New("the host must be a DNS name, an IPv4 address or an IPv6 address")
	}
	last := name[strings.LastIndexByte(name, '.')+1:]
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
		return "", errors.New("the host ends in a number but is not an IPv4 address")
	}
	return name, nil
}

// bmcSystem takes the path of an address as the name of a system; the service
// root itself names none.
func bmcSystem(scheme, path string) (string, error) {
	path = strings.TrimRight(path, "/")
	switch {
	case path == "" || scheme != "ipmi" && (path == "/redfish" || path == "/redfish/v1"):
		return "", nil
	case scheme == "ipmi":
		return "", errors.New("an ipmi address has no path")
	case !strings.HasPrefix(path, "/redfish/v1/"):
		return "", errors.New("the path must be that of a system, such as /redfish/v1/Systems/1")
	}
	for seg := range strings.SplitSeq(path[1:], "/") {
		if seg == "" || seg == "." || seg == ".." {
			return "", errors.New("the path must not hold empty, . or .. segments")
		}
	}
	return path, nil
}

// String is the canonical address without the system: scheme, host and a port
// that is not the scheme's own. "" for the zero value.
func (a BMCAddress) String() string {
	if a.Host == "" {
		return ""
	}
	host := a.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if a.Port != bmcDefaultPorts[a.Scheme] {
		host += ":" + strconv.Itoa(a.Port)
	}
	return a.Scheme + "://" + host
}

// HostPort is what to dial.
func (a BMCAddress) HostPort() string { return net.JoinHostPort(a.Host, strconv.Itoa(a.Port)) }

// IP returns the address when the host is a literal one.
func (a BMCAddress) IP() (netip.Addr, bool) {
	ip, err := netip.ParseAddr(a.Host)
	return ip, err == nil
}
