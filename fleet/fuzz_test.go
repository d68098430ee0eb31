package fleet_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/bettercompute/compute/fleet"
)

// FuzzParseBMCAddress: an address that is taken is written so that it is read
// as the same again, and holds nothing that a header, a URL or a command line
// could take for something else.
func FuzzParseBMCAddress(f *testing.F) {
	for _, s := range []string{"https://bmc1/redfish/v1/Systems/1", "ipmi://[2001:db8::1]:6230", "10.0.0.5:8443", "idrac-virtualmedia://h/redfish/v1/Systems/System.1",
		"http://h:80", "::ffff:10.0.0.5", "https://user:secret@h", "https://h/\r\nX: y", "ipmi://-oProxyCommand", "https://h?x#y", "[::1%25lo]", "https://h/%2e%2e/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := fleet.ParseBMCAddress(s)
		if err != nil {
			return
		}
		again, err := fleet.ParseBMCAddress(a.String())
		if err != nil || again.String() != a.String() || again.HostPort() != a.HostPort() {
			t.Fatalf("%q is %+v, written %q, read again as %+v, %v", s, a, a.String(), again, err)
		}
		if strings.ContainsAny(a.Host, " \t\r\n/@?#%'\"\\") || strings.HasPrefix(a.Host, "-") || a.Host == "" || a.Port < 1 || a.Port > 65535 {
			t.Fatalf("%q gives host %q, port %d", s, a.Host, a.Port)
		}
		if ip, ok := a.IP(); ok {
			if parsed, err := netip.ParseAddr(a.Host); err != nil || parsed.Unmap() != ip.Unmap() {
				t.Fatalf("%q: %s is not %s", s, a.Host, ip)
			}
		}
	})
}

// FuzzPatterns: ids, label keys and cursors that match are what they are said
// to be in every character: no line break slips through at an end.
func FuzzPatterns(f *testing.F) {
	for _, s := range []string{"node_01jd00000000000000000000aa", "node_01jd00000000000000000000aa\n", "a/b", "a", "-a", "1:2", "node_"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for name := range fleet.Patterns {
			if !fleet.MatchPattern(name, s) {
				continue
			}
			switch name {
			case "nodeId", "siteId", "labelKey", "eventCursor", "cursor", "tenantId", "poolRef", "joinTokenId":
				for _, r := range s {
					if r > '~' || r <= ' ' {
						t.Fatalf("%s takes %q", name, s)
					}
				}
			}
		}
	})
}
