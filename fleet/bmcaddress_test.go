package fleet_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/fleet"
)

func TestParseBMCAddress(t *testing.T) {
	t.Parallel()
	const sys = "/redfish/v1/Systems/1"
	for in, want := range map[string]struct{ address, system string }{
		"https://bmc1.example.com":                           {"https://bmc1.example.com", ""},
		"https://BMC1.Example.com./":                         {"https://bmc1.example.com", ""},
		"https://bmc1:443":                                   {"https://bmc1", ""},
		"https://bmc1:8443/redfish/v1/":                      {"https://bmc1:8443", ""},
		"https://bmc1" + sys + "/":                           {"https://bmc1", sys},
		"redfish://10.0.0.5" + sys:                           {"https://10.0.0.5", sys},
		"redfish+http://10.0.0.5:8000" + sys:                 {"http://10.0.0.5:8000", sys},
		"redfish+https://10.0.0.5" + sys:                     {"https://10.0.0.5", sys},
		"redfish-virtualmedia://10.0.0.5" + sys:              {"https://10.0.0.5", sys},
		"redfish-virtualmedia+http://h" + sys:                {"http://h", sys},
		"idrac-virtualmedia://h/redfish/v1/Systems/System.1": {"https://h", "/redfish/v1/Systems/System.1"},
		"ilo5-virtualmedia://h":                              {"https://h", ""},
		"ipmi://10.0.0.5":                                    {"ipmi://10.0.0.5", ""},
		"ipmi://10.0.0.5:6230":                               {"ipmi://10.0.0.5:6230", ""},
		"IPMI://[2001:DB8::0001]":                            {"ipmi://[2001:db8::1]", ""},
		"10.0.0.5":                                           {"https://10.0.0.5", ""},
		"10.0.0.5:8443":                                      {"https://10.0.0.5:8443", ""},
		"2001:db8:0::5":                                      {"https://[2001:db8::5]", ""},
		"[2001:db8::5]":                                      {"https://[2001:db8::5]", ""},
		"[2001:db8::5]:8443":                                 {"https://[2001:db8::5]:8443", ""},
		"::ffff:10.0.0.5":                                    {"https://10.0.0.5", ""},
		"https://[::ffff:10.0.0.5]":                          {"https://10.0.0.5", ""},
		" bmc1 ":                                             {"https://bmc1", ""},
		"http://h:80":                                        {"http://h", ""},
	} {
		a, err := fleet.ParseBMCAddress(in)
		if err != nil {
			t.Errorf("%q: %v", in, err)
			continue
		}
		if a.String() != want.address || a.System != want.system {
			t.Errorf("%q: got %q system %q, want %q system %q", in, a, a.System, want.address, want.system)
		}
		again, err := fleet.ParseBMCAddress(a.String() + a.System)
		if err != nil || again != a {
			t.Errorf("%q: canonical form does not parse to itself: %s (%v)", in, cmp.Diff(a, again), err)
		}
	}
}

func TestParseBMCAddressRefuses(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                                     "empty",
		"ftp://h":                              "scheme",
		"ipmi+http://h":                        "scheme",
		"redfish+ftp://h":                      "scheme",
		"https://root:s3cret@h":                "user name",
		"root:s3cret@h":                        "user name",
		"https://root:s3%ZZcret@h":             "not a URL",
		"https://h?x=1":                        "query",
		"https://h#x":                          "query or fragment",
		"https://h:0":                          "port",
		"https://h:70000":                      "port",
		"https://":                             "host",
		"https://h_x":                          "host",
		"https://bücher.example":               "host",
		"2130706433":                           "ends in a number",
		"127.1":                                "ends in a number",
		"0x7f000001":                           "ends in a number",
		"10.0.0.256":                           "ends in a number",
		"fe80::1%eth0":                         "zone",
		"https://[fe80::1%25eth0]":             "zone",
		"0.0.0.0":                              "no address of a machine",
		"ff02::1":                              "no address of a machine",
		"ipmi://h/redfish/v1/Systems/1":        "no path",
		"https://h/Systems/1":                  "path must be",
		"https://h/redfish/v1/../../x":         "segments",
		"https://h/redfish/v1/Systems//1":      "segments",
		"https://" + strings.Repeat("a.", 140): "host",
	} {
		_, err := fleet.ParseBMCAddress(in)
		if err == nil {
			t.Errorf("%q was accepted", in)
			continue
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %q does not say %q", in, err, want)
		}
		if strings.Contains(err.Error(), "s3") {
			t.Errorf("%q: the error repeats the password: %v", in, err)
		}
	}
}

func TestBMCAddressParts(t *testing.T) {
	t.Parallel()
	v6, _ := fleet.ParseBMCAddress("ipmi://[2001:db8::5]")
	if got := v6.HostPort(); got != "[2001:db8::5]:623" {
		t.Errorf("HostPort = %q", got)
	}
	if ip, ok := v6.IP(); !ok || ip.String() != "2001:db8::5" {
		t.Errorf("IP = %v, %v", ip, ok)
	}
	name, _ := fleet.ParseBMCAddress("bmc1")
	if _, ok := name.IP(); ok {
		t.Error("a name is not a literal address")
	}
	if s := (fleet.BMCAddress{}).String(); s != "" {
		t.Errorf("zero value is %q", s)
	}
}
